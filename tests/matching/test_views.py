"""Views of other scales and rotations: where points lie in them, what is estimated, and what is matched."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import MatchConfig
from ucn.data.example import example_pair
from ucn.data.io import read_image
from ucn.geometry.sampling import sample_image
from ucn.matching import views
from ucn.matching.consensus import Consensus
from ucn.matching.matcher import Matcher
from ucn.matching.views import Similarity, change_view, estimate_similarity
from ucn.types import FeatureMap, Features


def smooth_image(h: int, w: int) -> Tensor:
    coarse = torch.rand(1, 3, 3, 4, generator=torch.Generator().manual_seed(2))
    return F.interpolate(coarse, (h, w), mode="bicubic", align_corners=False).clamp(0, 1)[0]


@pytest.mark.parametrize("degrees", [0.0, 90.0, 180.0, -90.0, 30.0])
@pytest.mark.parametrize(("scale", "box"), [(1.0, None), (0.5, None), (2.0, (20.0, 10.0, 69.0, 59.0))])
def test_a_view_shows_the_image_where_its_matrix_maps_it(
    degrees: float, scale: float, box: tuple[float, float, float, float] | None
) -> None:
    image = smooth_image(72, 96)
    view, matrix = change_view(image, scale, degrees, box)
    points = torch.tensor([[40.0, 30.0], [33.0, 41.0], [60.0, 50.0]])
    placed = points @ matrix[:, :2].mT + matrix[:, 2]
    there = sample_image(view[None], placed[None, :, None], "border")[0, :, :, 0]
    here = sample_image(image[None], points[None, :, None], "border")[0, :, :, 0]
    torch.testing.assert_close(there, here, atol=0.01, rtol=0)
    # A rotation of the image by `degrees` is undone: x of the image then lies at -degrees.
    angle = math.degrees(math.atan2(float(matrix[1, 0]), float(matrix[0, 0])))
    assert (angle + degrees + 180) % 360 - 180 == pytest.approx(0, abs=0.01)


def test_quarter_turns_are_exact() -> None:
    image = torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(0))
    view, matrix = change_view(image, 1.0, 90.0)
    assert view.shape == (3, 50, 40)
    # x' = y and y' = W - 1 - x.
    torch.testing.assert_close(matrix, torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 49.0]]))
    assert torch.equal(view[:, 49 - 7, 3], image[:, 3, 7])


def test_views_keep_the_least_side() -> None:
    assert change_view(torch.rand(3, 40, 64), 0.25, 0.0)[0].shape == (3, 32, 51)
    view, matrix = change_view(torch.rand(3, 40, 64), 1.0, 0.0, (60.0, 38.0, 63.0, 39.0))
    assert view.shape == (3, 32, 32)
    torch.testing.assert_close(matrix[:, 2], torch.tensor([-32.0, -8.0]))


def make_consensus(scale: float, degrees: float, shift: tuple[float, float], noise: float = 0.0) -> Consensus:
    """Support of 1 where a similarity maps cells to cells; some cells support others at random."""
    h, w = 16, 20
    angle = math.radians(degrees)
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    moved = scale * complex(math.cos(angle), math.sin(angle)) * torch.complex(columns.float(), rows.float())
    x, y = (moved.real + shift[0]).round().long(), (moved.imag + shift[1]).round().long()
    generator = torch.Generator().manual_seed(1)
    is_random = torch.rand(h, w, generator=generator) < noise
    x = torch.where(is_random, torch.randint(w, (h, w), generator=generator), x)
    y = torch.where(is_random, torch.randint(h, (h, w), generator=generator), y)
    is_inside = (x >= 0) & (x < w) & (y >= 0) & (y < h)
    support = torch.zeros(h, w, h, w)
    support[rows[is_inside], columns[is_inside], y[is_inside], x[is_inside]] = 1.0
    return Consensus(support, cells=4, stride=4, offset=2.0)


@pytest.mark.parametrize(
    ("scale", "degrees", "shift"),
    [(1.0, 0.0, (0.0, 0.0)), (2.0, 0.0, (-6.0, -9.0)), (0.5, 0.0, (3.0, 2.0)), (1.0, 90.0, (17.0, 0.0)),
     (1.0, 180.0, (19.0, 15.0)), (1.0, -45.0, (0.0, 8.0))],
)  # fmt: skip
def test_the_similarity_of_cells_is_found(scale: float, degrees: float, shift: tuple[float, float]) -> None:
    found = estimate_similarity(make_consensus(scale, degrees, shift, noise=0.3))
    assert found.scale == pytest.approx(scale, rel=0.05 if scale == 1 else 0.35)  # steps are whole cells
    assert abs((found.degrees - degrees + 180) % 360 - 180) < 6
    # Coarse cell 0 is centred at pixel 8, and cells are 16 px apart.
    origin = torch.tensor([8.0, 8.0])
    expected = torch.tensor([16 * shift[0] + 8, 16 * shift[1] + 8])
    placed = found.linear @ origin + torch.tensor(found.shift)
    if scale == 1:
        assert (placed - expected).norm() < 24  # one and a half cells


def test_nothing_agrees_on_nothing() -> None:
    support = torch.zeros(6, 6, 6, 6)
    assert estimate_similarity(Consensus(support, 4, 4, 2.0)) == Similarity()
    assert estimate_similarity(Consensus(torch.ones(1, 1, 1, 1), 4, 4, 2.0)) == Similarity()
    everywhere = estimate_similarity(Consensus(torch.ones(6, 6, 6, 6), 4, 4, 2.0))
    assert everywhere.agreement == 0  # a blank image: all cells match cell 0
    random = estimate_similarity(make_consensus(1.0, 0.0, (0.0, 0.0), noise=1.0))
    assert random.agreement < views.MIN_AGREEMENT


def test_points_go_to_views_and_back() -> None:
    image = smooth_image(64, 80)
    view, matrix = change_view(image, 0.5, 90.0)
    feature_map = FeatureMap(torch.zeros(1, 2, 10, 8), 4, 2.0, (view.shape[1], view.shape[2]))
    pixels = (image * 255).to(torch.uint8)
    features = Features(feature_map, (128, 160), torch.zeros(0, 2), image=pixels, view=matrix)
    points = torch.tensor([[10.0, 20.0], [150.0, 100.0], [math.nan, math.nan]])
    there = views.to_encoded(points, features)
    torch.testing.assert_close(views.to_caller(there, features), points, equal_nan=True, atol=1e-4, rtol=0)
    is_used = views.cells_in_mask(features, None)
    assert is_used is not None and is_used.all()  # a quarter turn leaves no corners
    turned, matrix = change_view(image, 1.0, 45.0)
    h, w = turned.shape[1] // 4, turned.shape[2] // 4
    feature_map = FeatureMap(torch.zeros(1, 2, h, w), 4, 2.0, (turned.shape[1], turned.shape[2]))
    features = Features(feature_map, (64, 80), torch.zeros(0, 2), image=pixels, view=matrix)
    is_used = views.cells_in_mask(features, None)
    assert is_used is not None and not is_used.view(h, w)[0, 0] and is_used.view(h, w)[h // 2, w // 2]


@pytest.fixture(scope="module")
def lite() -> Matcher:
    return Matcher.from_pretrained("geometric-lite", config=MatchConfig(max_side=480))


@pytest.fixture(scope="module")
def photograph() -> Tensor:
    pixels = read_image(example_pair().image0_path)[None]
    return F.interpolate(pixels, (320, 480), mode="bilinear", antialias=True, align_corners=False).clamp(
        0, 1
    )[0]


def test_an_ordinary_pair_is_not_encoded_again(lite: Matcher) -> None:
    pair = example_pair()
    change = lite.match(pair.image0_path, pair.image1_path).view_change
    assert change is not None and change.encodings == 0 and not change.is_searched
    assert change.scale == pytest.approx(1, rel=0.05) and abs(change.degrees) < 3


@pytest.mark.slow
@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_a_rotated_image_is_matched(lite: Matcher, photograph: Tensor, quarter: int) -> None:
    turned = torch.rot90(photograph, quarter, dims=(1, 2)).contiguous()
    points = np.array([[100.0, 80.0], [240.0, 160.0], [400.0, 250.0]], np.float32)
    found = lite.match(photograph, turned, points=points)
    x, y = points.T
    expected = {1: (y, 479 - x), 2: (479 - x, 319 - y), 3: (319 - y, x)}[quarter]
    assert np.abs(found.points1 - np.stack(expected, axis=1)).max() < 0.6
    assert found.is_mutual.all() and found.pair_score > 0.9
    assert lite.with_config(MatchConfig(use_views=False)).match(photograph, turned).view_change is None


@pytest.mark.slow
def test_a_small_copy_is_matched(lite: Matcher, photograph: Tensor) -> None:
    small = F.interpolate(photograph[None], scale_factor=1 / 3, mode="bilinear", antialias=True)[0].clamp(
        0, 1
    )
    for image0, image1, factor in ((photograph, small, 1 / 3), (small, photograph, 3.0)):
        found = lite.match(image0, image1)
        errors = np.linalg.norm(found.points1 - ((found.points0 + 0.5) * factor - 0.5), axis=1)
        assert len(found) > 200 and (errors <= 3 * max(1, factor)).mean() > 0.9
        assert found.pair_score > 0.9
        change = found.view_change
        assert change is not None and change.scale == pytest.approx(factor, rel=0.3)


def test_without_pixels_no_view_is_encoded(lite: Matcher, photograph: Tensor) -> None:
    turned = torch.rot90(photograph, 2, dims=(1, 2)).contiguous()
    features0, features1 = (replace(lite.extract(image), image=None) for image in (photograph, turned))
    change = lite.match_features(features0, features1).view_change
    assert change is not None and change.encodings == 0


def test_small_images_are_matched_as_they_are(lite: Matcher, photograph: Tensor) -> None:
    small = F.interpolate(photograph[None], (160, 240), mode="bilinear", antialias=True)[0].clamp(0, 1)
    turned = torch.rot90(small, 2, dims=(1, 2)).contiguous()
    change = lite.match(small, turned).view_change
    assert change is not None and change.encodings == 0


def test_a_mask_beyond_the_view_leaves_nothing_to_match(lite: Matcher, photograph: Tensor) -> None:
    crop = F.interpolate(photograph[None, :, 80:200, 120:280], scale_factor=3, mode="bicubic")[0].clamp(0, 1)
    features0, features1 = lite.extract(crop), lite.extract(photograph)
    context = lite.pair_context(features0, features1)
    assert context.views.features1.view is not None
    mask = np.zeros((320, 480), bool)
    mask[:20, :20] = True
    points = [[100.0, 100.0], [300.0, 200.0]]
    found = lite.match_features(features0, features1, points=points, mask1=mask, context=context)
    assert np.isnan(found.points1).all() and (found.scores == 0).all()


def test_no_view_is_searched_for_an_empty_mask(lite: Matcher, photograph: Tensor) -> None:
    found = lite.match(photograph, photograph, mask0=np.zeros(photograph.shape[1:]))
    assert (len(found), found.view_change) == (0, None)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_search_keeps_masks_with_their_images(
    lite: Matcher, photograph: Tensor, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = F.interpolate(photograph[None], scale_factor=1 / 3, mode="bilinear", antialias=True)
    images = [photograph, torch.rot90(small[0], 1, dims=(1, 2)).clamp(0, 1).contiguous()]
    from ucn.matching import matcher as module

    used = []

    def spy(features: Features, use: Tensor | None) -> Tensor | None:
        used.append(use is None or tuple(use.shape) == features.image_hw)
        return views.cells_in_mask(features, use)

    monkeypatch.setattr(module, "cells_in_mask", spy)
    image0, image1 = images if is_first else images[::-1]
    mask0, mask1 = (np.ones(tuple(image.shape[-2:]), bool) for image in (image0, image1))
    found = lite.match(image0, image1, mask0=mask0, mask1=mask1)
    assert all(used) and found.view_change is not None
