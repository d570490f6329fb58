"""Errors as one line on stderr, and exit codes: 1 for errors, 2 for wrong usage, 130 for Ctrl-C."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from ucn.errors import UcnError

_OPTIONS = {
    "at least 32, 0 (of the weights) or None (full size)": "at least 32 pixels, or 0 for full size",
    "overwrite=True": "--overwrite",
    "resume=True": "--resume",
    "use_skipping=True": "--skip-bad",
    "a folder of photographs (images) or a data set (sources)": "--images DIR or --data NAME=DIR",
    "has no folder: give data ": "has no folder: give --data ",
    "is given among the weights files": "is given by --weights-file FILE",
}


def report_errors(run: Callable[..., None]) -> Callable[..., None]:
    """Makes a command print one ``error:`` line and exit instead of raising, unless ``--debug`` is given."""

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
