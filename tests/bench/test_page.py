from typing import Any

import pytest

from support.benchmark_scripts import load_script
from support.docs_cases import ROOT
from ucn.bench.page import fill_page, render_table
from ucn.bench.report import Column, Part, Table, Target
from ucn.bench.run import SCHEMA
from ucn.errors import DataError

TABLE = Table(
    "speed", (Column("way"), Column("time", "ms")), (("ours|1", 0.08974), ("theirs", None)), ("Once.",)
)
RENDERED = """*speed*

| way | time, ms |
| --- | ---: |
| ours&#124;1 | 0.0897 |
| theirs | – |

Once.

"""


def _make_result(**parts: Part) -> dict[str, Any]:
    machine = {
        "cpu": "Some CPU",
        "cores": 2,
        "threads": 2,
        "memory_gb": 8.0,
        "python": "3.11",
        "system": "Linux",
        "packages": {"torch": "2"},
        "device": "cpu",
        "warnings": ["it was warm"],
    }
    return {
        "schema": SCHEMA,
        "machine": machine,
        "settings": {"is_quick": True},
        "parts": {name: part.to_dict() for name, part in parts.items()},
    }


def test_table_as_markdown() -> None:
    assert render_table(TABLE) == RENDERED


def test_blocks_are_filled_and_the_rest_stays() -> None:
    page = "# Page\n\n<!-- bench:knn -->\nold\n<!-- /bench -->\n\nText.\n\n<!-- bench:train --> \n"
    filled = fill_page(page, {"mine": _make_result(knn=Part((TABLE,)))})
    block = f"<!-- bench:knn -->\n\n**mine**\n\n{RENDERED}<!-- /bench -->"
    assert filled == f"# Page\n\n{block}\n\nText.\n\n<!-- bench:train --> \n"
    assert fill_page(filled, {"mine": _make_result(knn=Part((TABLE,)))}) == filled


def test_a_part_is_shown_with_its_own_settings_and_failures_are_told() -> None:
    result = _make_result(knn=Part((TABLE,)))
    result["parts"]["knn"]["settings"] = {"is_thorough": True, "limit_seconds": 400.0}
    result["failures"] = {"train": "no room"}
    page = "<!-- bench:knn -->\n<!-- /bench -->\n<!-- bench:machines -->\n<!-- /bench -->"
    filled = fill_page(page, {"mine": result})
    assert "**mine**, measured with `--thorough --limit-seconds 400`" in filled
    assert "  Part `train` failed: no room." in filled


def test_machines_targets_and_curves() -> None:
    page = "".join(
        f"<!-- bench:{name} -->\n<!-- /bench -->\n" for name in ("machines", "targets", "growth", "knn")
    )
    target = Target("ratio", "here", 3.0, 2.0)
    filled = fill_page(
        page, {"mine": _make_result(growth=Part((TABLE,), (target,)))}, lambda name: f"{name}.png"
    )
    assert "- **mine**: Some CPU, 2 cores, 2 threads; 8 GB; torch 2. Python 3.11, Linux, torch 2." in filled
    assert "Warning: it was warm." in filled
    assert "| ratio | here | at least 2.00× | 3.00× | yes |" in filled
    assert "![Growth of time and memory, mine](mine.png)" in filled
    assert "Not measured yet." in filled


def test_unknown_blocks_are_refused() -> None:
    with pytest.raises(DataError, match="block 'bench:knm': expected one of machines, targets, knn"):
        fill_page("<!-- bench:knm -->\n<!-- /bench -->", {})


def test_page_says_what_was_measured() -> None:
    script = load_script("performance_page")
    results = script.read_results()
    assert results, "benchmarks/results has no result of `ucn bench`"
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert script.make_page(results) == page, "run `python benchmarks/performance_page.py`"
    assert not any(result["settings"]["is_quick"] for result in results.values())
