"""``ucn train`` from the recipe to the weights file."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from support.photo_cases import write_photos
from ucn.cli.app import app
from ucn.config import Calibration, ModelConfig
from ucn.train import loop
from ucn.train.checkpoint import load_run
from ucn.train.recipe import read_recipe
from ucn.train.validation import Validation
from ucn.weights import load_weights

RECIPE = """
name: tiny
steps: 2
batch: 2
model: {dim: 8, transformer: none}
synthetic: {side: 64, points: 50}
"""


@pytest.fixture(autouse=True)
def without_traces(few_pairs: None) -> Iterator[None]:
    """Few pairs, and torch's precision as it was: the command sets it for the whole process."""
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


def take_set(kitti: Path) -> tuple[str, ...]:
    """The options that add the data set, with small images."""
    settings = ("crop_hw=[64, 64]", "points=50", "workers=0")
    changes = [word for setting in settings for word in ("--set", f"sources.0.{setting}")]
    return ("--data", f"kitti-flow={kitti}", *changes)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_text_report(recipe: Path, photos: Path, out: Path) -> None:
    result = run_train(recipe, photos, out / "w.safetensors", "--set", "validate_every=1")
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 1", "step 2"]
    for line in lines:
        for words in ("loss ", " pairs/s, ", " points/s, ", "pck@3 "):
            assert words in line
    for words in ("pck@10", "written", "w.safetensors", "sha256", "log.jsonl"):
        assert words in result.stdout


@pytest.mark.slow
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
    monkeypatch.setattr(loop, "validate", lambda *_: Validation({"pck@5": 0.0}, next(figures)))

    def fail(*_: object) -> None:
        raise RuntimeError("killed at the end")

    monkeypatch.setattr(loop, "fit_calibration", fail)
    result = run_train(recipe, photos, out / "w.safetensors", "--set", "validate_every=1", "--json")
    assert_refused(result, "killed at the end")
    assert load_weights(out / "w.safetensors").training["best_step"] == 1


@pytest.mark.slow
def test_an_existing_output_is_kept_without_overwrite(recipe: Path, photos: Path, out: Path) -> None:
    output = out / "w.safetensors"
    output.write_text("precious")
    assert_refused(run_train(recipe, photos, output), "w.safetensors", "--overwrite")
    assert output.read_text() == "precious"
    assert run_train(recipe, photos, output, "--overwrite").exit_code == 0
    assert load_weights(output).training["name"] == "tiny"


def read_log(output: Path) -> list[dict[str, Any]]:
    path = output.with_suffix(".train") / "log.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_the_run_folder_beside_the_weights(recipe: Path, photos: Path, out: Path) -> None:
    output = out / "w.safetensors"
    assert run_train(recipe, photos, output, "--set", "validate_every=1").exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["w.safetensors", "w.train"]
    names = sorted(path.name for path in (out / "w.train").iterdir())
    assert names == ["best.safetensors", "last.safetensors", "log.jsonl"]
    start, *progress, end = read_log(output)
    assert (start["event"], start["step"], start["processes"]) == ("start", 0, 1)
    assert start["config"]["name"] == "tiny" and set(start["versions"]) == {"ucn", "torch", "python"}
    assert [(line["event"], line["step"]) for line in progress] == [("progress", 1), ("progress", 2)]
    assert all(line["loss"] > 0 and line["pairs_per_second"] > 0 for line in progress)
    assert (end["event"], end["step"], end["score"]) == ("end", 2, max(line["score"] for line in progress))


@pytest.mark.slow
def test_an_earlier_run_is_kept_without_overwrite(recipe: Path, photos: Path, out: Path) -> None:
    output = out / "w.safetensors"
    assert run_train(recipe, photos, output).exit_code == 0
    output.unlink()
    assert_refused(run_train(recipe, photos, output), "w.train holds an earlier run", "--resume")
    assert run_train(recipe, photos, output, "--overwrite").exit_code == 0
    assert [line["event"] for line in read_log(output)] == ["start", "progress", "end"]


@pytest.mark.slow
def test_resume_with_another_recipe_names_the_keys(recipe: Path, photos: Path, out: Path) -> None:
    output = out / "w.safetensors"
    assert run_train(recipe, photos, output).exit_code == 0
    before = output.read_bytes()
    refused = run_train(recipe, photos, output, "--resume", "--set", "loss.radius=3")
    assert_refused(refused, "is of another run", "loss.radius (there 16.0, here 3.0)")
    assert_refused(run_train(recipe, photos, output, "--resume", "--overfit"), "here 'one batch'")
    assert output.read_bytes() == before


@pytest.mark.slow
def test_resume_of_a_finished_run_writes_its_weights_again(recipe: Path, photos: Path, out: Path) -> None:
    output = out / "w.safetensors"
    assert run_train(recipe, photos, output).exit_code == 0
    before = output.read_bytes()
    output.unlink()
    result = run_train(recipe, photos, output, "--resume")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("resume: step 2\n")
    assert output.read_bytes() == before


@pytest.mark.slow
def test_resume_without_a_checkpoint_begins(recipe: Path, photos: Path, out: Path) -> None:
    output = out / "w.safetensors"
    output.write_text("precious")  # of something else: there is no run beside it
    assert_refused(run_train(recipe, photos, output, "--resume"), "--overwrite")
    output.unlink()
    result = run_train(recipe, photos, output, "--resume")
    assert result.exit_code == 0, result.output
    assert f"resume: no checkpoint in {out / 'w.train'}, training starts at step 0\n" in result.stderr


def test_overfitting_one_batch(recipe: Path, photos: Path, out: Path) -> None:
    options = ("--overfit", "--json", "--set", "steps=3", "--set", "average_decay=0")
    result = run_train(recipe, photos, out / "w.safetensors", *options)
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)["validation"]) == {"pck@1", "pck@3", "pck@5", "pck@10"}


@pytest.mark.slow
def test_tensorboard_events_are_written(recipe: Path, photos: Path, out: Path) -> None:
    pytest.importorskip("tensorboard")
    result = run_train(recipe, photos, out / "w.safetensors", "--tensorboard", "--json")
    assert result.exit_code == 0, result.output
    (events,) = (out / "w.train" / "tensorboard").iterdir()
    content = events.read_bytes()
    for tag in (b"loss", b"validation/pck@5", b"learning rate/head", b"synthetic/0"):
        assert tag in content


def test_tensorboard_that_is_not_installed(
    recipe: Path, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    result = run_train(recipe, photos, out / "w.safetensors", "--tensorboard")
    assert_refused(result, "needs the package tensorboard: pip install 'ucn[train]'")
    assert list(out.iterdir()) == []


def command(recipe: Path, photos: Path, output: Path, *options: str) -> list[str]:
    arguments = [str(recipe), "--images", str(photos), "-o", str(output), "--device", "cpu"]
    return [sys.executable, "-m", "ucn", "train", *arguments, *options]


def environment() -> dict[str, str]:
    # Sums depend on how many threads share them: both processes of a comparison need the same number.
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    return os.environ | {"PYTHONPATH": str(Path(loop.__file__).parents[2])} | threads


def wait_for_checkpoint(process: subprocess.Popen[str], output: Path) -> None:
    started = time.monotonic()
    while not (output.with_suffix(".train") / "last.safetensors").exists():
        assert process.poll() is None and time.monotonic() - started < 300
        time.sleep(0.05)


def without_speed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    progress = [line for line in lines if line["event"] == "progress"]
    return [{key: value for key, value in line.items() if "per_s" not in key} for line in progress]


# Rates that do not depend on the number of steps: the run is endless, until a test knows how far it came.
ENDLESS = ("schedule=constant", "steps=100000", "checkpoint_every=1", "validate_every=100000")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_a_terminated_run_resumes_exactly(
    number: signal.Signals, recipe: Path, photos: Path, out: Path
) -> None:
    output = out / "w.safetensors"
    endless = [word for setting in ENDLESS for word in ("--set", setting)]
    process = subprocess.Popen(
        command(recipe, photos, output, *endless), env=environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for_checkpoint(process, output)
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + number
        (stop,) = [line for line in read_log(output) if line["event"] == "stop"]
        assert stop["signal"] == number.name
        message = errors.splitlines()[-1]
        assert message.startswith(f"stopped by {number.name} at step {stop['step']} of 100000, saved in ")
        assert message.endswith("w.train; continue with --resume")
    left = load_run(output.with_suffix(".train"), read_recipe(recipe, ENDLESS), ["synthetic"])
    assert left is not None
    steps = left.step + 3
    options = [*endless, "--set", f"steps={steps}"]
    resumed = run_train(recipe, photos, output, *options, "--resume", "--json")
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["resumed_at"] == left.step
    unbroken = run_train(recipe, photos, out / "unbroken.safetensors", *options, "--json")
    assert unbroken.exit_code == 0, unbroken.output
    first, second = load_weights(output), load_weights(out / "unbroken.safetensors")
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert first.training == second.training and first.calibration == second.calibration
    assert without_speed(read_log(output)) == without_speed(read_log(out / "unbroken.safetensors"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_that_the_readers_get_too_costs_no_step(
    number: signal.Signals, recipe: Path, kitti: Path, out: Path
) -> None:
    output = out / "w.safetensors"
    endless = [word for setting in ENDLESS for word in ("--set", setting)]
    readers = ("--data", f"kitti-flow={kitti}", "--set", "sources.0.crop_hw=[64, 64]")
    arguments = [str(recipe), "-o", str(output), "--device", "cpu", *readers, *endless]
    process = subprocess.Popen(
        [sys.executable, "-m", "ucn", "train", *arguments],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for_checkpoint(process, output)
        os.killpg(process.pid, number)  # as a terminal, a scheduler or torchrun does
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 128 + number, errors
    (message,) = errors.splitlines()
    step = int(message.split(" at step ")[1].split(" of ")[0])
    config = read_recipe(recipe, (*ENDLESS, readers[-1]), readers[1:2])
    left = load_run(output.with_suffix(".train"), config, ["kitti-flow"])
    assert left is not None and left.step == step


def test_a_missing_folder_of_images(recipe: Path, tmp_path: Path, out: Path) -> None:
    result = run_train(recipe, tmp_path / "missing", out / "w.safetensors")
    assert_refused(result, "no folder", "missing")
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
    options = (*take_set(kitti), "--json")
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


@pytest.mark.slow
@pytest.mark.parametrize("where", ["workers=0", "on_device=true"])
def test_training_on_your_own_images_with_points(recipe: Path, tmp_path: Path, out: Path, where: str) -> None:
    write_photos(tmp_path / "mine", [(70, 84)] * 6)
    parts = [(name, 10 + 12 * place, 40) for place, name in enumerate(("left eye", "right eye", "beak"))]
    rows = [f"{number:02}.png,{name},{x},{y}" for number in range(6) for name, x, y in parts]
    (tmp_path / "mine" / "keypoints.csv").write_text("\n".join(["image,part,x,y", *rows]))
    settings = (
        "crop_hw=[64, 64]",
        "points=3",
        "fit=resize",
        "options=[mirror_names=true]",
        "mirror_view=0.5",
    )
    changes = [word for each in (*settings, where) for word in ("--set", f"sources.0.{each}")]
    options = ("--data", f"own={tmp_path / 'mine'}", *changes, "--json")
    result = run_train(recipe, None, out / "w.safetensors", *options)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["skipped"] == []
    assert 0 <= report["score"] <= 1


def test_photographs_and_a_data_set(recipe: Path, photos: Path, kitti: Path, out: Path) -> None:
    options = (*take_set(kitti), "--set", "steps=4")
    result = run_train(recipe, photos, out / "w.safetensors", *options)
    assert result.exit_code == 0, result.output
    for words in ("kitti-flow pck@5", "synthetic pck@5"):
        assert words in result.stdout and words in result.stderr


def test_a_data_set_that_its_check_refuses(recipe: Path, kitti: Path, out: Path) -> None:
    broken = kitti / "training" / "image_2" / "000001_11.png"
    broken.write_bytes(broken.read_bytes()[:100])
    options = take_set(kitti)
    refused = run_train(recipe, None, out / "w.safetensors", *options)
    assert_refused(refused, "kitti-flow in ", "has 1 problems", "000001_11.png", "data check", "--skip-bad")
    assert list(out.iterdir()) == []

    done = run_train(recipe, None, out / "w.safetensors", *options, "--skip-bad")
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert lines[0].startswith("skipped: ") and "000001_11.png" in lines[0]
    assert lines[1] == "kitti-flow: left out 1 pairs for 1 problems"

    message = run_train(recipe, None, out / "again.safetensors", *options, "--skip-bad", "--json")
    (skipped,) = json.loads(message.stdout)["skipped"]
    assert (skipped["source"], skipped["pairs"]) == ("kitti-flow", 1)
    (problem,) = skipped["faults"]
    assert problem["file"] == str(broken) and problem["line"] is None and problem["message"]
    assert message.stderr == ""


def test_wrong_data_is_refused_before_training(recipe: Path, photos: Path, kitti: Path, out: Path) -> None:
    output = out / "w.safetensors"
    assert_refused(run_train(recipe, None, output), "give --images DIR or --data NAME=DIR")
    assert_refused(run_train(recipe, None, output, "--data", "kitti-flow"), "data must be NAME=DIR")
    assert_refused(
        run_train(recipe, None, output, "--data", f"kiti-flow={kitti}"), "did you mean 'kitti-flow'"
    )
    assert_refused(run_train(recipe, None, output, "--data", f"kitti-flow={photos}"), "expected layout")
    assert_refused(
        run_train(recipe, None, output, "--set", "sources=[{name: kitti-flow}]"),
        "has no folder",
        "data kitti-flow=DIR",
    )
    assert list(out.iterdir()) == []
