"""``ucn weights``: what is shipped."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli._options import Debug, Json
from ucn.cli._report import print_json, print_lines

if TYPE_CHECKING:
    from ucn.weights import WeightsInfo


def run(
    name: Annotated[
        str | None, typer.Argument(help="Say everything about these weights.", show_default=False)
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the shipped weights: data, figures, licence and restrictions."""
    from ucn.errors import WeightsError
    from ucn.weights import list_weights

    table = list_weights()
    if name is not None:
        table = tuple(info for info in table if info.name == name)
        if not table:
            legal = ", ".join(info.name for info in list_weights())
            raise WeightsError(f"no weights '{name}': expected one of {legal}")
    if json:
        print_json({"command": "weights", "weights": [asdict(info) for info in table]})
    elif name is not None:
        print_lines(_describe(table[0]))
    else:
        _print_table(table)


def _describe(info: WeightsInfo) -> dict[str, str]:
    lines = {
        "name": info.name,
        "description": info.description,
        "task": info.task,
        "data": info.data,
        "licence": info.licence,
        "restrictions": info.restrictions,
        "size": _say_bytes(info.file_bytes),
        "sha256": info.sha256,
    }
    return {**lines, **{metric: f"{value:g}" for metric, value in info.metrics.items()}}


def _print_table(weights: tuple[WeightsInfo, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "task", "size", "data", "figures", "licence", "restrictions", show_lines=True)
    for info in weights:
        figures = "\n".join(f"{metric}: {value:g}" for metric, value in info.metrics.items())
        size = _say_bytes(info.file_bytes)
        table.add_row(info.name, info.task, size, info.data, figures, info.licence, info.restrictions)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 140
    console.print(table)
    console.print("`ucn weights NAME` says everything about one of them.")


def _say_bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else "–"
