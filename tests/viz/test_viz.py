import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ucn import viz
from ucn.types import Flow, Matches
from ucn.viz import colours
from ucn.viz.canvas import spread_evenly

BLACK = np.zeros((60, 80, 3), np.uint8)
VERMILION, BLUE, GREY = (213, 94, 0), (86, 180, 233), (150, 150, 150)


def make_matches(points0: list[tuple[float, float]], points1: list[tuple[float, float]]) -> Matches:
    count = len(points0)
    return Matches(
        np.array(points0, np.float32).reshape(-1, 2),
        np.array(points1, np.float32).reshape(-1, 2),
        np.linspace(0, 1, count, dtype=np.float32),
        np.ones(count, np.bool_),
        0.9,
        (60, 80),
        (60, 80),
    )


def random_matches(count: int) -> Matches:
    points = np.random.default_rng(0).uniform(0, 59, (count, 2)).astype(np.float32)
    return make_matches(points.tolist(), (points + 1).tolist())


def has_colour(image: NDArray[np.uint8], colour: tuple[int, int, int], tolerance: int = 12) -> bool:
    difference = np.abs(image.astype(int) - colour).max(axis=-1)
    return bool((difference <= tolerance).any())


class TestDrawMatches:
    @pytest.mark.parametrize("count", [0, 1, 2000])
    def test_shape(self, count: int) -> None:
        image = viz.draw_matches(BLACK, BLACK, random_matches(count), width=640)
        assert image.dtype == np.uint8
        assert image.shape[1:] == (640, 3)
        assert 230 < image.shape[0] < 320

    def test_images_of_other_sizes_and_kinds(self) -> None:
        image = viz.draw_matches(torch.zeros(3, 200, 50), BLACK[..., 0], random_matches(3), width=400)
        assert image.shape[1] == 400

    def test_inputs_are_not_drawn_on(self) -> None:
        image = BLACK.copy()
        viz.draw_matches(image, image, random_matches(5), width=200)
        assert not image.any()

    def test_errors_choose_the_colours(self) -> None:
        matches = make_matches([(20, 20), (40, 40), (60, 10)], [(20, 20), (40, 40), (60, 10)])
        canvas = 220  # rows above the caption, which shows the colours too
        errors = np.array([0, 100, np.nan], np.float32)
        image = viz.draw_matches(BLACK, BLACK, matches, errors=errors, width=640)[:canvas]
        assert has_colour(image, BLUE)
        assert has_colour(image, VERMILION)
        assert has_colour(image, GREY)
        good = viz.draw_matches(BLACK, BLACK, matches, errors=np.zeros(3, np.float32), width=640)[:canvas]
        assert not has_colour(good, VERMILION)
        assert not has_colour(good, GREY)

    def test_inliers_are_told_from_outliers(self) -> None:
        matches = make_matches([(20, 20), (40, 40)], [(20, 20), (40, 40)])
        errors = np.array([0, np.inf], np.float32)
        is_inlier = np.array([True, False])
        image = viz.draw_matches(BLACK, BLACK, matches, errors=errors, is_inlier=is_inlier, width=640)[:220]
        assert has_colour(image, BLUE)
        assert has_colour(image, GREY)
        assert not has_colour(image, VERMILION)
        with pytest.raises(ValueError, match=r"is_inlier must be \(2,\) as the matches"):
            viz.draw_matches(BLACK, BLACK, matches, is_inlier=is_inlier[:1])

    def test_dot_lies_on_its_pixel(self) -> None:
        matches = make_matches([(79, 59)], [(0, 0)])
        errors = np.zeros(1, np.float32)
        image = viz.draw_matches(BLACK, BLACK, matches, errors=errors, width=640 + 8, max_lines=0)
        # Each view is 320 px wide, so the last pixel's centre of 80 falls at 318.
        rows, columns = np.nonzero((np.abs(image[:240].astype(int) - BLUE) < 30).all(axis=-1))
        assert len(rows) > 4
        left = columns < 322
        assert abs(columns[left].mean() - 318) < 1.5
        assert columns[~left].min() >= 326

    def test_nan_points_are_left_out(self) -> None:
        matches = make_matches([(20, 20), (40, 40)], [(np.nan, np.nan), (40, 40)])
        errors = np.array([100, 0], np.float32)
        assert not has_colour(
            viz.draw_matches(BLACK, BLACK, matches, errors=errors, width=640)[:220], VERMILION
        )

    def test_wrong_errors(self) -> None:
        with pytest.raises(ValueError, match=r"errors must be \(3,\) as the matches, got \(2,\)"):
            viz.draw_matches(BLACK, BLACK, random_matches(3), errors=np.zeros(2, np.float32))

    def test_lines_are_spread_over_the_image(self) -> None:
        crowd = np.random.default_rng(0).uniform(0, 10, (1000, 2))
        few = np.random.default_rng(1).uniform(0, 100, (50, 2))
        chosen = spread_evenly(np.concatenate([crowd, few]).astype(np.float32), 60)
        assert len(set(chosen.tolist())) == 60
        assert (chosen >= 1000).sum() > 25

    def test_dense_points_are_shown_down_to_the_last_rows(self) -> None:
        y, x = np.mgrid[0:75, 0:100]
        dense = np.stack([x.ravel(), y.ravel()], axis=-1).astype(np.float32)
        for count in (1, 7, 300, 301):
            chosen = spread_evenly(dense, count)
            assert len(set(chosen.tolist())) == count
        quarters = np.histogram(dense[spread_evenly(dense, 300)][:, 1], bins=4, range=(0, 75))[0]
        assert quarters.min() > 55 and quarters.max() < 95
        assert len(spread_evenly(dense, 0)) == 0


class TestDrawPoints:
    @pytest.mark.parametrize("count", [0, 1, 60, 61, 500])
    def test_shape(self, count: int) -> None:
        assert viz.draw_points(BLACK, BLACK, random_matches(count), width=640).shape[1:] == (640, 3)

    def test_same_colour_in_both_views(self) -> None:
        image = viz.draw_points(BLACK, BLACK, make_matches([(20, 30)], [(60, 30)]), width=640)[:220]
        first_of_okabe_ito = (230, 159, 0)
        assert has_colour(image[:, :316], first_of_okabe_ito)
        assert has_colour(image[:, 332:], first_of_okabe_ito)

    def test_unanswered_points_are_in_the_first_view_only(self) -> None:
        image = viz.draw_points(BLACK, BLACK, make_matches([(20, 30)], [(np.nan, np.nan)]), width=640)[:220]
        assert image[:, :316].any()
        assert not image[:, 332:].any()


class TestFlow:
    def test_known_colours(self) -> None:
        # Right is red, left the wheel's middle (cyan to blue), at rest white, unknown black.
        flow = np.array([[[1, 0], [0, 0], [np.nan, 0], [-1, 0], [2, 0]]], np.float32)
        right, rest, unknown, left, beyond = viz.flow_colours(flow, 1.0)[0].tolist()
        assert right == [255, 0, 0]
        assert rest == [255, 255, 255]
        assert unknown == [0, 0, 0]
        assert left == [0, 209, 255]
        assert beyond == [191, 0, 0]

    def test_saturation_grows_with_length(self) -> None:
        flow = np.array([[[0.5, 0], [1, 0]]], np.float32)
        assert viz.flow_colours(flow).tolist() == [[[255, 127, 127], [255, 0, 0]]]

    def test_wheel_has_55_hues(self) -> None:
        wheel = colours._colour_wheel()
        assert wheel.shape == (55, 3)
        assert (wheel.max(axis=1) == 1).all()
        assert (wheel.min(axis=1) == 0).all()
        np.testing.assert_allclose(wheel[[0, 15, 21, 25, 36, 49]], np.array(
            [(1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 1)]))  # fmt: skip

    def test_draw_flow(self) -> None:
        flow = Flow(np.ones((60, 80, 2), np.float32), np.ones((60, 80), np.float32))
        alone = viz.draw_flow(flow, width=320)
        assert alone.shape == (240 + 64, 320, 3)
        assert viz.draw_flow(flow, BLACK, width=640).shape[1:] == (640, 3)
        assert (alone[100, 100] == alone[120, 200]).all()

    def test_no_confidence_is_grey(self) -> None:
        flow = Flow(np.full((60, 80, 2), np.nan, np.float32), np.zeros((60, 80), np.float32))
        assert viz.draw_flow(flow, width=320)[100, 100].tolist() == [128, 128, 128]
