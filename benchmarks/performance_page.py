"""Fills the tables and plots of docs/performance.md from results of `ucn bench`.

ucn bench --device cuda -o benchmarks/results/h200.json
ucn bench --device cpu -o benchmarks/results/cpu.json
python benchmarks/performance_page.py

A block of the page begins with ``<!-- bench:NAME -->`` and ends with ``<!-- /bench -->``; its content is
replaced. NAME is 'machines' or a part of `ucn bench`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ucn.bench.machine import format_machine
from ucn.bench.plots import draw_growth
from ucn.bench.report import Part, Table
from ucn.bench.run import PARTS, read_parts
from ucn.errors import DataError
from ucn.files.writing import write_bytes_atomically

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "performance.md"
_RESULTS = _ROOT / "benchmarks" / "results"
_IMAGES = "images/performance"
_BLOCK = re.compile(r"<!-- bench:(\w+) -->\n.*?<!-- /bench -->", flags=re.DOTALL)
_OPTIONS = (
    ("is_quick", False, "--quick"),
    ("is_thorough", False, "--thorough"),
    ("weights", "geometric", "--weights {}"),
    ("has_xfeat", False, "--xfeat FILE"),
    ("limit_seconds", 90.0, "--limit-seconds {:g}"),
    ("seed", 0, "--seed {}"),
)
"""Settings of a result, their defaults, and the options of `ucn bench` that set them."""

Results = Mapping[str, Mapping[str, Any]]
"""Name of a file to the result in it, as `ucn.bench.run.run_parts` returns it."""


def main() -> None:
    results = read_results()
    folder = _PAGE.parent / _IMAGES
    for name, result in results.items():
        parts = read_parts(result, name)
        if "growth" in parts:
            folder.mkdir(parents=True, exist_ok=True)
            plot = draw_growth(parts["growth"], format_machine(dict(result["machine"])))
            for suffix, content in (("png", plot.png), ("svg", plot.svg)):
                write_bytes_atomically(folder / f"growth-{name}.{suffix}", content, overwrite=True)
    write_bytes_atomically(_PAGE, make_page(results).encode(), overwrite=True)
    print(f"written: {_PAGE.relative_to(_ROOT)}")


def read_results(folder: Path = _RESULTS) -> dict[str, dict[str, Any]]:
    """All results of `ucn bench` in a folder, those of GPUs first."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    results = {name: values for name, values in found.items() if values.get("command") == "bench"}
    return dict(sorted(results.items(), key=lambda item: (item[1]["machine"]["device"] == "cpu", item[0])))


def make_page(results: Results) -> str:
    """The text of docs/performance.md with its blocks filled."""
    page = _PAGE.read_text(encoding="utf-8")
    return fill_page(page, results, lambda name: f"{_IMAGES}/growth-{name}.png")


def fill_page(text: str, results: Results, plot_link: Callable[[str], str] | None = None) -> str:
    """Fills the blocks of a page.

    Args:
        text: the page.
        results: in the order in which they are shown.
        plot_link: link to the plot of the growth part of a result; None leaves plots out.

    Raises:
        DataError: a block has an unknown name, or a result is invalid.
    """
    parts = {name: read_parts(result, name) for name, result in results.items()}

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        if name == "machines":
            content = _list_machines(results)
        elif name in PARTS:
            content = _show_part(name, results, parts, plot_link)
        else:
            legal = ", ".join(["machines", *PARTS])
            raise DataError(f"the page has a block 'bench:{name}': expected one of {legal}")
        return f"<!-- bench:{name} -->\n\n{content}<!-- /bench -->"

    return _BLOCK.sub(fill, text)


def render_table(table: Table) -> str:
    """A table in Markdown, with its title above and its notes below."""
    lines = [
        *textwrap.wrap(f"*{table.title}*", 100, break_on_hyphens=False),
        "",
        _join(column.heading for column in table.columns),
        _join("---" if column.unit == "text" else "---:" for column in table.columns),
        *(_join(row) for row in table.format_rows()),
        "",
    ]
    if table.notes:
        lines += [*textwrap.wrap(" ".join(table.notes), 100, break_on_hyphens=False), ""]
    return "\n".join(lines) + "\n"


def format_settings(part: Mapping[str, Any]) -> str:
    """The options of `ucn bench` that a part was measured with; empty for the defaults."""
    settings = part.get("settings") or {}
    given = [text.format(settings[key]) for key, usual, text in _OPTIONS if settings.get(key, usual) != usual]
    return " ".join(given)


def _join(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _list_machines(results: Results) -> str:
    lines: list[str] = []
    for name, result in results.items():
        machine = result["machine"]
        packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
        software = f"Python {machine['python']}, {machine['system']}, {packages}"
        sentences = [f"- **{name}**: {format_machine(machine)}. {software}."]
        sentences += [f"Warning: {warning}." for warning in machine["warnings"]]
        sentences += [f"Part `{part}` failed: {why}." for part, why in result.get("failures", {}).items()]
        lines += textwrap.wrap(" ".join(sentences), 100, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n\n"


def _show_part(
    part: str,
    results: Results,
    parts: Mapping[str, Mapping[str, Part]],
    plot_link: Callable[[str], str] | None,
) -> str:
    blocks = []
    for name in results:
        if part not in parts[name]:
            continue
        options = format_settings(results[name]["parts"][part])
        blocks.append(f"**{name}**{f', measured with `{options}`' if options else ''}\n\n")
        if part == "growth" and plot_link is not None:
            blocks.append(f"![Growth of time and memory, {name}]({plot_link(name)})\n\n")
        blocks += [render_table(table) for table in parts[name][part].tables]
    return "".join(blocks) or "Not measured yet.\n\n"


if __name__ == "__main__":
    main()
