"""Quoted results are the paper's, in the right rows and columns."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from support.evaluation_cases import make_method
from ucn.evaluate.points.benchmarks import BENCHMARKS
from ucn.paper.results import (
    PAPER_CLASSES,
    PAPER_COLUMNS,
    UCN_SYSTEMS,
    find_systems,
    format_paper_cells,
    format_sources,
    format_value,
    list_cited,
)

OURS = replace(make_method("anything"), key={"ucn": "ab"})
VARIANT = replace(make_method("any-0+nearest"), key={"ucn": "ab", "variant": "HN"})


def test_systems_of_methods() -> None:
    assert find_systems(OURS) == ()  # other weights than the paper's have no cell of it
    assert find_systems(VARIANT) == ("UCN-HN",) and "UCN-HN" in UCN_SYSTEMS
    assert find_systems(make_method("sift")) == ("SIFT",)
    assert find_systems(make_method("sift-flow")) == find_systems(make_method("siftflow")) == ("SIFT flow",)
    assert find_systems(make_method("xfeat")) == ()


def test_columns_by_name() -> None:
    motion = PAPER_COLUMNS["kitti-raw"]
    assert format_paper_cells(motion, make_method("surf")) == ("0.344", "5.790")
    assert format_paper_cells(motion, make_method("hog")) == ("–", "–")
    cited = {row[0]: row[1:] for row in list_cited(motion, [VARIANT, make_method("sift")])}
    assert cited["Agrawal et al. (cited)"] == ("0.394", "9.293")
    assert "SIFT (cited)" not in cited and "UCN-HN (cited)" not in cited
    assert cited["UCN-HN-ST (cited)"] == ("0.325", "4.728")
    # A system that the paper only plots has a row without a value.
    assert list_cited(PAPER_COLUMNS["cub"], [OURS]) == [("WarpNet (cited)", "–"), ("UCN-HN-ST (cited)", "–")]
    assert format_sources(()) == ()


def test_decimals_are_the_papers() -> None:
    assert format_paper_cells(PAPER_COLUMNS["flow"], make_method("sift-flow")) == ("89.0", "67.3")
    assert format_paper_cells(PAPER_COLUMNS["flow"], make_method("dsp")) == ("85.3", "58.0")
    assert format_paper_cells(PAPER_COLUMNS["flowweb"], VARIANT) == ("36.7",)
    assert format_paper_cells(PAPER_COLUMNS["flowweb"], OURS) == ("–",)
    narrow = format_paper_cells(PAPER_COLUMNS["pascal-berkeley"][:1], make_method("sift-flow"))
    assert narrow == ("3.55",)
    assert (format_value(0), format_value(4.08), format_value(5.79, 3)) == ("0.0", "4.08", "5.790")


def test_means_agree_with_the_tables_by_class() -> None:
    by_class = PAPER_CLASSES["pascal-berkeley"].values
    last = PAPER_COLUMNS["pascal-berkeley"][-1]
    assert last.label.endswith("α=0.1")
    assert {system: row[-1] for system, row in by_class.items()} == last.values
    for system in (
        "conv4 flow",
        "SIFT flow",
        "NN transfer",
    ):  # theirs is the mean of the classes, to rounding
        *classes, mean = by_class[system]
        assert sum(classes) / len(classes) == pytest.approx(mean, abs=0.06)
    web = PAPER_CLASSES["flowweb"].values
    assert {system: row[-1] for system, row in web.items()} == PAPER_COLUMNS["flowweb"][0].values


def test_every_quoted_benchmark_exists() -> None:
    unknown = PAPER_COLUMNS.keys() - BENCHMARKS.keys()
    assert unknown <= {"kitti-raw", "kitti-odometry"}  # of another kind
    assert PAPER_CLASSES.keys() <= PAPER_COLUMNS.keys()


def test_values_are_those_of_the_paper(data_folder: Path) -> None:
    paper = data_folder.parent / "paper.tex"
    if not paper.is_file():
        pytest.skip("the paper's source is not beside the sample data")
    numbers = re.findall(
        r"\d+(?:\.\d+)?", re.sub(r"\\textbf|[{}]|\\bf", "", paper.read_text(encoding="utf-8"))
    )
    text = " ".join(numbers)
    for classes in PAPER_CLASSES.values():
        for row in classes.values.values():
            assert " ".join(f"{value:.1f}" for value in row) in text or " ".join(
                f"{value:g}" for value in row
            ) in text.replace(".0 ", " ")
    for columns in PAPER_COLUMNS.values():
        for column in columns:
            values = [value for value in column.values.values() if value is not None]
            assert all(any(float(number) == value for number in numbers) for value in values)
