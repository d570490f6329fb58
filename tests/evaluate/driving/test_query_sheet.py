"""Query points and their answers in like colours."""

import io
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from support.driving_cases import HW, STEP, make_benchmark
from support.evaluation_cases import BlankExtractor, make_method
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.driving import query_sheet as query_pictures
from ucn.evaluate.driving.query_sheet import (
    DENSE_PIXELS,
    FAST_COUNT,
    choose_close_pairs,
    detect_fast,
    draw_queries,
    list_grid,
)
from ucn.evaluate.points.report import run_benchmark
from ucn.paper.registry import METHODS
from ucn.types import FloatArray
from ucn.viz.colours import ImageArray


def test_fast_corners() -> None:
    grey = np.full((60, 80), 40, np.uint8)
    grey[20, 30], grey[40, 55] = 120, 240
    assert detect_fast(grey).tolist() == [[55, 40], [30, 20]]  # the stronger one first
    assert detect_fast(np.zeros((60, 80), np.uint8)).shape == (0, 2)
    noise = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    assert len(detect_fast(noise)) == FAST_COUNT


def test_dense_points() -> None:
    points = list_grid((25, 31))
    first = DENSE_PIXELS // 2
    assert points.tolist() == [[x, y] for y in (first, first + 10) for x in (first, first + 10, first + 20)]


def test_neighbouring_frames_are_chosen(tmp_path: Path) -> None:
    pairs = make_benchmark(tmp_path / "wall").open(Path())
    assert [pair.name[-1] for pair in choose_close_pairs(pairs, 5)] == ["1"]
    assert [pair.name[-1] for pair in choose_close_pairs(pairs[1:], 5)] == ["3"]


def test_answers_have_the_colours_of_their_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, FloatArray, ImageArray]] = []
    draw = query_pictures._draw

    def note(image: object, points: FloatArray, colours: ImageArray, name: str) -> ImageArray:
        drawn.append((name, points, colours))
        return draw(image, points, colours, name)  # type: ignore[arg-type]

    monkeypatch.setattr(query_pictures, "_draw", note)
    loaded = METHODS.load_dense(["daisy"])
    loaded.methods.append(make_method("blank", BlankExtractor()))
    run = run_benchmark(
        make_benchmark(tmp_path / "wall"), Path(), loaded, RunSettings(tmp_path / "cache", limit=1)
    )
    sheet = PIL.Image.open(io.BytesIO(draw_queries(run, 1)))
    assert sheet.format == "JPEG"
    assert sheet.width > 2 * 600
    assert [name for name, _, _ in drawn] == ["frame t"] * 2 + ["daisy"] * 2 + ["blank"] * 2
    for place in (0, 1):  # FAST, dense
        (_, asked, colours), (_, found, same), (_, nowhere, also) = drawn[place::2]
        assert np.array_equal(colours, same)
        assert np.array_equal(colours, also)
        inner = (asked > 20).all(axis=1) & (asked[:, 0] < HW[1] - 20) & (asked[:, 1] < HW[0] - 20)
        errors = np.linalg.norm(found - asked + [STEP, 0], axis=1)[inner]
        assert len(errors) > 10
        assert np.median(errors) < 1.5
        assert len(np.unique(nowhere.round(), axis=0)) == 1
