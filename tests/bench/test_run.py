import importlib
from typing import Any

import pytest

from support.bench_cases import make_settings
from ucn.bench import run
from ucn.bench.report import Column, Part, Table
from ucn.bench.run import PARTS, merge_results, read_parts, run_parts
from ucn.bench.settings import Settings
from ucn.errors import DataError

PART = Part((Table("t", (Column("a"),), (("b",),)),))


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(run, "measure_part", lambda name, settings: PART)
    return run_parts(["knn", "train"], make_settings(seed=3))


def test_every_part_is_a_module() -> None:
    for name in PARTS:
        assert callable(importlib.import_module(f"ucn.bench.{name}").measure)


def test_result_has_machine_and_settings(result: dict[str, Any]) -> None:
    assert set(result) == {"schema", "machine", "settings", "parts", "failures"}
    assert result["failures"] == {}
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
        {"schema": run.SCHEMA, "machine": {}, "settings": {}, "parts": {}, "failures": ["knn"]},
        {"schema": run.SCHEMA, "machine": {}, "settings": {}, "parts": {}, "failures": {"other": "why"}},
    ],
)
def test_other_files_are_refused(other: object) -> None:
    with pytest.raises(DataError, match=r"my\.json is no result of `ucn bench`"):
        read_parts(other, "my.json")


def _fail_at(failing: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(name: str, settings: Settings) -> Part:
        if name == failing:
            raise error
        return PART

    monkeypatch.setattr(run, "measure_part", measure)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA out of memory.\n Tried 2 GiB"), "RuntimeError: CUDA out of memory.; Tried 2 GiB"),
        (DataError("no such file; write one"), "no such file; write one"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_part_that_fails_does_not_lose_the_others(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_at("match", error, monkeypatch)
    failed_parts: list[tuple[str, Exception]] = []
    result = run_parts(
        ["knn", "match", "train"], make_settings(), lambda *failed: failed_parts.append(failed)
    )
    assert list(result["parts"]) == ["knn", "train"]
    assert result["failures"] == {"match": reason}
    assert failed_parts == [("match", error)]
    assert set(read_parts(result)) == {"knn", "train"}


def test_a_run_that_is_interrupted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> Part:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure_part", stop)
    with pytest.raises(KeyboardInterrupt):
        run_parts(["knn"], make_settings())


def test_a_part_that_fails_stays_as_it_was_measured(
    result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_at("knn", RuntimeError("broken"), monkeypatch)
    failed = merge_results(result, run_parts(["knn", "encode"], make_settings()))
    assert list(failed["parts"]) == ["knn", "encode", "train"]
    assert failed["failures"] == {"knn": "RuntimeError: broken"}
    mended = merge_results(failed, result)
    assert mended["failures"] == {}


def test_each_part_keeps_the_settings_it_was_measured_with(result: dict[str, Any]) -> None:
    newer = run_parts(["train"], make_settings(seed=5, is_thorough=True, weights="birds", limit_seconds=400))
    merged = merge_results(result, newer)
    assert merged["parts"]["knn"]["settings"]["seed"] == 3
    assert merged["parts"]["train"]["settings"]["is_thorough"]
    assert merged["settings"]["seed"] == 5


def test_parts_of_earlier_versions_take_the_settings_of_their_file(result: dict[str, Any]) -> None:
    for part in result["parts"].values():
        del part["settings"]
    merged = merge_results(result, run_parts(["train"], make_settings(seed=9)))
    assert [part["settings"]["seed"] for part in merged["parts"].values()] == [3, 9]


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
