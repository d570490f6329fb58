from pathlib import Path

import numpy as np
import pytest
import torch

from ucn.config import ModelConfig
from ucn.nn import build_model
from ucn.nn.googlenet import GoogLeNetTrunk, preprocess
from ucn.nn.trunk_files import load_imagenet_trunk

TRUNK_FILE = "googlenet/bvlc_googlenet_conv1_to_inception_4a.npz"


def test_activations_equal_those_of_another_implementation(data_folder: Path) -> None:
    trunk = GoogLeNetTrunk((2, 2, 2, 2))
    load_imagenet_trunk(trunk, data_folder / TRUNK_FILE)
    with np.load(data_folder / "googlenet/reference_activations.npz") as reference, torch.no_grad():
        stages = trunk.stages(torch.from_numpy(reference["data"])[None])
        for name in ("inception_3a", "inception_4a"):
            difference = (stages[name][0] - torch.from_numpy(reference[f"{name}_output"])).abs().max()
            assert difference < 2e-3, name


def test_trunk_has_as_many_parameters_as_googlenet_up_to_4a() -> None:
    assert sum(p.numel() for p in build_model(ModelConfig()).trunk.parameters()) == 1_053_024


@pytest.mark.parametrize(("width", "cells"), [(32, 8), (33, 8), (34, 8), (35, 9), (36, 9)])
def test_any_size_is_encoded(width: int, cells: int) -> None:
    trunk = build_model(ModelConfig()).trunk
    with torch.no_grad():
        assert trunk(torch.rand(1, 3, 32, width)).shape == (1, 512, 8, cells)


def test_preprocess_is_bgr_minus_mean() -> None:
    pixel = torch.tensor([1.0, 0.5, 0.0]).view(1, 3, 1, 1)  # red 1, green 0.5, blue 0
    assert preprocess(pixel).flatten().tolist() == [0 - 104, 127.5 - 117, 255 - 123]
