"""Tables and files of a run, from figures made by hand."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import PIL.Image
import pytest

from evaluation_cases import make_method, write_sequence
from ucn.errors import DataError, OutputError
from ucn.evaluate.benchmarks import find_benchmark
from ucn.evaluate.methods import LoadedMethods
from ucn.evaluate.plots import draw_curves
from ucn.evaluate.report import Report, describe_protocol, tabulate, to_dict, write_csv, write_markdown
from ucn.evaluate.run import RunSettings, check_outputs, run_benchmark, write_outputs
from ucn.evaluate.scoring import Cost, Curve, Figure, Scores


def make_figure(method: str, use: bool, group: str, limit: float, share: float) -> Figure:
    return Figure(method, use, group, "", 0.0, limit, share, 0.5, 0.25, 0.1, 0.9, 1.5, 3, 120)


def make_report() -> Report:
    figures = tuple(
        make_figure(method, use, group, limit, limit / 100 + 0.5 * use + 0.1 * (group == "all"))
        for method in ("good", "bad")
        for use in (True, False)
        for group in ("viewpoint", "all")
        for limit in (3.0, 5.0, 10.0)
    )
    curves = tuple(
        Curve(method, use, group, (1.0, 2.0), (0.25, 0.5))
        for method in ("good", "bad")
        for use in (True, False)
        for group in ("viewpoint", "all")
    )
    costs = (Cost("good", 0.25, 0.1), Cost("bad", math.nan, 0.1))
    return Report(
        benchmark=find_benchmark("hpatches"),
        command="ucn evaluate hpatches --data DIR",
        methods=(make_method("good"), make_method("bad")),
        skipped={"xfeat": "not here"},
        scores=Scores(figures, curves, costs),
        pair_count=245,
        asked_count=3,
        point_count=120,
        seed=4,
        points_sha256="0123456789abcdef" * 4,
        versions={"torch": "9"},
        device="two hands",
    )


def test_tables() -> None:
    refined, on_cells, averages = tabulate(make_report())
    assert refined.header == (
        "method",
        *("viewpoint @3", "viewpoint @5", "viewpoint @10"),
        *("all @3", "all @5", "all @10"),
    )
    assert refined.rows[0] == ("good", "53.0", "55.0", "60.0", "63.0", "65.0", "70.0")
    assert on_cells.rows[1] == ("bad", "3.0", "5.0", "10.0", "13.0", "15.0", "20.0")
    assert averages.rows[0][1] == "63.0 / 50.0 / 25.0 (10.0–90.0)"
    assert averages.rows[0][-2:] == ("1.5", "0.25")
    assert averages.rows[1][-1] == "–"  # no image was described


def test_headline_chooses_the_average() -> None:
    report = make_report()
    by_pair = replace(report, benchmark=replace(report.benchmark, headline="pair"))
    assert set(tabulate(by_pair)[0].rows[0][1:]) == {"50.0"}
    assert "mean over pairs" in describe_protocol(by_pair)[-1]


def test_protocol_says_what_was_done() -> None:
    text = "\n".join(describe_protocol(make_report()))
    for words in (
        "3 pairs of 245, evenly spread (--limit), 120 points",
        "fit into 640 × 480",
        "drawn at random by seed 4",
        "sha256 0123456789abcdef)",
        "no mutual check",
        "at most T pixels",
        "95% of 1,000 resamplings",
    ):
        assert words in text
    whole = replace(make_report(), asked_count=245)
    assert "--limit" not in "\n".join(describe_protocol(whole))
    alpha = replace(make_report(), benchmark=find_benchmark("cub"))
    assert "α·L from the truth; L is the diagonal of image 1" in "\n".join(describe_protocol(alpha))


def test_markdown() -> None:
    page = write_markdown(make_report(), "hpatches.png")
    assert page.startswith("# hpatches\n")
    assert "```bash\nucn evaluate hpatches --data DIR\n```" in page
    assert "| good | 53.0 | 55.0 | 60.0 | 63.0 | 65.0 | 70.0 |\n" in page
    assert "](hpatches.png)" in page
    assert "- `xfeat` was skipped: not here" in page
    assert "nan" not in page.lower()


def test_csv_and_json_hold_all_figures() -> None:
    report = make_report()
    rows = list(csv.DictReader(io.StringIO(write_csv(report))))
    assert len(rows) == 24
    assert rows[0]["method"] == "good"
    assert float(rows[0]["per_point"]) == pytest.approx(0.53)
    assert rows[0]["unit"] == "px"
    values = json.loads(json.dumps(to_dict(report), allow_nan=False))
    assert values["figures"][0]["per_point"] == pytest.approx(0.53)
    assert values["seconds"][1]["per_image"] is None
    assert values["headline"] == "per_point"
    assert values["methods"][0]["key"] == {"made up": "good"}


def test_picture_has_a_panel_for_each_group() -> None:
    with PIL.Image.open(io.BytesIO(draw_curves(make_report()))) as picture:
        assert picture.format == "PNG"
        width = picture.width
    report = make_report()
    one = tuple(curve for curve in report.scores.curves if curve.group == "all")
    with PIL.Image.open(
        io.BytesIO(draw_curves(replace(report, scores=replace(report.scores, curves=one))))
    ) as picture:
        assert picture.width < 0.7 * width


def test_tables_and_picture_by_axis() -> None:
    report = make_report()
    figures = tuple(
        replace(make_figure("good", True, f"scale {factor:g}×", 5.0, 1 / factor), axis="scale", value=factor)
        for factor in (1.0, 2.0)
    )
    turned = replace(
        report,
        benchmark=find_benchmark("self"),
        methods=(make_method("good"),),
        scores=Scores(figures, (), report.scores.costs[:1]),
    )
    (table,) = tabulate(turned)
    assert table.header == ("method", "1×", "2×")
    assert table.rows == (("good", "100.0", "50.0"),)
    assert table.title.startswith("PCK@5 by scale")
    assert draw_curves(turned).startswith(b"\x89PNG")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("i_one", "v_two"):
        write_sequence(tmp_path / "data", name)
    return tmp_path / "data"


def test_run_from_data_to_files(folder: Path, tmp_path: Path) -> None:
    loaded = LoadedMethods([make_method()], {"xfeat": "not here"})
    settings = RunSettings(tmp_path / "cache", limit=2, command="ucn evaluate")
    report = run_benchmark(find_benchmark("hpatches"), folder, loaded, settings)
    assert (report.asked_count, report.pair_count, report.point_count) == (2, 10, 2000)
    refined = {f.group: f.per_point for f in report.scores.figures if f.use_refinement and f.limit == 10}
    assert set(refined) == {"viewpoint", "illumination", "all"}
    assert refined["all"] > 0.9  # ten times enlarged: 10 px here are one in the file
    check_outputs(tmp_path / "out", "hpatches", overwrite=False)
    written = write_outputs(report, tmp_path / "out", overwrite=False)
    assert [path.name for path in written] == [f"hpatches.{end}" for end in ("json", "csv", "md", "png")]
    assert all(path.stat().st_size for path in written)
    with pytest.raises(OutputError, match="exists already"):
        check_outputs(tmp_path / "out", "hpatches", overwrite=False)


def test_nothing_to_measure(folder: Path, tmp_path: Path) -> None:
    settings = RunSettings(tmp_path / "cache")
    with pytest.raises(DataError, match="no method can be measured: xfeat: not here"):
        run_benchmark(find_benchmark("hpatches"), folder, LoadedMethods([], {"xfeat": "not here"}), settings)
    for path in (folder / "i_one").glob("H_1_*"):
        path.write_text("1 0 500\n0 1 0\n0 0 1\n")  # beyond the image
    blind = replace(find_benchmark("hpatches"), open=lambda f: find_benchmark("hpatches").open(f)[5:])
    with pytest.raises(DataError, match="no correspondences in the 5 pairs asked"):
        run_benchmark(blind, folder, LoadedMethods([make_method()]), settings)


def test_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot make the folder"):
        check_outputs(tmp_path / "file", "hpatches", overwrite=False)
