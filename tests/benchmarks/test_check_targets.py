import json
from pathlib import Path

import pytest

from support.benchmark_scripts import BENCHMARKS, load_script, run_script
from ucn.bench.report import Column, Part, Table
from ucn.bench.run import read_parts

script = load_script("check_targets")


def _make_parts(seconds: float) -> dict[str, Part]:
    columns = (Column("command"), Column("time", "s"))
    rows = (("python -c pass", 0.01), ("ucn --help", seconds))
    return {"startup": Part((Table("Start-up", columns, rows),))}


def test_limits_are_inclusive() -> None:
    assert list(script.check_targets(_make_parts(0.3), "cpu")) == [
        "met     startup: ucn --help, time: 0.3, at most 0.3"
    ]
    assert next(script.check_targets(_make_parts(0.31), "cpu")).startswith("missed  startup")
    assert list(script.check_targets(_make_parts(0.31), "cuda")) == []


def test_growth_is_compared_with_theory() -> None:
    columns = tuple(Column(name, "number") for name in ("size", "time", "memory", "result", "rounds", "work"))
    rows = tuple((size, size**2, 1.0, 1.0, 1, float(size)) for size in (1, 2, 4))
    (line,) = script.check_targets({"growth": Part((Table("Squares", columns, rows),))}, "cpu")
    assert line == "missed  growth: Squares, exponent: 2, at most 1.15"


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_every_target_finds_its_value(name: str) -> None:
    result = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    device = result["machine"]["device"]
    lines = list(script.check_targets(read_parts(result), device))
    growth = 4 if "growth" in result["parts"] else 0
    assert len(lines) == sum(target.device == device for target in script.TARGETS) + growth


def test_missed_targets_exit_with_1(tmp_path: Path) -> None:
    values = json.loads((BENCHMARKS / "results" / "cpu.json").read_text(encoding="utf-8"))
    values["parts"] = {"startup": _make_parts(9.0)["startup"].to_dict()}
    (tmp_path / "slow.json").write_text(json.dumps(values))
    with pytest.raises(SystemExit, match="1 of 1 targets are missed"):
        run_script(script, str(tmp_path / "slow.json"))
