import numpy as np
import pytest
import torch
import torch.nn.functional as F

from support.batch_cases import make_texture
from ucn.errors import ConfigError
from ucn.folders.detectors import (
    DETECTORS,
    MIN_DISTANCE,
    PIXEL_DETECTORS,
    detect_keypoints,
    suppress_close_points,
)
from ucn.matching.keypoints import refine_peaks
from ucn.types import FeatureMap


def make_image(hw: tuple[int, int] = (60, 84), seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(make_texture(hw, seed)).permute(2, 0, 1) / 255


def make_map(hw: tuple[int, int], seed: int = 0) -> FeatureMap:
    generator = torch.Generator().manual_seed(seed)
    features = F.normalize(torch.randn(1, 16, hw[0] // 4, hw[1] // 4, generator=generator), dim=1)
    return FeatureMap(features, 4, 2, hw)


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector(name: str) -> None:
    image = make_image()
    found = detect_keypoints(name, image, make_map((60, 84)), 30)
    again = detect_keypoints(name, image, make_map((60, 84)), 30)
    assert found.points.shape == (len(found.scores), 2)
    assert 10 < len(found.points) <= 30
    assert found.points.dtype == found.scores.dtype == np.float32
    assert (np.diff(found.scores) <= 0).all()
    assert found.scores[0] == 1
    assert found.scores.min() > 0
    assert (found.points >= -0.5).all()
    assert (found.points <= [83.5, 59.5]).all()
    np.testing.assert_array_equal(found.points, again.points)


@pytest.mark.parametrize("name", ["corners", "blobs"])
def test_blank_image_has_no_keypoints(name: str) -> None:
    found = detect_keypoints(name, torch.full((3, 40, 50), 0.5), make_map((40, 50)), 30)
    assert found.points.shape == (0, 2)
    assert found.scores.shape == (0,)


@pytest.mark.parametrize("name", ["corners", "blobs"])
def test_keypoints_follow_a_shift_of_the_image(name: str) -> None:
    """Found again, to a part of a pixel, 8 px to the left and 4 px up."""
    wide = make_image((100, 140))
    crops = [wide[:, 4 * i : 84 + 4 * i, 8 * i : 120 + 8 * i].contiguous() for i in range(2)]
    first, second = (detect_keypoints(name, crop, make_map((84, 120)), 500).points for crop in crops)
    inside = first[((first > [20, 16]) & (first < [110, 76])).all(axis=1)] - [8, 4]
    nearest = np.linalg.norm(inside[:, None] - second, axis=2).min(axis=1)
    assert len(inside) > 20
    assert np.median(nearest) < 0.15
    assert (nearest < 1).mean() > 0.7


def test_keypoints_are_apart() -> None:
    for name in ("corners", "blobs"):
        points = detect_keypoints(name, make_image((90, 90)), make_map((90, 90)), 500).points
        distances = np.linalg.norm(points[:, None] - points, axis=2) + 1e9 * np.eye(len(points))
        assert distances.min() > MIN_DISTANCE - 2.9  # each may move by a pixel and its diagonal when refined


def test_top_of_a_quadric_is_found_exactly() -> None:
    y, x = np.mgrid[0:9, 0:11].astype(np.float64)
    top = np.array([4.3, 5.8])
    response = 7 - 2 * (x - top[0]) ** 2 - 0.5 * (y - top[1]) ** 2 + 0.4 * (x - top[0]) * (y - top[1])
    np.testing.assert_allclose(refine_peaks(response, np.array([[4.0, 6.0]])), [top], atol=1e-9)


def test_points_without_a_top_stay() -> None:
    y, x = np.mgrid[0:9, 0:11].astype(np.float64)
    points = np.array([[4.0, 6.0], [0.0, 0.0], [10.0, 8.0]])
    for response in (x + y, x**2 - y**2, x**2 + y**2, np.zeros((9, 11)), -((x - 9) ** 2) - y**2):
        np.testing.assert_array_equal(refine_peaks(response, points), points)
    assert refine_peaks(np.zeros((9, 11)), np.zeros((0, 2))).shape == (0, 2)


def test_suppress_close_points_is_the_slow_rule() -> None:
    points = np.random.default_rng(0).uniform(0, 30, (80, 2))
    kept: list[int] = []
    for row, point in enumerate(points):
        if all(np.linalg.norm(point - points[other]) >= 4 for other in kept):
            kept.append(row)
    assert suppress_close_points(points, 4.0).tolist() == kept
    assert suppress_close_points(np.zeros((0, 2)), 4.0).tolist() == []
    assert suppress_close_points(np.array([[0.0, 0], [4, 0], [4, 3.9]]), 4.0).tolist() == [
        0,
        1,
    ]  # 4 apart is apart


def test_features_peak_at_sub_cell_positions() -> None:
    """A descriptor unlike all others is a keypoint, at the pixel of its cell."""
    features = torch.zeros(1, 3, 9, 9)
    features[0, 0] = 1
    features[0, :, 4, 6] = torch.tensor([0.0, 1.0, 0.0])
    found = detect_keypoints("features", torch.rand(3, 36, 36), FeatureMap(features, 4, 2, (36, 36)), 1)
    np.testing.assert_allclose(found.points, [[26, 18]], atol=1e-4)


def test_unknown_detector() -> None:
    with pytest.raises(ConfigError, match=r"no detector 'fast' \(there are corners"):
        detect_keypoints("fast", make_image(), make_map((60, 84)), 3)


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_of_pixels_need_no_map(name: str) -> None:
    image = make_image()
    if name not in PIXEL_DETECTORS:
        with pytest.raises(ValueError, match="give one"):
            detect_keypoints(name, image, None, 30)
        return
    with_map = detect_keypoints(name, image, make_map((60, 84)), 30)
    np.testing.assert_array_equal(detect_keypoints(name, image, None, 30).points, with_map.points)
