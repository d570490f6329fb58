"""Options that several verbs share, and the match configuration made of them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ucn.config import MatchConfig


def path_option(help_text: str, *names: str, metavar: str = "FILE", show_default: bool | str = False) -> Any:
    """An option that names a file or a folder; without names it is called as its parameter."""
    # readable=False: the library says itself what is wrong with a file, and better.
    return typer.Option(*names, metavar=metavar, readable=False, help=help_text, show_default=show_default)


def output_option(help_text: str, metavar: str = "FILE", show_default: bool | str = False) -> Any:
    """The option ``-o``: where the result goes."""
    return path_option(help_text, "-o", "--output", metavar=metavar, show_default=show_default)


def path_argument(metavar: str, help_text: str) -> Any:
    """An argument that names a file or a folder."""
    return typer.Argument(metavar=metavar, readable=False, help=help_text, show_default=False)


Image0 = Annotated[Path, path_argument("A", "First image.")]
Image1 = Annotated[Path, path_argument("B", "Second image.")]
Weights = Annotated[
    str,
    typer.Option("--weights", metavar="NAME|FILE", help="Shipped weights by name, or a .safetensors file."),
]
MaxSide = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Reduce larger images to this longest side in pixels before encoding; 0 = full size.",
        show_default="what the weights were made for: 1024, birds 160",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or mps.", show_default="the best there is"),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of the estimator's draws.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", envvar="UCN_DEBUG", help="On an error, show the traceback.")]


class Keypoints(StrEnum):
    """What is matched when no points are given."""

    corners = "corners"
    grid = "grid"


def build_config(max_side: int | None = None, **given: Any) -> MatchConfig | None:
    """The configuration that the given options ask for; None where all are None, that is, not given.

    Raises:
        ConfigError: a value is out of range.
    """
    from ucn.config import MatchConfig

    changes = {name: value for name, value in given.items() if value is not None}
    if max_side is not None:
        changes["max_side"] = max_side or None
    return MatchConfig.from_dict(changes) if changes else None
