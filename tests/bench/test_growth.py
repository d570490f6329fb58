import math
import time
from collections.abc import Callable

import pytest

from support.bench_cases import check_part, make_fake_cuda, make_settings, replace_timings
from ucn.bench import growth
from ucn.bench.growth import Series, fit_exponent, measure_series
from ucn.bench.plots import draw_growth
from ucn.bench.report import Part
from ucn.bench.settings import Settings


def test_exponent_of_a_power_is_found() -> None:
    sizes = [256.0, 512.0, 1024.0, 2048.0]
    assert fit_exponent(sizes, [3 * size**2 for size in sizes]) == pytest.approx(2.0)


def test_exponent_by_hand() -> None:
    # Through (1, 1), (e, e) and (e², e⁵) in logarithms: (0, 0), (1, 1), (2, 5); slope 5 / 2 by least squares.
    sizes, values = [1.0, math.e, math.e**2], [1.0, math.e, math.e**5]
    assert fit_exponent(sizes, values) == pytest.approx(2.5)


def test_only_the_upper_half_counts() -> None:
    sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert fit_exponent(sizes, [50.0, 50.0, 50.0, 8.0, 16.0, 32.0]) == pytest.approx(1.0)
    assert fit_exponent([*sizes[:4]], [50.0, 50.0, 4.0, 8.0]) == pytest.approx(1.0)


def test_one_point_has_no_exponent() -> None:
    assert math.isnan(fit_exponent([5.0], [1.0]))
    assert math.isnan(fit_exponent([], []))


def test_a_series_ends_when_its_time_is_up() -> None:
    series = Series("Sleep", float, (1, 2, 400), lambda size: (lambda: time.sleep(size / 100), 0.0))
    table = measure_series(series, make_settings(limit_seconds=1.0))
    assert [row[0] for row in table.rows] == [1, 2]
    assert "Not measured within the limit of 1 s: 400." in table.notes
    times = [float(row[1] or 0) for row in table.rows]
    assert fit_exponent([1.0, 2.0], times) == pytest.approx(1.0, abs=0.5)


def test_exponents_of_time_and_of_theoretical_work(monkeypatch: pytest.MonkeyPatch) -> None:
    # Twice the time, where theory has a third more to do: slopes of 1 + 1 and 1 + log2(4 / 3) over two sizes.
    times = iter([1.0, 4.0])
    monkeypatch.setattr(growth, "_time", lambda *_: (next(times), 1))
    amounts = {1: 6.0, 2: 16.0}
    series = Series("S", amounts.__getitem__, (1, 2), lambda size: (lambda: None, 0.0), "About it.")
    table = measure_series(series, make_settings())
    assert [row[5] for row in table.rows] == pytest.approx([1.0, 16 / 6])
    assert "time 2.00, extra memory" in table.notes[0]
    assert "theoretical work 1.42." in table.notes[0]
    assert table.notes[1] == "About it."


def test_margins_of_tiles_are_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "NETWORK", "geometric")
    series = next(iter(growth.list_series(make_settings())))
    assert series.count(1536) == 1536**2
    assert 1.05 < series.count(2048) / 2048**2 < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_settings, make_fake_cuda])
def test_all_series_are_measured(make: Callable[[], Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(growth, monkeypatch)
    part = growth.measure(make())
    check_part(part)
    assert len(part.tables) == 4
    assert [row[0] for row in part.tables[0].rows] == [64, 96, 128]
    plot = draw_growth(part, "a machine")
    assert plot.png.startswith(b"\x89PNG")
    assert b"<svg" in plot.svg
    assert draw_growth(Part(part.tables[:1]), "a machine").png.startswith(b"\x89PNG")
