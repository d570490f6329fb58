"""One line for every error, and the exit codes: 1 for errors, 2 for wrong usage, 130 for Ctrl-C."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from ucn.errors import UcnError


def report_errors(run: Callable[..., None]) -> Callable[..., None]:
    """Makes a verb print one ``error:`` line and exit instead of raising, unless ``--debug`` was given."""

    @functools.wraps(run)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            run(*arguments, **options)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # typer's own way out
        except KeyboardInterrupt:
            typer.secho("interrupted", err=True)
            raise typer.Exit(130) from None
        except Exception as error:
            if options.get("debug"):
                raise
            typer.secho(f"error: {_describe(error)}", err=True, fg=typer.colors.RED)
            raise typer.Exit(1) from None

    return guarded


def _describe(error: Exception) -> str:
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, (UcnError, ValueError)):
        return text or type(error).__name__
    if isinstance(error, MemoryError) or "out of memory" in text.lower():
        return "not enough memory; try smaller images, a smaller batch, or --device cpu"
    name = type(error).__name__
    return f"unexpected {name}: {text} (this is a fault of ucn; --debug shows where it happened)"
