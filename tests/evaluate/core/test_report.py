"""Pages, tables for print, CSV, JSON and files of a report made by hand."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import ucn
from support.evaluation_cases import make_method
from ucn.errors import OutputError
from ucn.evaluate.core.report import (
    Plot,
    Report,
    Table,
    check_outputs,
    find_versions,
    format_number,
    format_percent,
    from_plain,
    list_outputs,
    name_device,
    to_dict,
    to_plain,
    write_csv,
    write_latex,
    write_markdown,
    write_report,
)
from ucn.evaluate.points.benchmarks import BENCHMARKS

REPORT = Report(
    name="pears",
    title="pears & quinces",
    command="ucn evaluate pears --data DIR",
    tables=(
        Table("PCK@α=0.1, 100 % by_class", ("method", "ripe | green"), (("good", "53.0"), ("b_d", "–"))),
    ),
    protocol=("images: at 45° × 2",),
    methods=(make_method("good"),),
    skipped={"xfeat": "not here"},
    notes=("quoted from somewhere",),
    rows=({"method": "good", "per_point": 0.123456789}, {"method": "b_d", "per_point": math.nan}),
    values={"seed": 4, "curves": [{"shares": (0.5, math.inf)}]},
    plots=(Plot("", "curves", b"png", b"svg"), Plot("-more", "more", b"png2", b"svg2")),
    versions={"torch": "9"},
    device="two hands",
)


def test_markdown() -> None:
    page = write_markdown(REPORT)
    assert page.startswith("# pears\n\nPears & quinces.\n\n```bash\nucn evaluate pears --data DIR\n```\n")
    assert "| method | ripe / green |\n| --- | --- |\n| good | 53.0 |\n| b_d | – |\n" in page
    assert "![Curves](pears.png)\n\n![More](pears-more.png)\n" in page
    assert "- images: at 45° × 2\n" in page
    assert "Notes:\n\n- quoted from somewhere\n" in page
    assert "- `good`: the method good\n- `xfeat` was skipped: not here\n" in page
    assert page.endswith("Run with torch 9 on two hands.\n")
    assert "Notes:" not in write_markdown(replace(REPORT, notes=()))


def test_latex_escapes_what_it_must() -> None:
    text = write_latex(REPORT)
    assert text.startswith("% ucn evaluate pears --data DIR\n% images: at 45° × 2\n")
    assert "\\caption{PCK@$\\alpha$=0.1, 100 \\% by\\_class.}" in text
    assert "\\begin{tabular}{lr}" in text
    assert "    b\\_d & -- \\\\\n    \\bottomrule\n" in text
    assert text.count("\\begin{table}") == text.count("\\end{table}") == 1


def test_csv_and_json_hold_all_figures() -> None:
    rows = list(csv.DictReader(io.StringIO(write_csv(REPORT))))
    assert rows[0] == {"benchmark": "pears", "method": "good", "per_point": "0.123457"}
    values = json.loads(json.dumps(to_dict(REPORT), allow_nan=False))
    assert values["figures"][0]["per_point"] == 0.123457
    assert values["figures"][1]["per_point"] is None
    assert values["curves"] == [{"shares": [0.5, None]}]
    assert (values["seed"], values["skipped"]) == (4, {"xfeat": "not here"})
    assert values["methods"][0]["key"] == {"synthetic": "good"}
    assert write_csv(replace(REPORT, rows=())) == "benchmark\n"


def test_numbers_are_never_nan() -> None:
    assert (format_percent(0.5), format_percent(math.nan)) == ("50.0", "–")
    assert (format_number(1.25, 2), format_number(math.inf), format_number(math.nan)) == ("1.25", "–", "–")


def test_values_of_json_in_the_type_of_an_example() -> None:
    assert from_plain(to_plain((1.5, math.nan, 2)), ()) == (1.5, pytest.approx(math.nan, nan_ok=True), 2)
    assert from_plain(3, 0.5) == 3.0
    for value, like in [("3", 0.5), (1, True), ([1], "a"), (1.0, 1)]:
        with pytest.raises(TypeError):
            from_plain(value, like)


def test_files(tmp_path: Path) -> None:
    wanted = list_outputs(tmp_path / "out", "pears", ("", "-more"), ("-sheet.jpg",))
    check_outputs(wanted, overwrite=False)
    written = write_report(replace(REPORT, images={"-sheet.jpg": b"picture"}), tmp_path / "out", False)
    assert written == wanted
    assert [path.name.removeprefix("pears") for path in written] == [
        *(".json", ".csv", ".md", ".tex", ".png", ".svg", "-more.png", "-more.svg", "-sheet.jpg"),
    ]
    assert [path.read_bytes() for path in written[4:]] == [b"png", b"svg", b"png2", b"svg2", b"picture"]
    with pytest.raises(OutputError, match="exists already"):
        check_outputs(wanted, overwrite=False)
    check_outputs(wanted, overwrite=True)


def test_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot make the folder"):
        check_outputs(list_outputs(tmp_path / "file", "pears"), overwrite=False)


def test_what_a_run_was_made_with() -> None:
    versions = find_versions()
    assert {"torch", "numpy"} <= versions.keys()
    assert next(iter(versions)) == "ucn"
    assert versions["ucn"] == ucn.__version__
    made = replace(REPORT, versions=versions)
    assert f"Run with ucn {ucn.__version__}, torch " in write_markdown(made)
    assert to_dict(made)["versions"]["ucn"] == ucn.__version__
    assert name_device("cpu").endswith("CPU cores")
    assert name_device("mps") == "mps"


RESULTS = Path(__file__).parents[3] / "docs" / "results"
PUBLISHED = [path for path in sorted(RESULTS.glob("*.json")) if path.with_suffix(".tex").exists()]


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_pages_equal_their_json(path: Path) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    report = replace(REPORT, protocol=tuple(values["protocol"]), notes=tuple(values["notes"]))
    written = write_markdown(report)
    section = written[written.index("Protocol:") : written.index("Methods:")]
    assert section in page
    comments = path.with_suffix(".tex").read_text(encoding="utf-8")
    assert all(f"% {line}\n" in comments for line in (*values["protocol"], *values["notes"]))


@pytest.mark.parametrize(
    "path", [path for path in PUBLISHED if path.stem in BENCHMARKS], ids=lambda path: path.stem
)
def test_published_pages_have_the_words_of_the_benchmark(path: Path) -> None:
    benchmark = BENCHMARKS[path.stem]
    protocol = "\n".join(json.loads(path.read_text(encoding="utf-8"))["protocol"])
    for words in (benchmark.title, benchmark.ground_truth, benchmark.preparation.describe()):
        assert words in protocol
    assert benchmark.unit == "px" or f"L is {benchmark.length}" in protocol
    assert "![PCK against the threshold](" in path.with_suffix(".md").read_text(encoding="utf-8")
