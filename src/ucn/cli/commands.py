"""The commands by name, the typer app of all or some of them, and how errors are printed.

A command is a module of this package with a function `run`. Its parameters are typer's arguments and options,
its docstring is the help. It has the option ``debug: opt.Debug = False``, by itself or among the shared ones
that `expand_options` adds, imports the library inside the function, raises the library's errors and prints
its result. A name in `COMMANDS` registers it. A group of
commands (``ucn data check``) is a module with several such functions, listed in its `COMMANDS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ucn.cli._help import HelpCommand, HelpGroup, arrange
from ucn.cli._report import find_version
from ucn.errors import UcnError

_GROUPS = {"data": "List, check, show or convert data sets."}
COMMANDS = (
    *("demo", "match", "flow", "pose", "align", "stitch", "track", "transfer"),
    *("extract", "pairs", "reconstruct"),
    *("train", "evaluate", "export", "serve", "bench", "weights", "info", *_GROUPS),
)
"""In the order of the help."""

# What the library's errors name, and the options that set it.
_OPTIONS = {
    "overwrite=True": "--overwrite",
    "by all_pairs=True": "by --all-pairs",
    "that its names are relative to (root)": "that its names are relative to by --root",
    "resume=True": "--resume",
    "use_skipping=True": "--skip-bad",
    "a folder of photographs (images) or a data set (sources)": "--images DIR or --data NAME=DIR",
    "has no folder: give data ": "has no folder: give --data ",
    "is given among the weights files": "is given by --weights-file FILE",
}


def build_app(names: Collection[str] = COMMANDS) -> typer.Typer:
    """Builds the app of these commands; only their modules are imported."""
    app = typer.Typer(
        cls=HelpGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        module = import_module(f"ucn.cli.{name}")
        if name not in _GROUPS:
            app.command(name, cls=HelpCommand)(report_errors(arrange(name, module.run)))
            continue
        group = typer.Typer(
            cls=HelpGroup, no_args_is_help=True, pretty_exceptions_enable=False, help=_GROUPS[name]
        )
        for command, run in module.COMMANDS.items():
            group.command(command, cls=HelpCommand)(report_errors(arrange(command, run)))
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


def report_errors(run: Callable[..., None]) -> Callable[..., None]:
    """Makes a command print one ``error:`` line and exit instead of raising, unless ``--debug`` is given.

    Exit codes: 1 for errors, 2 for wrong usage, 130 for Ctrl-C.
    """

    @functools.wraps(run)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            run(*arguments, **options)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # typer handles these
        except KeyboardInterrupt:
            typer.secho("interrupted", err=True)
            raise typer.Exit(130) from None
        except Exception as error:
            if options.get("debug"):
                raise
            typer.secho(f"error: {_format_error(error, options)}", err=True, fg=typer.colors.RED)
            raise typer.Exit(1) from None

    return guarded


def _format_error(error: Exception, options: Mapping[str, Any]) -> str:
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, (UcnError, ValueError)):
        return _name_options(text, options) or type(error).__name__
    if isinstance(error, MemoryError) or "out of memory" in text.lower():
        return "not enough memory; try smaller images, a smaller batch, or --device cpu"
    name = type(error).__name__
    return f"unexpected {name}: {text} (this is a bug in ucn; --debug shows the traceback)"


def _name_options(text: str, options: Mapping[str, Any]) -> str:
    """Replaces arguments that an error of the library names by the options that set them."""
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    name, _, rest = text.partition(" ")
    if rest.startswith("must ") and name in options and not isinstance(options[name], Path):
        return f"--{name.replace('_', '-')} {rest}"
    return text
