from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ucn import viz
from ucn.types import Flow, Matches
from ucn.viz import colours
from ucn.viz.canvas import lay_out, spread_evenly
from ucn.viz.caption import ColourScale, add_caption, write_labels
from ucn.viz.matches import _choose_lines

BLACK = np.zeros((60, 80, 3), np.uint8)
VERMILION, BLUE, GREY = (213, 94, 0), (86, 180, 233), (150, 150, 150)


def make_matches(points0: Sequence[tuple[float, float]], points1: Sequence[tuple[float, float]]) -> Matches:
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
        assert has_colour(image, colours.OUTLIER_COLOUR, 30)
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

    @pytest.mark.parametrize("seed", range(5))
    def test_lines_reach_every_part_with_matches(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        crowd = rng.normal([200, 100], 15, (3000, 2))
        few = rng.uniform([0, 0], [800, 600], (25, 2))
        points = np.concatenate([crowd, few]).astype(np.float32)
        corner, extent = points.min(axis=0), np.ptp(points, axis=0)

        def list_parts(some: NDArray[np.float32]) -> set[tuple[int, ...]]:
            return set(map(tuple, np.minimum(4 * (some - corner) / extent, 3).astype(int).tolist()))

        assert list_parts(points[spread_evenly(points, 100)]) == list_parts(points)

    def test_the_first_point_of_a_cell_is_chosen(self) -> None:
        points = np.array([[0, 0], [1, 1], [99, 99], [98, 98], [0, 99], [99, 0]], np.float32)
        assert spread_evenly(points, 4).tolist() == [0, 2, 4, 5]

    def test_dense_points_are_shown_down_to_the_last_rows(self) -> None:
        y, x = np.mgrid[0:75, 0:100]
        dense = np.stack([x.ravel(), y.ravel()], axis=-1).astype(np.float32)
        for count in (1, 7, 300, 301):
            chosen = spread_evenly(dense, count)
            assert len(set(chosen.tolist())) == count
        quarters = np.histogram(dense[spread_evenly(dense, 300)][:, 1], bins=4, range=(0, 75))[0]
        assert quarters.min() > 55 and quarters.max() < 95
        assert len(spread_evenly(dense, 0)) == 0


class TestStyle:
    """What is drawn of matches, in pixels."""

    def test_photographs_are_dimmed_by_a_fifth_at_most(self) -> None:
        photograph = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
        image = viz.draw_matches(photograph, photograph, make_matches([(79, 59)], [(79, 59)]), width=640)
        plain = lay_out(photograph, photograph, 640).canvas
        shown = image[:200, :300].astype(float)
        share = shown.mean() / plain[:200, :300].mean()
        assert 0.8 <= share < 0.95

    def test_no_matches_are_said(self) -> None:
        image = viz.draw_matches(BLACK, BLACK, random_matches(0), width=640)
        assert (image[100:130, 250:390] > 200).any()  # the plate
        assert not viz.draw_matches(BLACK, BLACK, random_matches(1), width=640)[100:130, 310:312].any()

    def test_the_scale_starts_at_the_threshold(self) -> None:
        scores = np.array([0.5, 0.75, 1.0], np.float32)
        np.testing.assert_array_equal(
            colours.score_colours(scores, 0.5), colours.score_colours(np.array([0, 0.5, 1], np.float32))
        )
        assert (
            colours.score_colours(np.array([0.2], np.float32), 0.5) == colours.score_colours(scores, 0.5)[0]
        ).all()

    def test_perfect_scores_are_bright_even_on_a_scale_without_length(self) -> None:
        ones = np.ones(2, np.float32)
        assert (colours.score_colours(ones, 1.0) == colours.score_colours(ones)).all()
        np.testing.assert_allclose(colours.score_shares(np.array([0.2, 1.0], np.float32), 1.0), [0, 1])

    @pytest.mark.parametrize(
        ("lowest", "start"), [(0.5, 0.5), (0.57, 0.5), (0.6, 0.6), (0.04, 0.0), (1.0, 0.9)]
    )
    def test_without_a_threshold_the_scale_starts_below_the_lowest_score(
        self, lowest: float, start: float
    ) -> None:
        matches = replace(random_matches(3), scores=np.array([1, 0.9, lowest], np.float32))
        drawn = viz.draw_matches(BLACK, BLACK, matches, width=640)
        np.testing.assert_array_equal(
            drawn, viz.draw_matches(BLACK, BLACK, matches, width=640, min_score=start)
        )
        assert (drawn != viz.draw_matches(BLACK, BLACK, matches, width=640, min_score=start + 0.05)).any()

    def test_dots_are_small(self) -> None:
        matches = make_matches([(40, 30)], [(40, 30)])
        image = viz.draw_matches(
            BLACK, BLACK, matches, errors=np.zeros(1, np.float32), max_lines=0, width=656
        )
        blue = np.all(np.abs(image[:240, :320].astype(int) - BLUE) < 90, axis=-1)
        assert 2 <= blue.any(axis=0).sum() <= 4
        assert 2 <= blue.any(axis=1).sum() <= 4

    @pytest.mark.parametrize(("lines", "count"), [(0, 0), (1, 1), (2, 2), (9, 3)])
    def test_number_of_lines(self, lines: int, count: int) -> None:
        heights = [(40, 10), (40, 30), (40, 50)]
        image = viz.draw_matches(BLACK, BLACK, make_matches(heights, heights), max_lines=lines, width=656)
        gap = image[:240, 328]
        rows = (gap != 255).any(axis=-1)
        assert int((np.diff(rows.astype(int)) == 1).sum()) == count

    def test_lines_of_low_scores_are_fainter(self) -> None:
        heights = [(40, 10), (40, 50)]
        matches = replace(make_matches(heights, heights), scores=np.array([1.0, 0.5], np.float32))
        image = viz.draw_matches(BLACK, BLACK, matches, min_score=0.5, width=656)[:240, 250].astype(int)
        assert image[:120].max() > 1.5 * image[120:].max() > 0

    def test_neighbouring_lines_differ(self) -> None:
        heights = [(40.0, 2.0 + 2 * row) for row in range(28)]
        matches = replace(make_matches(heights, heights), scores=np.ones(28, np.float32))
        image = viz.draw_matches(BLACK, BLACK, matches, width=656)[:240, 250].astype(int)
        rows = [round((y + 0.5) * 4 - 0.5) for _, y in heights]
        shown = np.array([image[max(row - 2, 0) : row + 3].max(axis=0) for row in rows])
        assert np.abs(np.diff(shown, axis=0)).max(axis=-1).min() > 30

    def test_outliers_are_red_and_below(self) -> None:
        points = [(40, 30)]
        image = viz.draw_matches(
            BLACK, BLACK, make_matches(points, points), is_inlier=np.zeros(1, np.bool_), width=656
        )[:240]
        row = image[120:124, 200:300].reshape(-1, 3).astype(int)
        drawn = row[row.sum(axis=1) > 60]
        assert len(drawn) > 50
        assert (drawn[:, 0] > 1.5 * drawn[:, 2]).all()
        inlier = viz.draw_matches(
            BLACK, BLACK, make_matches(points * 2, points * 2), is_inlier=np.array([False, True]), width=656
        )[:240]
        assert not has_colour(inlier, colours.OUTLIER_COLOUR)

    def test_most_lines_are_of_inliers(self) -> None:
        points = np.random.default_rng(0).uniform(0, 100, (1000, 2)).astype(np.float32)
        for inliers, expected in ((900, 90), (500, 50), (100, 50), (20, 20), (0, 0), (1000, 100)):
            is_inlier = np.arange(1000) < inliers
            chosen = _choose_lines(points, is_inlier, 100)
            assert len(set(chosen.tolist())) == 100
            assert is_inlier[chosen].sum() == expected

    def test_all_colours_of_lines_can_be_told_apart(self) -> None:
        for palette in (colours.LINE_COLOURS, colours.OKABE_ITO):
            values = np.array([*palette, colours.OUTLIER_COLOUR], int)
            distances = np.linalg.norm(values[:, None] - values[None], axis=-1)
            assert (distances + 1000 * np.eye(len(values))).min() > 40

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"is_inlier": np.ones(2, np.bool_)}, r"is_inlier must be \(3,\) as the matches, got \(2,\)"),
            ({"is_inlier": np.ones(3)}, "is_inlier must be bool, got float64"),
            ({"min_score": 1.5}, r"min_score must be in \[0, 1\], got 1.5"),
            ({"max_lines": -1}, "max_lines must be at least 0, got -1"),
        ],
    )
    def test_errors(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            viz.draw_matches(BLACK, BLACK, random_matches(3), **options)


class TestLayout:
    def test_tall_images_are_not_enlarged_without_limit(self) -> None:
        tall = np.full((3000, 30, 3), 200, np.uint8)
        panels = lay_out(tall, tall, 400)
        assert panels.canvas.shape == (800, 400, 3)
        places = panels.place0(np.array([[0, 0], [29, 2999]], np.float32))
        assert 180 < places[0, 0] < places[1, 0] < 200  # in the middle
        assert (panels.canvas[400, [190, 210]] == 200).all()
        assert (panels.canvas[400, [10, 390]] == 255).all()
        assert viz.draw_matches(tall, tall, random_matches(4), width=400).shape[1] == 400

    def test_wide_drawings_have_thicker_lines(self) -> None:
        wide = np.zeros((20, 400, 3), np.uint8)
        points = [(40, 10)]
        rows = []
        for width in (1600, 4800):
            image = viz.draw_matches(wide, wide, make_matches(points, points), width=width)
            column = image[: width // 42, width // 2]  # in the white gap between the images
            rows.append(int((column != 255).any(axis=-1).sum()))
        assert 1.8 * rows[0] <= rows[1] <= 3 * rows[0]


class TestColours:
    def test_palette_in_its_order_then_what_is_far(self) -> None:
        palette = ((1, 0, 0), (0, 1, 0))
        points = np.array([[0, 0], [9, 0], [10, 0], [1, 0]], np.float32)
        found = colours.distinct_colours(points, palette=palette)
        assert found.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]

    def test_points_close_in_any_view_differ(self) -> None:
        rng = np.random.default_rng(0)
        views = [rng.uniform(0, 100, (60, 2)).astype(np.float32) for _ in range(2)]
        views[1][5] = np.nan
        found = colours.distinct_colours(*views)
        for points in views:
            distances = np.nan_to_num(np.linalg.norm(points[:, None] - points[None], axis=-1), nan=np.inf)
            nearest = np.argmin(distances + np.diag(np.full(60, np.inf)), axis=1)
            is_known = np.isfinite(points[:, 0])
            assert (found[nearest] != found).any(axis=-1)[is_known].all()

    def test_none(self) -> None:
        assert colours.distinct_colours(np.zeros((0, 2), np.float32)).shape == (0, 3)


class TestCaption:
    CANVAS = np.zeros((10, 600, 3), np.uint8)
    SCALE = ColourScale("score", np.full((160, 3), (0, 0, 200), np.uint8), ("0", "1"))

    def test_text_and_scale_beside_each_other(self) -> None:
        drawn = add_caption(self.CANVAS, "few words", self.SCALE)
        assert drawn.shape == (46, 600, 3)
        columns = np.flatnonzero((drawn[28] == (0, 0, 200)).all(axis=-1))
        assert len(columns) == 160 and columns[0] > 300

    def test_below_each_other_where_there_is_no_room(self) -> None:
        drawn = add_caption(self.CANVAS, "words " * 8, self.SCALE)
        assert drawn.shape == (82, 600, 3)
        assert add_caption(self.CANVAS[:, :60], "words " * 8, self.SCALE).shape == (82, 60, 3)

    def test_long_text_shrinks(self) -> None:
        drawn = add_caption(self.CANVAS, "words " * 18)
        assert drawn.shape == (46, 600, 3)
        assert (drawn[10:, 590:] == 255).all()

    @pytest.mark.parametrize("place", [(96, 30), (4, 30), (50, 3), (50, 58)])
    def test_labels_stay_inside(self, place: tuple[float, float]) -> None:
        canvas = np.zeros((60, 100, 3), np.uint8)
        positions = np.array([place, [np.nan, 0]], np.float32)
        drawn = write_labels(canvas, positions, ["12", "6"], 4.0, 1.0)
        larger = np.zeros((160, 200, 3), np.uint8)
        whole = write_labels(larger, positions + 50, ["12", "6"], 4.0, 1.0)
        assert (drawn > 200).sum() == (whole > 200).sum() > 20  # nothing is cut off

    def test_labels_avoid_each_other(self) -> None:
        canvas = np.zeros((60, 100, 3), np.uint8)
        alone = [
            write_labels(canvas, np.array([place], np.float32), ["8"], 6.0, 1.0)
            for place in ((50, 30), (54, 30))
        ]
        both = write_labels(canvas, np.array([[50, 30], [54, 30]], np.float32), ["8", "8"], 6.0, 1.0)
        assert ((alone[0] > 200) & (alone[1] > 200)).any()  # at their usual places they overlap
        assert (both > 200).sum() >= 2 * (alone[0] > 200).sum()


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
