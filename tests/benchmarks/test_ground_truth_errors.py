"""Errors of ground truth: textures moved by known shifts, and the script on a tiny data set."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from support.benchmark_scripts import load_script
from support.photo_cases import make_photo, write_photos
from ucn.geometry.coords import pixel_grid
from ucn.types import PairSample

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ground_truth_errors.py"
SHIFT = 6


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("ground_truth_errors")


def make_sample(error: float) -> PairSample:
    """An image that moves left by 6 pixels, and ground truth with an error."""
    photo = make_photo(120, 166)
    points0 = pixel_grid((120, 160))[:, 10:].reshape(-1, 2)
    points1 = points0 - torch.tensor([SHIFT - error, 0.0])
    return PairSample(photo[:, :, :160], photo[:, :, SHIFT:], points0, points1, "a/000003-000007")


@pytest.mark.parametrize("error", [0.0, 2.0, -3.0])
def test_the_error_of_a_ground_truth_is_found(script: ModuleType, error: float) -> None:
    result = script.measure(make_sample(error))
    assert len(result.distances) > 20
    row = script.summarise("4", [result, result])
    assert row["median_px"] == pytest.approx(abs(error), abs=0.05)
    assert (row["gap"], row["pairs"], row["matches"]) == ("4", 2, 2 * len(result.distances))
    assert (row["ratio"] < 0.01) == (error == 0)
    assert row["unmoved"] == pytest.approx(result.unmoved, abs=1e-4)


def test_images_without_features(script: ModuleType) -> None:
    sample = make_sample(0.0)
    flat = PairSample(sample.image0 * 0, sample.image1 * 0, sample.points0, sample.points1, "flat")
    row = script.summarise("?", [script.measure(flat)])
    assert (row["matches"], row["median_px"], row["ratio"]) == (0, None, None)


def test_gaps_come_from_names(script: ModuleType) -> None:
    names = ("05/000600-000604", "seq-01/000008-000024", "a.png--b.png")
    assert [script.find_gap(name) for name in names] == ["4", "16", "?"]


@pytest.mark.slow
def test_the_whole(tmp_path: Path) -> None:
    write_photos(tmp_path, [(200, 200)] * 3)
    options = ["synthetic", str(tmp_path), "--option", "kind=homography", "--option", "side=128", "--json"]
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[1] / "src")}
    command = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=environment)
    (row,) = json.loads(done.stdout)
    assert (row["gap"], row["pairs"]) == ("?", 3)
