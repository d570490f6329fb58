"""Files of Siamese networks: round trips, and errors for other files."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from ucn.errors import WeightsError
from ucn.paper.siamese import SiameseConfig, build_siamese, load_siamese, save_siamese
from ucn.paper.siamese.network import FORMAT
from ucn.weights.table import SHIPPED, shipped_path

TINY = SiameseConfig(patch=32, cell_channels=4, dim=6, hidden=(5, 3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "siamese.safetensors"
    save_siamese(found, build_siamese(TINY), {"steps": 3})
    return found


def change(path: Path, tensors: dict[str, Tensor | None] | None = None, **header: str) -> None:
    """Writes a file again with other tensors (None leaves one out) or another header."""
    with safetensors.safe_open(path, "pt") as file:
        known = file.metadata() | header
    content = safetensors.torch.load_file(path) | (tensors or {})
    safetensors.torch.save_file({k: v for k, v in content.items() if v is not None}, path, known)


def test_a_network_comes_back(path: Path) -> None:
    model, found = build_siamese(TINY).eval(), load_siamese(path)
    assert found.config == TINY and not found.training
    patches = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(found(patches, patches), model(patches, patches), atol=5e-2)
    for name, value in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], value.half().float() if value.ndim > 1 else value)
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["training"]) == {"steps": 3}


def test_a_network_of_the_usual_size_is_small(tmp_path: Path) -> None:
    path = tmp_path / "usual.safetensors"
    save_siamese(path, build_siamese(SiameseConfig()), {})
    assert path.stat().st_size < 16e6


@pytest.mark.parametrize(
    ("tensors", "header", "match"),
    [
        ({}, {"format": "other"}, f"expected format '{FORMAT}'"),
        ({}, {"model": "{"}, "no usable 'model'"),
        ({}, {"model": json.dumps({"patsch": 32})}, "patch"),
        ({}, {"model": json.dumps(TINY.to_dict() | {"dim": 7})}, "must be"),
        ({"decision.last.bias": None}, {}, "1 tensors differ, first 'decision.last.bias'"),
        ({"decision.last.bias": torch.tensor([torch.nan])}, {}, "finite"),
        ({"decision.last.bias": torch.tensor([3])}, {}, "got torch.int64"),
    ],
)
def test_files_of_something_else(
    path: Path, tensors: dict[str, Any], header: dict[str, str], match: str
) -> None:
    change(path, tensors, **header)
    with pytest.raises(WeightsError, match=match):
        load_siamese(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot read a Siamese network"):
        load_siamese(tmp_path / "missing.safetensors")
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\xff" * 64)
    with pytest.raises(WeightsError, match="not a readable"):
        load_siamese(damaged)
    with pytest.raises(WeightsError, match="holds no Siamese network"):
        load_siamese(shipped_path(SHIPPED["geometric"]))
