"""Repeatability of keypoints: counted by hand, and a tiny run of the whole script."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import PIL.Image
import pytest
import torch

from support.benchmark_scripts import load_script, run_script
from support.photo_cases import make_photo
from ucn.config import ModelConfig
from ucn.data.io import to_pixels
from ucn.nn import build_model
from ucn.types import PairSample
from ucn.weights import save_weights

HW = (96, 128)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("keypoint_repeatability")


def test_counting_by_hand(script: ModuleType) -> None:
    image = torch.zeros(3, *HW)
    points0 = torch.tensor([[10.0, 10.0], [20.0, 10.0], [30.0, 10.0]])
    sample = PairSample(image, image, points0, points0 + torch.tensor([5.0, 0.0]), "moved by 5")
    # The first has its keypoint 3 px from the ground truth, the second 3.1 px; the last has no ground truth.
    keypoints0 = np.array([[10.0, 11.0], [20.0, 10.0], [40.0, 10.0]])
    keypoints1 = np.array([[15.0, 13.0], [28.1, 10.0], [45.0, 10.0]])
    assert script.count_repeated(sample, keypoints0, keypoints1) == (1, 2)
    assert script.count_repeated(sample, keypoints0, np.zeros((0, 2))) == (0, 2)
    assert script.count_repeated(sample, keypoints0[2:], keypoints1) == (0, 0)


def test_a_camera_that_stands_still_finds_everything_again(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    image = PIL.Image.fromarray(to_pixels(make_photo(*HW, seed=0, grain=8)))
    for number in (0, 40, 90):
        image.save(folder / f"frame-{number:06d}.color.png")
        PIL.Image.fromarray(np.full(HW, 2000, np.uint16)).save(folder / f"frame-{number:06d}.depth.png")
        np.savetxt(folder / f"frame-{number:06d}.pose.txt", np.eye(4))
    (folder / "camera-intrinsics.txt").write_text("585 0 63.5\n0 585 47.5\n0 0 1\n")
    save_weights(tmp_path / "w.safetensors", build_model(ModelConfig(dim=8)))
    options = ("--every", "2", "--keypoints", "150", "--weights", str(tmp_path / "w.safetensors"))
    run_script(script, str(folder), *options, "--json")
    figures = json.loads(capsys.readouterr().out)
    assert (figures["frames"], figures["pairs"]) == (2, 1)
    assert figures["repeatability"]["corners"] == 1.0
    # 150 points of 3 px radius on 96 x 128 px: 1 - exp(-150 * 28.3 / 12288) = 0.29 by chance.
    assert 0.15 < figures["repeatability"]["random points"] < 0.45
    run_script(script, str(folder), *options)
    assert "| corners | 100.0 | 1 |" in capsys.readouterr().out
