"""SURF by mahotas: centred on its cells, rotation invariant, and optional."""

import numpy as np
import pytest
import torch

from support.photo_cases import make_photo
from ucn.errors import ConfigError
from ucn.evaluate.points.predictions import find_points
from ucn.features.extractor import count_cells, to_grey
from ucn.features.sparse import match_keypoints
from ucn.features.surf import DenseSurf, SurfKeypoints, explain_unavailable
from ucn.paper.registry import METHODS

needs_mahotas = pytest.mark.skipif(bool(explain_unavailable()), reason=explain_unavailable() or "there")


def turn_error(side: int) -> float:
    """How far the descriptors of an image turned by 180 degrees are from those of the image.

    They are turned to the dominant direction, so they should be equal. In an image of 4k + 1 pixels half a
    turn takes cell centres to cell centres. Directions flip here and there, hence the median.
    """
    photo = make_photo(side, side, seed=3, grain=11)
    plain, turned = (
        DenseSurf().extract(image).map.features[0] for image in (photo, photo.flip(-1, -2).contiguous())
    )
    inner = slice(10, -10)  # windows that reach beyond the image see its border
    return float((turned - plain.flip(-1, -2))[:, inner, inner].square().sum(dim=0).median())


@needs_mahotas
def test_descriptors_are_centred_on_their_cells() -> None:
    centred, *beside = (turn_error(side) for side in (125, 124, 126))
    assert centred < 0.5 * min(beside)


@needs_mahotas
def test_shifted_image_shifts_the_matches() -> None:
    photo = make_photo(112, 136, seed=1, grain=9)
    views = photo[:, :96, :120].contiguous(), photo[:, 8:104, 12:132].contiguous()
    features0, features1 = (DenseSurf(scale=2).extract(view) for view in views)
    asked = torch.tensor([[60.0, 48.0], [71.0, 50.0], [54.0, 57.0], [66.5, 52.25]])
    found = find_points(features0, features1, asked, (0, 0, 120, 96), use_refinement=True)
    assert torch.allclose(found, asked - torch.tensor([12.0, 8.0]), atol=0.5)


@needs_mahotas
@pytest.mark.parametrize("size_hw", [(32, 32), (33, 47)])
def test_every_cell_has_a_descriptor_of_unit_length(size_hw: tuple[int, int]) -> None:
    found = DenseSurf().extract(make_photo(*size_hw, seed=2, grain=6)).map
    assert found.grid_hw == count_cells(size_hw)
    assert found.features.shape[1] == 64
    assert torch.allclose(found.features.norm(dim=1), torch.ones(1, *found.grid_hw), atol=1e-5)
    blank = DenseSurf().extract(torch.full((3, *size_hw), 0.5)).map.features
    assert torch.isfinite(blank).all()


@needs_mahotas
def test_the_method() -> None:
    (method,) = METHODS.load_dense(["surf"]).methods
    assert method.key["surf"] == {"scale": 4}
    assert "20 px" in method.title


def test_without_mahotas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'ucn[baselines]'" in METHODS.load_dense(["surf"]).skipped["surf"]
    for extractor in (DenseSurf(), SurfKeypoints()):
        with pytest.raises(ConfigError, match="needs mahotas"):
            extractor.extract(torch.zeros(3, 40, 40))


@needs_mahotas
def test_keypoints_are_found_again() -> None:
    photo = make_photo(230, 260, seed=5, grain=9)
    views = photo[:, :210, :240].contiguous(), photo[:, 9:219, 14:254].contiguous()
    keypoints0, keypoints1 = (SurfKeypoints().extract(view) for view in views)
    assert keypoints0.descriptors.shape == (len(keypoints0.points), 64)
    matches = match_keypoints(keypoints0, keypoints1)
    errors = (matches.points0 - matches.points1 - torch.tensor([14.0, 9.0])).norm(dim=1)
    assert len(errors) > 20
    assert (errors < 1).float().mean() > 0.8


@needs_mahotas
def test_no_keypoints() -> None:
    found = SurfKeypoints().extract(torch.full((3, 64, 64), 0.5))
    assert found.points.shape == (0, 2)
    assert found.descriptors.shape == (0, 64)
    assert 0 < len(SurfKeypoints(max_count=5).extract(make_photo(230, 260, seed=5, grain=9)).points) <= 5


@needs_mahotas
def test_descriptors_at_given_points() -> None:
    photo = make_photo(60, 64, seed=4, grain=8)
    points = np.array([[22.0, 30.0], [2.0, 2.0]], np.float32)
    found = DenseSurf().compute_at(to_grey(photo), points)
    dense = DenseSurf().extract(photo).map.features[0]
    assert np.allclose(found, dense[:, [7, 0], [5, 0]].t().numpy(), atol=1e-6)
    assert DenseSurf().compute_at(to_grey(photo), points[:0]).shape == (0, 64)
