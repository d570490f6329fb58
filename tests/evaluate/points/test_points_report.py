"""Tables, protocol and curves of runs on given points, from synthetic scores; and whole runs."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from matplotlib.figure import Figure as Canvas

from support.evaluation_cases import make_method, write_sequence
from ucn.data.bundled import Motorcycle
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair
from ucn.evaluate.core.plots import choose_style
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.core.report import to_dict, write_latex, write_markdown
from ucn.evaluate.points import report as points_report
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.predictions import PairPrediction, Predictions
from ucn.evaluate.points.report import (
    PointsRun,
    build_report,
    describe_protocol,
    plot_curves,
    run_benchmark,
    tabulate,
)
from ucn.evaluate.points.scoring import Cost, Curve, Results, Score
from ucn.features.method import DenseMethod, LoadedMethods

GROUPS = ("viewpoint", "all")


def make_score(method: str, use: bool, group: str, limit: float, share: float) -> Score:
    return Score(method, use, group, "", 0.0, limit, share, 0.5, 0.25, 0.1, 0.9, 2.5, 1.5, 1.0, 3, 120)


def make_scores(
    names: tuple[str, ...], groups: tuple[str, ...] = GROUPS, limits: tuple[float, ...] = (3.0, 5.0, 10.0)
) -> Results:
    figures = tuple(
        make_score(method, use, group, limit, limit / 100 + 0.5 * use + 0.1 * (group == "all"))
        for method in names
        for use in (True, False)
        for group in groups
        for limit in limits
    )
    curves = tuple(
        Curve(method, use, group, (1.0, 2.0), (0.25, 0.5))
        for method in names
        for use in (True, False)
        for group in groups
    )
    costs = tuple(Cost(name, math.nan if name == "bad" else 0.25, 0.1) for name in names)
    return Results(figures, curves, costs)


def make_run(benchmark: str = "hpatches", methods: tuple[DenseMethod, ...] = ()) -> PointsRun:
    methods = methods or (make_method("good"), make_method("bad"))
    chosen = find_benchmark(benchmark)
    points = np.zeros((40, 2), np.float32)
    pair = PairPrediction(BenchmarkPair(Motorcycle(), 0, "", "", ""), points, points, math.nan, (), ())
    results = make_scores(tuple(method.name for method in methods), limits=chosen.limits)
    return PointsRun(
        benchmark=chosen,
        settings=RunSettings(Path(), seed=4, command="ucn evaluate hpatches --data DIR"),
        methods=methods,
        skipped={"xfeat": "not here"},
        results=results,
        predictions=Predictions((), (pair,) * 3, "0123456789abcdef" * 4),
        identity={
            "headline": "per_point",
            "pairs": 3,
            "pairs_of_benchmark": 245,
            "data_sha256": "fedcba9876543210" * 4,
        },
    )


def test_tables() -> None:
    refined, on_cells, averages = tabulate(make_run())
    assert refined.header == (
        "method",
        *("viewpoint @3", "viewpoint @5", "viewpoint @10"),
        *("all @3", "all @5", "all @10"),
    )
    assert refined.rows[0] == ("good", "53.0", "55.0", "60.0", "63.0", "65.0", "70.0")
    assert on_cells.rows[1] == ("bad", "3.0", "5.0", "10.0", "13.0", "15.0", "20.0")
    assert averages.rows[0][1] == "63.0 / 50.0 / 25.0 (10.0–90.0)"
    assert averages.rows[0][-4:] == ("2.5", "1.5", "0.25", "0.10")
    assert averages.rows[1][-2] == "–"  # no image was described


def test_one_pair_has_no_interval() -> None:
    run = make_run()
    single = replace(
        run,
        results=replace(run.results, scores=tuple(replace(f, pairs=1) for f in run.results.scores)),
        predictions=replace(run.predictions, pairs=run.predictions.pairs[:1]),
    )
    averages = tabulate(single)[-1]
    assert averages.rows[0][1] == "63.0 / 50.0 / 25.0"
    for text in (averages.title, *describe_protocol(single)):
        assert "interval" not in text


def test_headline_chooses_the_average() -> None:
    run = make_run()
    by_pair = replace(run, benchmark=replace(run.benchmark, headline="pair"))
    assert set(tabulate(by_pair)[0].rows[0][1:]) == {"50.0"}
    assert "mean over pairs" in describe_protocol(by_pair)[-1]
    by_class = replace(run, benchmark=replace(run.benchmark, headline="class"))
    assert set(tabulate(by_class)[0].rows[0][1:]) == {"25.0"}
    assert "mean over classes" in describe_protocol(by_class)[-1]


def test_very_many_groups_show_one_limit() -> None:
    run = make_run("pf-willow")
    groups = tuple(f"class {number}" for number in range(9))
    crowded = replace(run, results=make_scores(("good", "bad"), groups, run.benchmark.limits))
    table = tabulate(crowded)[0]
    assert table.header == ("method", *groups)
    assert table.title.startswith("PCK@α=0.15, ")
    assert table.rows[0][1] == "50.1"
    narrower = replace(crowded, benchmark=replace(run.benchmark, shown_limit=0.05))
    assert tabulate(narrower)[0].title.startswith("PCK@α=0.05, ")


def test_paper_column_and_cited_rows() -> None:
    ours = replace(make_method("geometric"), key={"ucn": "ab"})
    variant = replace(make_method("hn-0"), key={"ucn": "cd", "variant": "HN"})
    run = make_run("sintel", (ours, variant, make_method("sift"), make_method("daisy")))
    table = tabulate(run)[0]
    assert table.header[-1] == "paper: Sintel @10"
    last = {row[0]: row[-1] for row in table.rows}
    assert last["geometric"] == "–"  # it is none of the paper's networks
    assert last["hn-0"] == "91.5" and last["UCN-HN-ST (cited)"] == "90.7"
    assert last["sift"] == "68.4"
    assert last["daisy"] == "–"  # not in that table
    assert last["DaisyFF (cited)"] == "87.3"
    assert "SIFT (cited)" not in last
    assert all(len(row) == len(table.header) for row in table.rows)
    report = build_report(run)
    assert "Table 3, MPI-Sintel" in report.notes[0]
    assert to_dict(report)["paper"][0]["figures"]["DSP"] == 85.3
    assert build_report(make_run()).notes == ()


def test_weights_that_saw_the_data_are_marked() -> None:
    seen = replace(make_method("seen"), trained_on=("kitti-flow train", "cub train"))
    run = make_run("kitti-flow", (seen, make_method("sift")))
    pair = run.predictions.pairs[0]
    for part, is_marked in (("kitti-flow training", True), ("kitti-flow val", False), ("", False)):
        own = replace(pair, pair=replace(pair.pair, part=part))
        part_run = replace(run, predictions=replace(run.predictions, pairs=(own,)))
        first = tabulate(part_run)[0].rows[0][0]
        assert first == ("seen (trained on it)" if is_marked else "seen")
        notes = "\n".join(build_report(part_run).notes)
        assert ("`seen` was trained on kitti-flow train, as" in notes) == is_marked
        assert any(f"parts: {part}" in line for line in describe_protocol(part_run))
    assert to_dict(build_report(run))["methods"][0]["trained_on"] == ["kitti-flow train", "cub train"]


def test_protocol_lists_what_was_done() -> None:
    text = "\n".join(describe_protocol(make_run()))
    for words in (
        "3 pairs of 245, evenly spread (--limit), 120 points",
        "fit into 640 × 480",
        "sampled by seed 4",
        "sha256 0123456789abcdef)",
        "no forward-backward check",
        "at most T pixels",
        "95% of 1,000 bootstrap samples",
    ):
        assert words in text
    assert "processes" not in text
    run = make_run()
    whole = replace(
        run,
        settings=replace(run.settings, jobs=4),
        identity={**run.identity, "pairs_of_benchmark": 3},
    )
    assert "--limit" not in "\n".join(describe_protocol(whole))
    assert "4 processes shared" in "\n".join(describe_protocol(whole))
    assert "α·L from the ground truth; L is the diagonal of image 1" in "\n".join(
        describe_protocol(make_run("cub"))
    )


def test_report_has_all_figures() -> None:
    report = build_report(make_run())
    assert len(report.rows) == 24
    assert report.rows[0] == {"unit": "px", **report.rows[0]}
    values = json.loads(json.dumps(to_dict(report), allow_nan=False))
    assert values["figures"][0]["per_point"] == pytest.approx(0.53)
    assert values["seconds"][1]["per_image"] is None
    assert (values["headline"], values["pairs"], values["pairs_of_benchmark"]) == ("per_point", 3, 245)
    for page in (write_markdown(report), write_latex(report)):
        assert "nan" not in page.lower()


def _width(scores: Results) -> int:
    plot = plot_curves(find_benchmark("hpatches"), scores)
    with PIL.Image.open(io.BytesIO(plot.png)) as picture:
        assert picture.format == "PNG"
        return picture.width


def test_plot_has_a_panel_for_each_group() -> None:
    scores = make_scores(("good", "bad"))
    one = tuple(curve for curve in scores.curves if curve.group == "all")
    assert _width(replace(scores, curves=one)) < 0.7 * _width(scores)
    plot = plot_curves(find_benchmark("hpatches"), scores)
    assert b"<svg" in plot.svg
    assert plot == plot_curves(find_benchmark("hpatches"), scores)


def test_styles_are_all_different() -> None:
    assert len({tuple(choose_style(number).items()) for number in range(30)}) == 30


@pytest.mark.parametrize("count", [1, 2, 17, 40])
@pytest.mark.parametrize("groups", [("all",), tuple("abcdefg")])
def test_legend_covers_nothing(count: int, groups: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Canvas] = []
    monkeypatch.setattr(points_report, "save_plot", lambda figure, caption: drawn.append(figure))
    names = tuple(f"trunk+sift-flow {number}" for number in range(count))
    plot_curves(find_benchmark("hpatches"), make_scores(names, groups))
    (canvas,) = drawn
    canvas.draw_without_rendering()
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()] == list(names)
    box = legend.get_window_extent()
    assert canvas.bbox.x0 <= box.x0 < box.x1 <= canvas.bbox.x1
    assert canvas.bbox.y0 <= box.y0
    for panel in canvas.axes:
        assert panel.get_legend() is None
        whole = panel.get_tightbbox()
        assert whole is not None and whole.y0 >= box.y1
        assert panel.get_window_extent().height > 2 * canvas.dpi  # it is not squeezed


def test_tables_and_plot_by_axis() -> None:
    run = make_run()
    figures = tuple(
        replace(make_score("good", True, f"scale {factor:g}×", 5.0, 1 / factor), axis="scale", value=factor)
        for factor in (1.0, 2.0)
    )
    turned = replace(
        run,
        benchmark=find_benchmark("self"),
        methods=(make_method("good"),),
        results=Results(figures, (), run.results.costs[:1]),
    )
    (table,) = tabulate(turned)
    assert table.header == ("method", "1×", "2×")
    assert table.rows == (("good", "100.0", "50.0"),)
    assert table.title.startswith("PCK@5 by scale")
    assert plot_curves(turned.benchmark, turned.results).png.startswith(b"\x89PNG")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("i_one", "v_two"):
        write_sequence(tmp_path / "data", name)
    return tmp_path / "data"


def test_run_from_data_to_report(folder: Path, tmp_path: Path) -> None:
    loaded = LoadedMethods([make_method()], {"xfeat": "not here"})
    settings = RunSettings(tmp_path / "cache", limit=2, command="ucn evaluate")
    run = run_benchmark(find_benchmark("hpatches"), folder, loaded, settings)
    assert (len(run.predictions.pairs), run.identity["pairs_of_benchmark"], run.point_count) == (2, 10, 2000)
    refined = {f.group: f.per_point for f in run.results.scores if f.use_refinement and f.limit == 10}
    assert set(refined) == {"viewpoint", "illumination", "all"}
    assert refined["all"] > 0.9  # ten times enlarged: 10 px here are one in the file
    assert build_report(run).skipped == {"xfeat": "not here"}


def test_nothing_to_measure(folder: Path, tmp_path: Path) -> None:
    settings = RunSettings(tmp_path / "cache")
    with pytest.raises(DataError, match="no method can be evaluated: xfeat: not here"):
        run_benchmark(find_benchmark("hpatches"), folder, LoadedMethods([], {"xfeat": "not here"}), settings)
    for path in (folder / "i_one").glob("H_1_*"):
        path.write_text("1 0 500\n0 1 0\n0 0 1\n")  # beyond the image
    blind = replace(find_benchmark("hpatches"), open=lambda f: find_benchmark("hpatches").open(f)[5:])
    with pytest.raises(DataError, match="no correspondences in the 5 pairs"):
        run_benchmark(blind, folder, LoadedMethods([make_method()]), settings)


def test_protocol_names_methods_with_consensus() -> None:
    plain, guided = make_method("sift"), replace(make_method("mine"), key={"ucn": "ab", "consensus": "cd"})
    lines = [line for line in describe_protocol(make_run(methods=(plain, guided))) if "consensus" in line]
    assert lines == [
        "neighbourhood consensus: mine; where a second candidate, more than 16 px from the best, is about as "
        "similar, the matches around the point decide: their support, and where local affine maps say that "
        "the point should land"
    ]
    assert not any("consensus" in line for line in describe_protocol(make_run(methods=(plain,))))
