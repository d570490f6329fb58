"""The sheet of qualitative matches: right pictures in right places, right and wrong told apart."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from support.evaluation_cases import BlankExtractor, make_method, write_sequence
from ucn.evaluate.core.benchmark_pairs import ORIGINAL_SIZE
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.points import sheet
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.report import PointsRun, run_benchmark
from ucn.features.method import LoadedMethods
from ucn.viz.colours import ImageArray


@pytest.fixture
def run(tmp_path: Path) -> PointsRun:
    write_sequence(tmp_path / "data", "v_one")
    benchmark = replace(find_benchmark("hpatches"), preparation=ORIGINAL_SIZE, points=5)
    loaded = LoadedMethods([make_method(), make_method("blank", BlankExtractor())])
    return run_benchmark(benchmark, tmp_path / "data", loaded, RunSettings(tmp_path / "cache"))


def test_rows_and_columns(run: PointsRun, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compose(names: list[str], rows: list[list[ImageArray]], caption: str) -> PIL.Image.Image:
        seen.append((names, [len(row) for row in rows], caption))
        return PIL.Image.fromarray(rows[0][0])

    monkeypatch.setattr(sheet, "compose_sheet", compose)
    sheet.draw_sheet(run, 3)
    ((names, lengths, caption),) = seen
    assert names == ["query", "ground truth", "colour", "blank"]
    assert lengths == [4, 4, 4]
    assert "filled within 10 px" in caption


def test_right_points_are_filled_and_others_hollow(run: PointsRun, monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[bool] = []
    monkeypatch.setattr(sheet, "draw_marker", lambda *_, is_filled: filled.append(is_filled))
    pair = run.predictions.pairs[0]
    lost = pair.points1.copy()
    lost[0], lost[1] = np.nan, lost[1] + 50
    changed = replace(pair, predicted=(lost, *pair.predicted[1:]))
    sheet.draw_sheet(replace(run, predictions=replace(run.predictions, pairs=(changed,))), 1)
    assert filled[:10] == [True] * 10  # query and truth
    assert filled[10:14] == [False, True, True, True]  # the first has no answer, the second a wrong one


def test_it_is_an_image(run: PointsRun) -> None:
    with PIL.Image.open(io.BytesIO(sheet.draw_sheet(run, 2))) as picture:
        assert picture.format == "JPEG"
        two = picture.height
    with PIL.Image.open(io.BytesIO(sheet.draw_sheet(run, 1))) as picture:
        assert 150 < picture.height < two


def test_many_columns_go_on_below() -> None:
    panel = np.full((20, 30, 3), 7, np.uint8)
    few = sheet.compose_sheet(["a"] * 5, [[panel] * 5] * 2, "words")
    many = sheet.compose_sheet(["a"] * 12, [[panel] * 12] * 2, "words")
    assert many.width == few.width == 5 * 30 + 6 * 6
    assert (np.asarray(many) == 7).all(axis=-1).sum() == 2 * 12 * 20 * 30
    assert sheet.compose_sheet(["a"], [[panel]], "words").width == 30 + 2 * 6
