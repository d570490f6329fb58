"""The registered commands.

A command is a module of this package with a function `run`. Its parameters are typer's arguments and options,
its docstring is the help. It has the option ``debug: opt.Debug = False``, imports the library inside the
function, raises the library's errors and prints its result. A name in `_COMMANDS` registers it. A group of
commands (``ucn data check``) is a module with several such functions, listed in its `COMMANDS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from ucn.cli import data
from ucn.cli._errors import report_errors
from ucn.cli._report import find_version

_COMMANDS = (
    *("demo", "match", "flow", "pose", "align", "track", "extract", "pairs", "reconstruct", "train"),
    *("evaluate", "export", "serve", "bench", "weights", "info"),
)
_GROUPS = {"data": ("List, check, show or convert data sets.", data.COMMANDS)}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name in _COMMANDS:
    app.command(_name)(report_errors(import_module(f"ucn.cli.{_name}").run))
for _name, (_help, _commands) in _GROUPS.items():
    _group = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=_help)
    for _command, _run in _commands.items():
        _group.command(_command)(report_errors(_run))
    app.add_typer(_group, name=_name)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"ucn {find_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find corresponding points of images, of one scene or of objects of one kind.

    Try `ucn demo` first: it matches a bundled pair of photographs, offline.
    """
