"""Features files: everything comes back, and what is no such file is refused with words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from ucn.errors import DataError, OutputError
from ucn.formats import features as features_module
from ucn.formats.features import FORMAT, read_features, write_features
from ucn.types import FeatureMap, Features

TENSORS = ("keypoints", "grey", "image", "view")


def make_features(dtype: torch.dtype = torch.float32) -> Features:
    generator = torch.Generator().manual_seed(0)
    descriptors = torch.rand(1, 5, 2, 3, generator=generator).to(dtype)
    image = torch.randint(0, 256, (3, 10, 14), generator=generator, dtype=torch.uint8)
    return Features(
        map=FeatureMap(descriptors, 4, 2.0, (8, 12), semantic_dim=2),
        image_hw=(80, 120),
        keypoints=torch.rand(4, 2, generator=generator),
        grey=image[0, :8, :12],
        image=image,
        view=torch.tensor([[1.0, 0.5, -2], [0, 1, 3]]),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    features = make_features(dtype)
    features.save(tmp_path / "f.safetensors")
    found = Features.load(str(tmp_path / "f.safetensors"))
    assert found.map.features.dtype == dtype
    assert torch.equal(found.map.features, features.map.features)
    assert (found.map.stride, found.map.offset, found.map.image_hw) == (4, 2.0, (8, 12))
    assert (found.map.semantic_dim, found.image_hw) == (2, (80, 120))
    for name in TENSORS:
        assert torch.equal(getattr(found, name), getattr(features, name))


def test_bare_features_without_keypoints(tmp_path: Path) -> None:
    features = replace(make_features(), grey=None, image=None, view=None, keypoints=torch.zeros(0, 2))
    features.save(tmp_path / "f.safetensors")
    found = read_features(tmp_path / "f.safetensors")
    assert (found.grey, found.image, found.view) == (None, None, None)
    assert found.keypoints.shape == (0, 2)


def test_outputs_are_checked(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write features to .*f\.pt: its name must end in "):
        write_features(tmp_path / "f.pt", make_features())
    path = tmp_path / "f.safetensors"
    write_features(path, make_features())
    with pytest.raises(OutputError, match="exists already"):
        write_features(path, make_features())
    write_features(path, replace(make_features(), view=None, image=None), overwrite=True)
    assert read_features(path).view is None


def change(path: Path, header: dict[str, str] | None = None, **tensors: Tensor | None) -> Path:
    """Writes a features file with another header, or other tensors; None leaves one out."""
    features = make_features()
    layout = {"stride": 4, "offset": 2.0, "semantic_dim": 2, "encoded_hw": [8, 12], "image_hw": [80, 120]}
    held = {"features": features.map.features, **{name: getattr(features, name) for name in TENSORS}}
    content = safetensors.torch.save(
        {name: tensor.contiguous() for name, tensor in (held | tensors).items() if tensor is not None},
        {"format": FORMAT, "layout": json.dumps(layout)} | (header or {}),
    )
    path.write_bytes(content)
    return path


def test_the_unchanged_file_is_legal(tmp_path: Path) -> None:
    assert read_features(change(tmp_path / "f.safetensors")).map.stride == 4


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"features": None}, r"it must have features and keypoints, got \['grey', 'image'"),
        ({"other": torch.zeros(1)}, "it must have features and keypoints, got"),
        (
            {"features": torch.zeros(2, 5, 2, 3)},
            r"features must be \(1, D, h, w\) with D above 2, got",
        ),
        ({"features": torch.zeros(1, 2, 2, 3)}, ".*with D above 2"),
        ({"features": torch.zeros(1, 5, 0, 3)}, ".*with D above 2"),
        ({"features": torch.zeros(5)}, ".*with D above 2"),
        ({"features": torch.full((1, 5, 2, 3), float("nan"))}, "features must be finite"),
        ({"features": torch.zeros(1, 5, 2, 3, dtype=torch.int32)}, "features must be floating point"),
        ({"keypoints": torch.zeros(4, 3)}, r"keypoints must be \(4, 2\), got \(4, 3\)"),
        ({"keypoints": torch.tensor(3.0)}, r"keypoints must be \(0, 2\), got \(\)"),
        ({"grey": torch.zeros(9, 12, dtype=torch.uint8)}, r"grey must be \(8, 12\), got \(9, 12\)"),
        ({"grey": torch.zeros(8, 12)}, "grey must be uint8, got torch.float32"),
        ({"view": None}, r"image must be \(3, 8, 12\), got \(3, 10, 14\)"),
        ({"view": torch.zeros(3, 3)}, r"view must be \(2, 3\), got \(3, 3\)"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    path = change(tmp_path / "f.safetensors", **tensors)
    with pytest.raises(DataError, match=rf"f\.safetensors does not hold features: {message}") as caught:
        read_features(path)
    assert str(caught.value).endswith("; extract them again")
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": "ucn-weights-1"}, "holds no features of an image: expected format 'ucn-features-1'"),
        ({"layout": "{}"}, "does not hold features: layout lacks the key 'stride'"),
        ({"layout": "["}, "does not hold features: "),
        ({"layout": "[" * 100_000}, "its header is nested too deeply"),
        ({"layout": '{"stride": 4, "strid": 5}'}, "unknown key 'layout.strid'; did you mean 'stride'"),
    ],
)
def test_headers_that_do_not_fit(tmp_path: Path, header: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_features(change(tmp_path / "f.safetensors", header))


@pytest.mark.parametrize(
    ("name", "value"), [("stride", 0), ("offset", 1e9), ("semantic_dim", -1), ("image_hw", [0, 5])]
)
def test_layouts_out_of_range(tmp_path: Path, name: str, value: Any) -> None:
    layout = {"stride": 4, "offset": 2.0, "semantic_dim": 2, "encoded_hw": [8, 12], "image_hw": [80, 120]}
    path = change(tmp_path / "f.safetensors", {"layout": json.dumps(layout | {name: value})})
    with pytest.raises(DataError, match=rf"layout\.{name} must be in"):
        read_features(path)


def test_files_that_are_missing_damaged_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"cannot read features .*no\.safetensors: no such file"):
        read_features(tmp_path / "no.safetensors")
    path = tmp_path / "f.safetensors"
    path.write_bytes(b"nonsense" * 9)
    with pytest.raises(DataError, match=r"not a readable \.safetensors file.*; extract the features again"):
        read_features(path)
    write_features(path, make_features(), overwrite=True)
    monkeypatch.setattr(features_module, "MAX_FEATURES_BYTES", 10)
    with pytest.raises(DataError, match="the limit for features is 10"):
        read_features(path)
