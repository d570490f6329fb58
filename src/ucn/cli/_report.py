"""How results are printed: aligned lines and tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import ucn

if TYPE_CHECKING:
    from ucn.matching.matcher import Matcher
    from ucn.types import Matches


def find_version() -> str:
    """The version of ucn."""
    return ucn.__version__


def describe_run(matcher: Matcher) -> dict[str, Any]:
    """Versions, weights and configuration, to be stored with a result."""
    import torch

    return {
        "ucn": find_version(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "weights": {"name": matcher.weights.name, "sha256": matcher.weights.sha256},
        "config": matcher.config.to_dict(),
    }


def print_json(values: Mapping[str, Any]) -> None:
    """Prints one JSON object; NaN and infinities become null."""
    typer.echo(json.dumps(without_nan(values), indent=2, allow_nan=False))


def without_nan(value: Any) -> Any:
    """Replaces NaN and infinities by None, for JSON."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_lines(lines: Mapping[str, str], to_stderr: bool = False) -> None:
    """Prints names and values in two aligned columns."""
    width = max(map(len, lines)) + 2
    for name, value in lines.items():
        typer.echo(typer.style(name.ljust(width), dim=True) + value, err=to_stderr)


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    text_columns: int = 1,
    show_lines: bool = False,
) -> None:
    """Prints a table; the columns after the first `text_columns` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, title=title, title_justify="left", show_lines=show_lines)
    for column in table.columns[text_columns:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 160
    console.print(table)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows in aligned columns, each in one line: a narrow terminal cuts the end off."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        shown = line if len(line) <= limit else f"{line[: limit - 1]}…"
        typer.echo(typer.style(shown[: widths[0]], bold=True) + shown[widths[0] :])


def warn(text: str) -> None:
    """Prints a line in yellow on stderr."""
    typer.secho(text, err=True, fg=typer.colors.YELLOW)


def format_share(share: float) -> str:
    """A share in [0, 1] in per cent."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def format_seconds(seconds: Mapping[str, float]) -> str:
    """The total, and stages of at least 5 ms."""
    stages = [f"{name} {value:.2f}" for name, value in seconds.items() if name != "total" and value >= 0.005]
    return f"{seconds['total']:.2f} s ({', '.join(stages)})"


def format_weights(weights: Mapping[str, str]) -> str:
    """Name and abbreviated hash of weights."""
    return f"{weights['name']}, sha256 {weights['sha256'][:16]}"


def format_estimator(estimator: Mapping[str, Any]) -> str:
    """Name, threshold and seed of a robust estimator."""
    return f"{estimator['name']}, threshold {estimator['threshold_px']:g} px, seed {estimator['seed']}"


def format_matrix(name: str, rows: Sequence[Sequence[float]], spec: str) -> dict[str, str]:
    """A 3 × 3 matrix as three lines for `print_lines`."""
    lines = ["  ".join(format(value, spec) for value in row) for row in rows]
    return {name: lines[0], " ": lines[1], "  ": lines[2]}


def format_files(paths: Iterable[Path]) -> str:
    """File names in one line."""
    return ", ".join(map(str, paths)) or "nothing (use -o or --draw)"


def to_dicts(problems: Iterable[Any]) -> list[dict[str, Any]]:
    """Problems of data sets for JSON."""
    return [{"file": str(each.path), "line": each.line, "message": each.message} for each in problems]


def describe_doubt(matches: Matches) -> str:
    """What a low pair score means, and what was tried before."""
    doubt = "these images may not show the same scene or object"
    change = matches.view_change
    if change is None:
        return f"{doubt}; other scales and rotations were not tried (--no-views)"
    if not change.is_searched:
        return doubt
    return f"{doubt}; scales from 1/4 to 4 with rotations by 0, 90, 180 and 270° were tried"


def describe_views(matches: Matches) -> dict[str, str]:
    """A line about the views that were encoded; none where the images were matched as they are."""
    change = matches.view_change
    if change is None or not change.encodings:
        return {}
    found = f"relative scale {change.scale:.2f}, rotation {change.degrees:.0f}°"
    return {"views": f"{found} ({change.encodings} more encodings)"}
