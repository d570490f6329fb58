"""Results as Markdown, written into a page between markers, so that the page says what was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ucn.bench.machine import say_machine
from ucn.bench.report import Part, Table, tabulate_targets
from ucn.bench.run import PARTS, read_parts, say_settings
from ucn.errors import DataError

_BLOCK = re.compile(r"<!-- bench:(\w+) -->\n.*?<!-- /bench -->", flags=re.DOTALL)

Results = Mapping[str, Mapping[str, Any]]
"""Short names, such as those of the files, to results as `run_parts` gives them."""


def fill_page(text: str, results: Results, image_of: Callable[[str], str] | None = None) -> str:
    """A page whose blocks hold these results.

    A block begins with ``<!-- bench:NAME -->``, where NAME is a part, 'machines' or 'targets', and ends with
    ``<!-- /bench -->``; what stands between is replaced.

    Args:
        text: the page.
        results: in the order in which they are shown.
        image_of: the link to the curves of growth of a result; None shows none.

    Raises:
        DataError: a block has an unknown name, or a result is none.
    """
    parts = {name: read_parts(result, name) for name, result in results.items()}

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        if name == "machines":
            content = _list_machines(results)
        elif name == "targets":
            content = _list_targets(results, parts)
        elif name in PARTS:
            content = _show_part(name, results, parts, image_of)
        else:
            legal = ", ".join(["machines", "targets", *PARTS])
            raise DataError(f"the page has a block 'bench:{name}': expected one of {legal}")
        return f"<!-- bench:{name} -->\n\n{content}<!-- /bench -->"

    return _BLOCK.sub(fill, text)


def render_table(table: Table) -> str:
    """A table in Markdown, with its title before and its notes behind it."""
    lines = [
        f"*{table.title}*",
        "",
        _join(column.heading for column in table.columns),
        _join("---" if column.unit == "text" else "---:" for column in table.columns),
        *(_join(row) for row in table.format_rows()),
        "",
    ]
    if table.notes:
        lines += [" ".join(table.notes), ""]
    return "\n".join(lines) + "\n"


def _join(cells: Any) -> str:
    return f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in cells)} |"


def _list_machines(results: Results) -> str:
    lines = []
    for name, result in results.items():
        machine = result["machine"]
        packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
        software = f"Python {machine['python']}, {machine['system']}, {packages}"
        lines.append(f"- **{name}**: {say_machine(machine)}. {software}.")
        lines += [f"  Warning: {warning}." for warning in machine["warnings"]]
        lines += [f"  Part `{part}` failed: {why}." for part, why in result.get("failures", {}).items()]
    return "\n".join(lines) + "\n\n"


def _list_targets(results: Results, parts: Mapping[str, Mapping[str, Part]]) -> str:
    blocks = []
    for name in results:
        targets = [target for part in parts[name].values() for target in part.targets]
        if targets:
            blocks.append(f"**{name}**\n\n{render_table(tabulate_targets(targets))}")
    return "".join(blocks)


def _show_part(
    part: str,
    results: Results,
    parts: Mapping[str, Mapping[str, Part]],
    image_of: Callable[[str], str] | None,
) -> str:
    blocks = []
    for name in results:
        if part not in parts[name]:
            continue
        options = say_settings(results[name]["parts"][part])
        blocks.append(f"**{name}**{f', measured with `{options}`' if options else ''}\n\n")
        if part == "growth" and image_of is not None:
            blocks.append(f"![Growth of time and memory, {name}]({image_of(name)})\n\n")
        blocks += [render_table(table) for table in parts[name][part].tables]
    return "".join(blocks) or "Not measured yet.\n\n"
