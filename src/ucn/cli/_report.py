"""How results are said: to people as aligned lines, to programs as one JSON object."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import ucn

if TYPE_CHECKING:
    from ucn.matching.matcher import Matcher


def find_version() -> str:
    """The installed version of ucn."""
    return ucn.__version__


def describe_run(matcher: Matcher) -> dict[str, Any]:
    """What a result depends on, to be kept beside it: versions, weights and configuration."""
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
    """A value for JSON: NaN and infinities become None."""
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


def say_share(share: float) -> str:
    """A share in [0, 1] as per cent."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def say_seconds(seconds: Mapping[str, float]) -> str:
    """The total, then the stages that took long enough to matter."""
    stages = [f"{name} {value:.2f}" for name, value in seconds.items() if name != "total" and value >= 0.005]
    return f"{seconds['total']:.2f} s ({', '.join(stages)})"


def say_files(paths: Iterable[Path]) -> str:
    """File names in one line."""
    return ", ".join(map(str, paths)) or "nothing (use -o or --draw)"
