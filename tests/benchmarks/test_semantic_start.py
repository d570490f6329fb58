"""The script that adds a semantic level to trained weights: what it keeps, and its principal directions."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from support.benchmark_scripts import load_script, run_script
from support.photo_cases import write_photos
from ucn.config import Calibration, ModelConfig
from ucn.nn import build_model
from ucn.weights import load_weights, save_weights

script = load_script("semantic_start")


@torch.no_grad()
def test_projected_features_are_centred_and_uncorrelated(tmp_path: Path) -> None:
    paths = write_photos(tmp_path / "photos", [(60, 80), (90, 40), (64, 64)])
    model = build_model(ModelConfig(dim=8, transformer="none", semantic_dim=5)).eval()
    script.set_projection(model, paths)
    assert model.semantic is not None
    kernel = model.semantic.projection.weight[:, :, 0, 0]
    torch.testing.assert_close(kernel @ kernel.t(), torch.eye(5), atol=1e-5, rtol=0)
    projected = []
    for path in paths:
        image = script.read_image(path)[None]
        size = [max(32, round(side * script._SIDE / max(image.shape[-2:]))) for side in image.shape[-2:]]
        image = F.interpolate(image, size, mode="bilinear", antialias=True)
        cells = model.semantic.describe_cells(model.prepare(image))
        projected.append(model.semantic.projection(cells)[0].flatten(1))
    values = torch.cat(projected, dim=1).double()  # (5, N)
    assert values.mean(dim=1).abs().max() < 1e-4
    variances = values @ values.t() / values.shape[1]
    diagonal = variances.diagonal()
    assert (diagonal[:-1] >= diagonal[1:]).all() and diagonal[-1] > 0  # the largest first
    assert (variances - diagonal.diag()).abs().max() < 1e-3 * diagonal[0]


def test_images_are_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_photos(tmp_path / "photos", [(8, 8)] * 6)
    monkeypatch.setattr(script, "_IMAGES", {"photos/*.png": 3})
    chosen = script.list_images(tmp_path)
    assert len(set(chosen)) == 3 and set(chosen) <= set(paths)
    assert script.list_images(tmp_path) == chosen


def test_trained_weights_are_kept(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_IMAGES", {"photos/*.jpg": 3})
    monkeypatch.setenv("UCN_DATA", str(data_folder))
    trained = build_model(ModelConfig(dim=8, transformer="none"))
    calibration = Calibration(match_bias=-1.5)
    save_weights(tmp_path / "trained.safetensors", trained, calibration=calibration, max_side=300)
    made = tmp_path / "start.safetensors"
    run_script(script, str(tmp_path / "trained.safetensors"), "-o", str(made), "--dim", "16")
    found = load_weights(made)
    assert found.model.config == ModelConfig(dim=8, transformer="none", semantic_dim=16)
    assert (found.calibration, found.max_side) == (calibration, 300)
    kept = load_weights(tmp_path / "trained.safetensors").model.state_dict()
    for name, value in kept.items():
        assert torch.equal(found.model.state_dict()[name], value), name
    assert found.model.semantic is not None
    assert not found.model.semantic.gain.weight.any()
