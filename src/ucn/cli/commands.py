"""The commands by name, and the typer app of all or some of them.

A command is a module of this package with a function `run`. Its parameters are typer's arguments and options,
its docstring is the help. It has the option ``debug: opt.Debug = False``, by itself or among the shared ones
that `expand_options` adds, imports the library inside the function, raises the library's errors and prints
its result. A name in `COMMANDS` registers it. A group of
commands (``ucn data check``) is a module with several such functions, listed in its `COMMANDS`.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Annotated

import typer

from ucn.cli._errors import report_errors
from ucn.cli._report import find_version

_GROUPS = {"data": "List, check, show or convert data sets."}
COMMANDS = (
    *("demo", "match", "flow", "pose", "align", "track", "extract", "pairs", "reconstruct", "train"),
    *("evaluate", "export", "serve", "bench", "weights", "info", *_GROUPS),
)
"""In the order of the help."""


def build_app(names: Collection[str] = COMMANDS) -> typer.Typer:
    """Builds the app of these commands; only their modules are imported."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        module = import_module(f"ucn.cli.{name}")
        if name not in _GROUPS:
            app.command(name)(report_errors(module.run))
            continue
        group = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=_GROUPS[name])
        for command, run in module.COMMANDS.items():
            group.command(command)(report_errors(run))
        app.add_typer(group, name=name)
    return app


def _show_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"ucn {find_version()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find corresponding points of images, of one scene or of objects of one kind.

    Try `ucn demo` first: it matches a bundled pair of photographs, offline.
    """
