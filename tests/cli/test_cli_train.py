"""``ucn train`` from the recipe to the weights file."""

import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from photo_cases import write_photos
from ucn.cli.app import app
from ucn.config import Calibration, ModelConfig
from ucn.train import loop, sources
from ucn.weights import load_weights

RECIPE = """
name: tiny
steps: 2
batch: 2
model: {dim: 8, transformer: none}
synthetic: {side: 64, points: 50}
"""


@pytest.fixture(autouse=True)
def small_and_without_traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few validation pairs, and torch's precision as it was: the command sets it for the whole process."""
    monkeypatch.setattr(sources, "_VALIDATION_PAIRS", 4)
    monkeypatch.setattr(loop, "_CALIBRATION_PAIRS", 2)
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", [(90, 120), (100, 80)])
    return tmp_path / "photos"


@pytest.fixture
def kitti(tmp_path: Path) -> Path:
    """Four street scenes of 80 × 70 pixels whose image 1 is image 0 moved by 3 pixels to the left."""
    training = tmp_path / "kitti flow" / "training"
    write_photos(tmp_path / "scenes", [(70, 84)] * 4)
    (training / "image_2").mkdir(parents=True)
    (training / "flow_occ").mkdir()
    flow = np.full((70, 80, 3), 2**15, np.uint16)
    flow[..., 0], flow[..., 2] = 1, 2**15 - 3 * 64  # B: known, G: v = 0, R: u = -3
    for scene in range(4):
        image = cv2.imread(str(tmp_path / "scenes" / f"{scene:02}.png"))
        assert image is not None
        for frame, part in ((10, image[:, :80]), (11, image[:, 3:83])):
            cv2.imwrite(str(training / "image_2" / f"{scene:06}_{frame}.png"), part)
        cv2.imwrite(str(training / "flow_occ" / f"{scene:06}_10.png"), flow)
    return training.parent


SOURCE = "sources=[{name: kitti-flow, crop_hw: [64, 64], points: 50, workers: 0}]"


def run_train(recipe: Path, photos: Path | None, output: Path, *options: str) -> Result:
    images = [] if photos is None else ["--images", str(photos)]
    arguments = ["train", str(recipe), *images, "-o", str(output), "--device", "cpu"]
    return CliRunner().invoke(app, [*arguments, *options])


def assert_refused(result: Result, *says: str) -> None:
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    for words in says:
        assert words in result.stderr


def test_from_recipe_to_weights(
    recipe: Path, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration(pair_bias=1.5))
    result = run_train(recipe, photos, out / "w.safetensors", "--set", "seed=5", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert result.stderr == ""
    loaded = load_weights(out / "w.safetensors")
    assert loaded.model.config == ModelConfig(dim=8, transformer="none")
    assert loaded.calibration == Calibration(pair_bias=1.5)
    assert loaded.info.sha256 == report["sha256"]
    assert loaded.training == report["config"] | {"best_step": report["best_step"]}
    assert report["best_step"] == 2
    assert (loaded.training["name"], loaded.training["steps"], loaded.training["seed"]) == ("tiny", 2, 5)
    assert set(report["validation"]) == {"pck@1", "pck@3", "pck@5", "pck@10"}
    assert report["output"] == str(out / "w.safetensors")


def test_people_are_told_how_it_went(recipe: Path, photos: Path, out: Path) -> None:
    result = run_train(recipe, photos, out / "w.safetensors", "--set", "validate_every=1")
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 1", "step 2"]
    assert all("loss " in line and "pck@3 " in line for line in lines)
    for words in ("pck@10", "written", "w.safetensors", "sha256"):
        assert words in result.stdout


def test_the_same_command_gives_the_same_weights(recipe: Path, photos: Path, out: Path) -> None:
    weights = []
    for name in ("a", "b"):
        assert run_train(recipe, photos, out / f"{name}.safetensors").exit_code == 0
        weights.append(load_weights(out / f"{name}.safetensors"))
    first, again = (loaded.model.state_dict() for loaded in weights)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert weights[0].calibration == weights[1].calibration


def test_the_best_network_is_kept_while_training_goes_on(
    recipe: Path, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = iter([0.5, 0.25])
    monkeypatch.setattr(loop, "validate", lambda *_: loop.Validation({"pck@5": 0.0}, next(figures)))

    def fail(*_: object) -> None:
        raise RuntimeError("killed at the end")

    monkeypatch.setattr(loop, "fit_calibration", fail)
    result = run_train(recipe, photos, out / "w.safetensors", "--set", "validate_every=1", "--json")
    assert_refused(result, "killed at the end")
    assert load_weights(out / "w.safetensors").training["best_step"] == 1


def test_an_existing_output_is_kept_unless_told_otherwise(recipe: Path, photos: Path, out: Path) -> None:
    output = out / "w.safetensors"
    output.write_text("precious")
    assert_refused(run_train(recipe, photos, output), "w.safetensors", "--overwrite")
    assert output.read_text() == "precious"
    assert run_train(recipe, photos, output, "--overwrite").exit_code == 0
    assert load_weights(output).training["name"] == "tiny"


def test_a_missing_folder_of_images(recipe: Path, tmp_path: Path, out: Path) -> None:
    result = run_train(recipe, tmp_path / "missing", out / "w.safetensors")
    assert_refused(result, "no folder", "missing", "expected one that holds images")
    assert list(out.iterdir()) == []


def test_other_wrong_arguments_are_refused_before_training(recipe: Path, photos: Path, out: Path) -> None:
    output = out / "w.safetensors"
    assert_refused(run_train(recipe.parent / "no.yaml", photos, output), "no recipe at", "no.yaml")
    assert_refused(run_train(recipe, photos, output, "--set", "stesp=3"), "did you mean 'steps'?")
    assert_refused(run_train(recipe, photos, out / "w.pt"), "w.pt", ".safetensors")
    assert_refused(run_train(recipe, photos, out / "no" / "w.safetensors"), "no")
    assert_refused(run_train(recipe, photos, output, "--device", "abacus"), "abacus")
    assert list(out.iterdir()) == []


def test_training_on_a_data_set(recipe: Path, kitti: Path, out: Path) -> None:
    options = ("--set", SOURCE, "--data", f"kitti-flow={kitti}", "--json")
    result = run_train(recipe, None, out / "w.safetensors", *options)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert result.stderr == "" and report["skipped"] == []
    assert set(report["validation"]) == {"pck@1", "pck@3", "pck@5", "pck@10"}
    assert report["score"] == report["validation"]["pck@5"]
    (source,) = report["config"]["sources"]
    assert source["folder"] == str(kitti) and source["crop_hw"] == [64, 64]
    (recorded,) = load_weights(out / "w.safetensors").training["sources"]
    assert recorded == source | {"folder": "kitti flow"}  # not where it lay on this machine


def test_photographs_and_a_data_set(recipe: Path, photos: Path, kitti: Path, out: Path) -> None:
    options = ("--set", SOURCE, "--data", f"kitti-flow={kitti}", "--set", "steps=4")
    result = run_train(recipe, photos, out / "w.safetensors", *options)
    assert result.exit_code == 0, result.output
    for words in ("kitti-flow pck@5", "synthetic pck@5"):
        assert words in result.stdout and words in result.stderr


def test_a_data_set_that_its_check_refuses(recipe: Path, kitti: Path, out: Path) -> None:
    broken = kitti / "training" / "image_2" / "000001_11.png"
    broken.write_bytes(broken.read_bytes()[:100])
    options = ("--set", SOURCE, "--data", f"kitti-flow={kitti}")
    refused = run_train(recipe, None, out / "w.safetensors", *options)
    assert_refused(refused, "kitti-flow in ", "has 1 faults", "000001_11.png", "data check", "--skip-bad")
    assert list(out.iterdir()) == []

    done = run_train(recipe, None, out / "w.safetensors", *options, "--skip-bad")
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert lines[0].startswith("skipped: ") and "000001_11.png" in lines[0]
    assert lines[1] == "kitti-flow: left out 1 pairs for 1 faults"

    said = run_train(recipe, None, out / "again.safetensors", *options, "--skip-bad", "--json")
    (skipped,) = json.loads(said.stdout)["skipped"]
    assert (skipped["source"], skipped["pairs"]) == ("kitti-flow", 1)
    (fault,) = skipped["faults"]
    assert fault["file"] == str(broken) and fault["line"] is None and fault["message"]
    assert said.stderr == ""


def test_wrong_data_is_refused_before_training(recipe: Path, photos: Path, kitti: Path, out: Path) -> None:
    output = out / "w.safetensors"
    assert_refused(run_train(recipe, None, output), "nothing to train on", "--images DIR", "--data NAME=DIR")
    assert_refused(run_train(recipe, None, output, "--data", "kitti-flow"), "data must be NAME=DIR")
    assert_refused(
        run_train(recipe, None, output, "--data", f"kiti-flow={kitti}"), "did you mean 'kitti-flow'"
    )
    assert_refused(run_train(recipe, None, output, "--data", f"kitti-flow={photos}"), "expected layout")
    assert_refused(run_train(recipe, None, output, "--set", SOURCE), "has no folder", "--data kitti-flow=DIR")
    assert list(out.iterdir()) == []
