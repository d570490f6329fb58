import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ucn.config import ModelConfig
from ucn.errors import WeightsError
from ucn.nn import build_model, googlenet, load_imagenet_trunk
from ucn.nn.googlenet import _CAFFE_NAMES, GoogLeNetTrunk, local_response_norm, preprocess

TRUNK_FILE = "googlenet/bvlc_googlenet_conv1_to_inception_4a.npz"


def test_activations_equal_those_of_another_implementation(data_folder: Path) -> None:
    trunk = build_model(ModelConfig(strides=(2, 2, 2, 2))).trunk
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


def test_damaged_trunk_files_are_refused(tmp_path: Path) -> None:
    trunk = build_model(ModelConfig()).trunk
    with pytest.raises(WeightsError, match="no trunk weights at"):
        load_imagenet_trunk(trunk, tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(WeightsError, match=r"not an \.npz of BVLC"):
        load_imagenet_trunk(trunk, tmp_path / "text.npz")
    np.savez(tmp_path / "shape.npz", conv1_7x7_s2_w=np.zeros((1, 2), np.float32))
    with pytest.raises(WeightsError, match=r"must be \(64, 3, 7, 7\), got \(1, 2\)"):
        load_imagenet_trunk(trunk, tmp_path / "shape.npz")
    np.savez(tmp_path / "empty.npz", other=np.zeros(1))
    with pytest.raises(WeightsError, match="conv1_7x7_s2_w"):
        load_imagenet_trunk(trunk, tmp_path / "empty.npz")


@pytest.fixture
def trunk() -> GoogLeNetTrunk:
    return build_model(ModelConfig()).trunk


@pytest.fixture
def arrays(trunk: GoogLeNetTrunk) -> dict[str, Any]:
    """What a trunk file holds: here all ones."""
    parameters = dict(trunk.named_parameters())
    return {
        f"{caffe}_{suffix}": np.ones(parameters[f"{ours}.{kind}"].shape, np.float32)
        for ours, caffe in _CAFFE_NAMES.items()
        for suffix, kind in (("w", "weight"), ("b", "bias"))
    }


def _assert_refused(trunk: GoogLeNetTrunk, path: Path, message: str) -> None:
    before = {name: value.clone() for name, value in trunk.state_dict().items()}
    with pytest.raises(WeightsError, match=message):
        load_imagenet_trunk(trunk, path)
    assert all(torch.equal(value, before[name]) for name, value in trunk.state_dict().items())


def test_whole_files_fill_every_parameter(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: dict[str, Any]
) -> None:
    np.savez(tmp_path / "ones.npz", **arrays)
    load_imagenet_trunk(trunk, tmp_path / "ones.npz")
    assert all((parameter == 1).all() for parameter in trunk.parameters())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.full(64, np.nan, np.float32), "inception_4a_pool_proj_b in .* holds values that are not finite"),
        (np.zeros(64, np.uint16), "must be float32, got uint16"),
        (np.full(64, "text"), "must be float32, got <U4"),
        (np.zeros(63, np.float32), r"must be \(64,\), got \(63,\)"),
        (np.array([{}] * 64, dtype=object), "not an .npz of BVLC"),
    ],
)
def test_a_bad_last_array_leaves_the_trunk_as_it_was(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: dict[str, Any], value: Any, message: str
) -> None:
    np.savez(tmp_path / "bad.npz", **{**arrays, "inception_4a_pool_proj_b": value})
    _assert_refused(trunk, tmp_path / "bad.npz", message)


def test_damaged_archives(tmp_path: Path, trunk: GoogLeNetTrunk, arrays: dict[str, Any]) -> None:
    path = tmp_path / "whole.npz"
    np.savez_compressed(path, **arrays)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    damaged = {"empty": b"", "truncated": content[: len(content) // 2], "flipped": bytes(flipped)}
    for name, data in damaged.items():
        (tmp_path / name).write_bytes(data)
        _assert_refused(trunk, tmp_path / name, "is not an .npz of BVLC")
    np.save(tmp_path / "single.npy", np.zeros(3, np.float32))
    _assert_refused(trunk, tmp_path / "single.npy", "is not an .npz of BVLC")
    with zipfile.ZipFile(tmp_path / "words.npz", "w") as archive:
        archive.writestr("conv1_7x7_s2_w", "words")
    _assert_refused(trunk, tmp_path / "words.npz", "must be float32, got bytes")
    _assert_refused(trunk, tmp_path / ("x" * 300), "File name too long")


def test_size_is_limited_packed_and_unpacked(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ones.npz"
    np.savez_compressed(path, **arrays)
    assert path.stat().st_size < 1_000_000
    monkeypatch.setattr(googlenet, "_TRUNK_FILE_BYTES", 1_000_000)
    _assert_refused(trunk, path, "has 42[0-9]+ bytes; trunk weights have under 1000000")
    monkeypatch.setattr(googlenet, "_TRUNK_FILE_BYTES", 100)
    _assert_refused(trunk, path, "bytes; trunk weights have under 100")
