"""Panoramas of views whose homographies are known."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray

from support.stitch_cases import KnownMatcher, Pixels, read_coffee, take_view, tilt, transfer, view_corners
from ucn import Matcher
from ucn.errors import DataError, ImageReadError
from ucn.matching.stitching import Panorama, stitch
from ucn.types import Matches

Array = NDArray[np.float64]
MAPS = [tilt(10, 20), tilt(70, 40, 0.03), tilt(120, 60, -0.03, 2e-4), tilt(170, 30, 0.02, -2e-4)]


@pytest.fixture(scope="module")
def views() -> list[tuple[Pixels, Array]]:
    picture = read_coffee()
    return [(take_view(picture, H, gain), H) for H, gain in zip(MAPS, (1, 0.9, 1.1, 1), strict=True)]


def measure(made: Panorama, views: list[tuple[Pixels, Array]]) -> float:
    """The largest error of the images' corners in the frame of the reference, in pixels."""
    errors = [0.0]
    for index, (_, to_picture) in enumerate(views):
        true = transfer(np.linalg.inv(views[made.reference][1]) @ to_picture, view_corners())
        to_reference = np.linalg.inv(made.homographies[made.reference]) @ made.homographies[index]
        errors.append(float(np.linalg.norm(transfer(to_reference, view_corners()) - true, axis=1).max()))
    return max(errors)


def test_geometry_and_picture(views: list[tuple[Pixels, Array]]) -> None:
    stages: list[str] = []
    made = stitch(
        KnownMatcher(views), [view for view, _ in views], progress=lambda what, *_: stages.append(what)
    )
    assert list(dict.fromkeys(stages)) == ["encoding", "matching", "finding seams", "blending"]
    assert made.reference in (1, 2)
    assert made.left_out == ()
    assert made.scale == 1
    assert measure(made, views) < 1
    assert made.median_error < 0.5
    assert len(made.pairs) == 6
    connected = {frozenset((pair.image0, pair.image1)) for pair in made.pairs if not pair.failure}
    assert connected >= {frozenset((index, index + 1)) for index in range(3)}
    np.testing.assert_allclose(made.homographies[:, 2, 2], 1)
    np.testing.assert_allclose(made.gains / made.gains[0], [1, 1 / 0.9, 1 / 1.1, 1], rtol=0.06)
    assert made.canvas.shape[:2] == made.is_covered.shape
    to_picture = views[made.reference][1] @ np.linalg.inv(made.homographies[made.reference])
    size = made.is_covered.shape[::-1]
    true = cv2.warpPerspective(read_coffee(), to_picture, size, flags=cv2.WARP_INVERSE_MAP)
    inner = cv2.erode(made.is_covered.astype(np.uint8), np.ones((7, 7))) > 0
    ratio = made.canvas[inner].mean() / true[inner].mean()
    assert 0.85 < ratio < 1.15
    assert np.abs(made.canvas[inner] / ratio - true[inner]).mean() < 6


def test_order_does_not_matter(views: list[tuple[Pixels, Array]]) -> None:
    matcher = KnownMatcher(views)
    images = [view for view, _ in views]
    order = [2, 0, 3, 1]
    one, two = stitch(matcher, images), stitch(matcher, [images[index] for index in order])
    np.testing.assert_array_equal(one.canvas, two.canvas)
    np.testing.assert_array_equal(one.homographies[order], two.homographies)
    np.testing.assert_array_equal(one.gains[order], two.gains)
    assert order[two.reference] == one.reference


def test_an_image_of_something_else_is_left_out(views: list[tuple[Pixels, Array]]) -> None:
    other = np.random.default_rng(5).integers(0, 255, (90, 120, 3), dtype=np.uint8)
    images = [views[0][0], other, views[1][0]]
    made = stitch(KnownMatcher(views), images)
    assert made.left_out == (1,)
    assert np.isnan(made.homographies[1]).all() and np.isnan(made.gains[1])
    assert made.homographies[2, 0, 2] != made.homographies[0, 0, 2]
    pair = made.best_pair(1)
    assert 1 in (pair.image0, pair.image1)
    assert (pair.pair_score, pair.inliers) == (0.1, 0)
    assert "at least 15 are needed" in pair.failure


def test_two_unrelated_images(views: list[tuple[Pixels, Array]], tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        PIL.Image.fromarray(rng.integers(0, 255, (90, 120, 3), dtype=np.uint8)).save(path)
    with pytest.raises(DataError, match=r"no homography connects any two images \(.*\.png: pair score 0\.10"):
        stitch(KnownMatcher(views), paths)


def test_few_inliers_among_many_matches_are_chance(views: list[tuple[Pixels, Array]]) -> None:
    class HalfWrong(KnownMatcher):
        """Of the matches of a pair, only the first 30 are right."""

        def match_features(self, features0: Any, features1: Any) -> Matches:
            found = super().match_features(features0, features1)
            found.points1[30:] = np.random.default_rng(0).uniform(0, 90, found.points1[30:].shape)
            return found

    with pytest.raises(DataError, match=r"\d+ of \d+ matches agree; at least \d+ are needed"):
        stitch(HalfWrong(views), [view for view, _ in views[:2]])


def test_a_small_canvas(views: list[tuple[Pixels, Array]]) -> None:
    made = stitch(KnownMatcher(views), [view for view, _ in views[:3]], max_megapixels=0.005, use_gains=False)
    assert made.scale < 0.6
    assert made.canvas.shape[0] * made.canvas.shape[1] < 5600
    assert made.gains.tolist() == [1, 1, 1]
    assert measure(made, views[:3]) < 1


def test_views_that_no_plane_can_show() -> None:
    picture = read_coffee()
    maps = [tilt(60, 40), tilt(90, 40, depth=0.0085)]
    views = [(take_view(picture, H), H) for H in maps]
    with pytest.raises(DataError, match="the views span too wide an angle for one plane"):
        stitch(KnownMatcher(views, noise=0), [view for view, _ in views], min_inliers=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_megapixels": 0.0}, "max_megapixels must be above 0 and at most 900, got 0"),
        ({"max_megapixels": 1e6}, "max_megapixels must be above 0 and at most 900"),
        ({"threshold": 0.0}, "threshold must be above 0"),
        ({"min_inliers": 3}, "min_inliers must be at least 4, got 3"),
    ],
)
def test_wrong_numbers(views: list[tuple[Pixels, Array]], options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stitch(KnownMatcher(views), [view for view, _ in views[:2]], **options)  # type: ignore[arg-type]


def test_one_image_is_not_enough(views: list[tuple[Pixels, Array]]) -> None:
    with pytest.raises(ValueError, match="images must be at least two, got 1"):
        stitch(KnownMatcher(views), [views[0][0]])
    with pytest.raises(ImageReadError, match="no such file"):
        stitch(KnownMatcher(views), ["missing.png", views[0][0]])


@pytest.mark.slow
def test_real_matcher() -> None:
    picture = read_coffee(600)
    grow = np.diag([2.0, 2, 1])  # views of twice the size
    maps = [
        grow @ H @ np.linalg.inv(grow) for H in (tilt(20, 30), tilt(80, 50, 0.02), tilt(140, 70, -0.02, 1e-4))
    ]
    gains = (1.0, 0.9, 1.1)
    views = [(take_view(picture, H, gain, (180, 240)), H) for H, gain in zip(maps, gains, strict=True)]
    made = stitch(Matcher.from_pretrained("geometric"), [view for view, _ in views])
    assert made.left_out == ()
    assert measure(made, views) < 1
