"""A canvas by hand, and pictures that are cut up and put together again."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from support.stitch_cases import Pixels, read_coffee, take_view, tilt
from ucn.errors import DataError
from ucn.matching.mosaic import blend_images, find_gains, plan_canvas, reduce_for_warp, warp_to_box

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def shift(x: float, y: float) -> Array:
    return np.array([[1.0, 0, x], [0, 1, y], [0, 0, 1]])


class TestCanvas:
    def test_two_shifted_images(self) -> None:
        canvas = plan_canvas(np.stack([shift(0, 0), shift(-5.5, 3)]), [(10, 20), (8, 12)], ["a", "b"], 1e6)
        assert canvas.scale == 1
        assert canvas.size_hw == (11, 26)  # x from -6 to 19, y from 0 to 10
        assert canvas.boxes == ((6, 0, 20, 10), (0, 3, 13, 8))
        np.testing.assert_allclose(canvas.homographies[0], shift(6, 0))
        np.testing.assert_allclose(canvas.homographies[1], shift(0.5, 3))

    def test_a_large_one_is_reduced(self) -> None:
        canvas = plan_canvas(np.stack([shift(0, 0), shift(90, 0)]), [(100, 110)] * 2, ["a", "b"], 5000)
        assert canvas.scale == pytest.approx(0.5)
        height, width = canvas.size_hw
        assert 0.95 * 5000 < height * width < 1.05 * 5000
        np.testing.assert_allclose(canvas.homographies[1] @ [10, 20, 1], [50, 10, 1], atol=1e-9)

    def test_horizon(self) -> None:
        H = np.array([[1.0, 0, 0], [0, 1, 0], [-0.02, 0, 1]])
        with pytest.raises(DataError, match=r"cannot place b\.jpg on the canvas: it would reach the horizon"):
            plan_canvas(np.stack([shift(0, 0), H]), [(100, 100)] * 2, ["a.jpg", "b.jpg"], 1e6)

    def test_mirrored_and_unknown(self) -> None:
        for H in (np.diag([-1.0, 1, 1]), np.full((3, 3), np.nan)):
            with pytest.raises(DataError, match="leave out the outermost images"):
                plan_canvas(H[None], [(100, 100)], ["a"], 1e6)

    def test_huge_stretch(self) -> None:
        H = np.array([[1.0, 0, 0], [0, 1, 0], [-0.009, 0, 1]])
        with pytest.raises(DataError, match=r"a corner would be enlarged \d+ times, at most 8 is allowed"):
            plan_canvas(H[None], [(100, 100)], ["a"], 1e6)


def test_part_of_the_canvas() -> None:
    picture = read_coffee()[:40, :50]
    part, mask = warp_to_box(picture, shift(13, 7), (13, 7, 50, 40))
    np.testing.assert_array_equal(part, picture)
    assert mask.min() == 255
    part, mask = warp_to_box(picture, shift(13, 7), (10, 5, 60, 50))
    np.testing.assert_array_equal(part[2:42, 3:53], picture)
    assert (mask > 0).sum() == 50 * 40


def test_reduction_is_smooth() -> None:
    stripes = np.zeros((240, 320, 3), np.uint8)
    stripes[:, ::2] = 255  # which a reading of single pixels would show as black or white
    reduced, to_reduced = reduce_for_warp(
        stripes, np.array([[4.0, 0, 1.5], [0, 4, 1.5], [0, 0, 1]]), (60, 80)
    )
    assert reduced.shape == (60, 80, 3)
    assert np.abs(reduced.astype(int) - 127).max() <= 1
    np.testing.assert_allclose(to_reduced, np.eye(3), atol=1e-12)
    same, H = reduce_for_warp(stripes, np.eye(3), (240, 320))
    assert same is stripes
    np.testing.assert_array_equal(H, np.eye(3))


def put_together(
    views: list[Pixels], homographies: Array, use_gains: bool = True
) -> tuple[Array, BoolArray, Array]:
    sizes = [(view.shape[0], view.shape[1]) for view in views]
    canvas = plan_canvas(homographies, sizes, ["a", "b", "c"][: len(views)], 1e6)
    pixels, is_covered, gains = blend_images(lambda row: views[row], canvas, sizes, use_gains=use_gains)
    return pixels.astype(np.float64), is_covered, gains


def test_cut_and_put_together() -> None:
    picture = read_coffee()
    pixels, is_covered, gains = put_together(
        [picture[10:150, :160], picture[:190, 120:]], np.stack([shift(0, 0), shift(120, -10)])
    )
    assert pixels.shape == (190, 300, 3)
    np.testing.assert_allclose(gains, 1, atol=1e-3)
    assert is_covered[10:150].all()
    assert not is_covered[160:, :110].any()
    assert not pixels[~is_covered].any()
    difference = np.abs(pixels - picture[:190].astype(np.float64))[is_covered]
    assert difference.mean() < 0.5
    assert np.percentile(difference, 99.9) < 10


def test_seam_of_turned_views_is_invisible() -> None:
    picture = read_coffee()
    maps = np.stack([tilt(20, 30), tilt(90, 50, 0.04, 2e-4)])
    views = [take_view(picture, H) for H in maps]
    canvas = plan_canvas(maps, [(90, 120)] * 2, ["a", "b"], 1e6)
    pixels, is_covered, _ = blend_images(lambda row: views[row], canvas, [(90, 120)] * 2)
    to_picture = maps[0] @ np.linalg.inv(canvas.homographies[0])
    size = canvas.size_hw[::-1]
    true = cv2.warpPerspective(picture, to_picture, size, flags=cv2.WARP_INVERSE_MAP | cv2.INTER_CUBIC)
    inner = cv2.erode(is_covered.astype(np.uint8), np.ones((7, 7))) > 0
    difference = np.abs(pixels.astype(float) - true)[inner]
    assert difference.mean() < 2.5
    assert np.percentile(difference, 99) < 15


def test_gains_make_the_overlap_equally_bright() -> None:
    grey = np.full((40, 60, 3), 100, np.uint8)
    full = np.full((40, 60), 255, np.uint8)
    parts = [(grey, full), ((grey * 1.5).astype(np.uint8), full)]
    boxes = [(0, 0, 60, 40), (30, 0, 60, 40)]
    gains = find_gains(parts, boxes)
    assert gains[0] / gains[1] == pytest.approx(1.5, rel=0.05)
    pixels, is_covered, used = put_together(
        [part[0] for part in parts], np.stack([shift(0, 0), shift(30, 0)])
    )
    assert is_covered.all()
    np.testing.assert_allclose(used, gains, rtol=0.02)
    assert np.ptp(pixels) < 8
    plain = put_together([part[0] for part in parts], np.stack([shift(0, 0), shift(30, 0)]), use_gains=False)
    assert plain[2].tolist() == [1, 1]
    assert np.ptp(plain[0]) > 40


def test_one_image_and_progress() -> None:
    stages: list[tuple[str, int, int]] = []
    picture = read_coffee()
    canvas = plan_canvas(shift(0, 0)[None], [(200, 300)], ["a"], 1e6)
    pixels, is_covered, _ = blend_images(
        lambda _: picture, canvas, [(200, 300)], progress=lambda *stage: stages.append(stage)
    )
    assert is_covered.all()
    assert np.abs(pixels.astype(int) - picture).max() <= 2
    assert stages == [("finding seams", 1, 1), ("blending", 1, 1)]
