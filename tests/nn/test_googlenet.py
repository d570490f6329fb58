from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ucn.config import ModelConfig
from ucn.nn import build_model, load_imagenet_trunk
from ucn.nn.googlenet import GoogLeNetTrunk, local_response_norm, preprocess

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


def test_local_response_norm_equals_torch() -> None:
    x = torch.randn(2, 7, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 100
    expected = F.local_response_norm(x, 5, alpha=1e-4, beta=0.75, k=1.0)
    torch.testing.assert_close(local_response_norm(x), expected)


def test_local_response_norm_by_hand() -> None:
    # One channel of value 100: s = 1 + 1e-4 / 5 * 10000 = 1.2.
    assert local_response_norm(torch.full((1, 1, 1, 1), 100.0)).item() == pytest.approx(
        100 / 1.2**0.75, rel=1e-6
    )
