"""``ucn weights``: the shipped weights."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli import _options as opt
from ucn.cli._report import print_json, print_lines, print_table

if TYPE_CHECKING:
    from ucn.weights import WeightsInfo


def run(
    name: Annotated[str | None, opt.detail_argument("these weights")] = None,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """List the shipped weights: data, metrics, licence and restrictions."""
    from ucn.errors import WeightsError
    from ucn.files.suggestions import suggest
    from ucn.weights import list_weights

    table = list_weights()
    if name is not None:
        table = tuple(info for info in table if info.name == name)
        if not table:
            legal = [info.name for info in list_weights()]
            hint = suggest(name, legal)
            raise WeightsError(f"no weights '{name}'{hint}: expected one of {', '.join(legal)}")
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
        "size": _format_size(info.file_bytes),
        "sha256": info.sha256,
    }
    return {**lines, **{metric: f"{value:g}" for metric, value in info.metrics.items()}}


def _print_table(weights: tuple[WeightsInfo, ...]) -> None:
    header = ("name", "task", "size", "data", "metrics", "licence", "restrictions")
    rows = []
    for info in weights:
        metrics = "\n".join(f"{metric}: {value:g}" for metric, value in info.metrics.items())
        size = _format_size(info.file_bytes)
        rows.append((info.name, info.task, size, info.data, metrics, info.licence, info.restrictions))
    print_table(header, rows, text_columns=len(header), show_lines=True)
    typer.echo("`ucn weights NAME` shows all details of one of them.")


def _format_size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else "–"
