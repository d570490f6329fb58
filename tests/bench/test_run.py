import importlib
from typing import Any

import pytest

from bench_cases import make_settings
from ucn.bench import run
from ucn.bench.report import Column, Part, Table
from ucn.bench.run import PARTS, merge_results, read_parts, run_parts
from ucn.errors import DataError

PART = Part((Table("t", (Column("a"),), (("b",),)),))


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(run, "measure_part", lambda name, settings: PART)
    return run_parts(["knn", "train"], make_settings(seed=3))


def test_every_part_is_a_module() -> None:
    for name in PARTS:
        assert callable(importlib.import_module(f"ucn.bench.{name}").measure)


def test_result_says_what_it_depends_on(result: dict[str, Any]) -> None:
    assert set(result) == {"schema", "machine", "settings", "parts"}
    assert result["settings"]["seed"] == 3
    assert result["settings"]["is_quick"] is True
    assert read_parts(result) == {"knn": PART, "train": PART}


@pytest.mark.parametrize(
    "other",
    [
        None,
        [],
        {},
        {"schema": "other"},
        {"schema": run.SCHEMA, "machine": {}, "settings": {}, "parts": 3},
        {"schema": run.SCHEMA, "settings": {}, "parts": {}},
        {"schema": run.SCHEMA, "machine": {}, "parts": {}},
        {"schema": run.SCHEMA, "machine": {}, "settings": {}, "parts": {"other": PART.to_dict()}},
    ],
)
def test_other_files_are_refused(other: object) -> None:
    with pytest.raises(DataError, match=r"my\.json is no result of `ucn bench`"):
        read_parts(other, "my.json")


def test_parts_are_replaced_in_order(result: dict[str, Any]) -> None:
    newer = {**result, "parts": {"encode": {**PART.to_dict(), "seconds": 5.0}, "knn": PART.to_dict()}}
    newer["machine"] = {**result["machine"], "warnings": ["hot"]}
    merged = merge_results(result, newer)
    assert list(merged["parts"]) == ["knn", "encode", "train"]
    assert merged["parts"]["encode"]["seconds"] == 5.0
    assert merged["machine"]["warnings"] == [*result["machine"]["warnings"], "hot"]


def test_warnings_go_with_the_last_part_they_were_of(result: dict[str, Any]) -> None:
    before = {**result, "machine": {**result["machine"], "warnings": ["hot"]}}
    assert "hot" not in merge_results(before, result)["machine"]["warnings"]


def test_other_machines_are_not_mixed(result: dict[str, Any]) -> None:
    other = {**result, "machine": {**result["machine"], "cores": 999}}
    quick = {**result, "settings": {**result["settings"], "is_quick": False}}
    with pytest.raises(DataError, match="quick and full results are not mixed"):
        merge_results(quick, result)
    with pytest.raises(DataError, match=r"the earlier result is of another machine \(cores: 999, now"):
        merge_results(other, result)
