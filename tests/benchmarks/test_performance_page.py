from typing import Any

import pytest

from support.benchmark_scripts import load_script
from support.docs_cases import ROOT
from ucn.bench.report import Column, Part, Table
from ucn.bench.run import SCHEMA
from ucn.errors import DataError

script = load_script("performance_page")

TABLE = Table(
    "speed", (Column("method"), Column("time", "ms")), (("ours|1", 0.08974), ("theirs", None)), ("Once.",)
)
RENDERED = """*speed*

| method | time, ms |
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
    assert script.render_table(TABLE) == RENDERED


def test_blocks_are_filled_and_the_rest_stays() -> None:
    page = "# Page\n\n<!-- bench:knn -->\nold\n<!-- /bench -->\n\nText.\n\n<!-- bench:train --> \n"
    filled = script.fill_page(page, {"mine": _make_result(knn=Part((TABLE,)))})
    block = f"<!-- bench:knn -->\n\n**mine**\n\n{RENDERED}<!-- /bench -->"
    assert filled == f"# Page\n\n{block}\n\nText.\n\n<!-- bench:train --> \n"
    assert script.fill_page(filled, {"mine": _make_result(knn=Part((TABLE,)))}) == filled


def test_settings_and_failures_are_shown() -> None:
    result = _make_result(knn=Part((TABLE,)))
    result["parts"]["knn"]["settings"] = {"is_thorough": True, "limit_seconds": 400.0}
    result["failures"] = {"train": "no memory"}
    page = "<!-- bench:knn -->\n<!-- /bench -->\n<!-- bench:machines -->\n<!-- /bench -->"
    filled = script.fill_page(page, {"mine": result})
    assert "**mine**, measured with `--thorough --limit-seconds 400`" in filled
    assert "Part `train` failed: no memory." in " ".join(filled.split())


def test_machines_and_plots() -> None:
    page = "".join(f"<!-- bench:{name} -->\n<!-- /bench -->\n" for name in ("machines", "growth", "knn"))
    result = _make_result(growth=Part((TABLE,)))
    filled = " ".join(script.fill_page(page, {"mine": result}, lambda name: f"{name}.png").split())
    assert "- **mine**: Some CPU, 2 cores, 2 threads; 8 GB; torch 2. Python 3.11, Linux, torch 2." in filled
    assert "Warning: it was warm." in filled
    assert "![Growth of time and memory, mine](mine.png)" in filled
    assert "Not measured yet." in filled


def test_unknown_blocks_are_refused() -> None:
    with pytest.raises(DataError, match="block 'bench:knm': expected one of machines, knn"):
        script.fill_page("<!-- bench:knm -->\n<!-- /bench -->", {})


def test_page_shows_the_results() -> None:
    results = script.read_results()
    assert results, "benchmarks/results has no result of `ucn bench`"
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert script.make_page(results) == page, "run `python benchmarks/performance_page.py`"
    assert not any(result["settings"]["is_quick"] for result in results.values())
