"""Which verbs there are.

A verb is a module of this package with a function `run`, whose parameters are typer's arguments and options,
and whose docstring is its help. It has the option ``debug: Debug = False``, imports the library inside the
function, raises the library's errors and prints its result. One entry in `_VERBS` makes it a command. A group
of verbs (``ucn data check``) is a module with several such functions, named in its `VERBS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ucn.cli import (
    align,
    bench,
    data,
    demo,
    evaluate,
    export,
    extract,
    flow,
    info,
    match,
    pairs,
    pose,
    reconstruct,
    serve,
    track,
    train,
    weights,
)
from ucn.cli._errors import report_errors
from ucn.cli._report import find_version

_VERBS: dict[str, Callable[..., None]] = {
    "demo": demo.run,
    "match": match.run,
    "flow": flow.run,
    "pose": pose.run,
    "align": align.run,
    "track": track.run,
    "extract": extract.run,
    "pairs": pairs.run,
    "reconstruct": reconstruct.run,
    "train": train.run,
    "evaluate": evaluate.run,
    "export": export.run,
    "serve": serve.run,
    "bench": bench.run,
    "weights": weights.run,
    "info": info.run,
}

_GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "data": ("Data sets: list, check, show or convert them.", data.VERBS),
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _run in _VERBS.items():
    app.command(_name)(report_errors(_run))
for _name, (_help, _verbs) in _GROUPS.items():
    _group = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=_help)
    for _verb, _run in _verbs.items():
        _group.command(_verb)(report_errors(_run))
    app.add_typer(_group, name=_name)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"ucn {find_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which point in one image is which point in another.

    Try `ucn demo` first: it matches a bundled pair of photographs, without a network connection.
    """
