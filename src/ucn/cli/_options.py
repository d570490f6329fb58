"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ucn.cli._report import warn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ucn.config import MatchConfig


_VAGUE_REMEDIES = ("correct it", "check the path and its rights")


def path_option(help_text: str, *names: str, metavar: str = "FILE", show_default: bool | str = False) -> Any:
    """An option for a file or folder; without names it is called as its parameter."""
    # readable=False: the library's own errors about files are more precise.
    return typer.Option(*names, metavar=metavar, readable=False, help=help_text, show_default=show_default)


def output_option(help_text: str, metavar: str = "FILE", show_default: bool | str = False) -> Any:
    """The option ``-o``."""
    return path_option(help_text, "-o", "--output", metavar=metavar, show_default=show_default)


def path_argument(metavar: str, help_text: str) -> Any:
    """An argument for a file or folder."""
    return typer.Argument(metavar=metavar, readable=False, help=help_text, show_default=False)


def count_option(help_text: str, default: str | None = None, minimum: int = 1) -> Any:
    """An option for a whole number; `default` is shown in the help."""
    return typer.Option(metavar="N", min=minimum, help=help_text, show_default=default or True)


def flag(names: str, help_text: str) -> Any:
    """An option without a value, such as ``--quick`` or ``--video/--no-video``."""
    return typer.Option(names, help=help_text)


def switch(name: str, help_text: str) -> Any:
    """A pair of options ``--NAME/--no-NAME`` of type `bool | None`, of which the first is the default."""
    return typer.Option(f"--{name}/--no-{name}", help=help_text, show_default=name)


def detail_argument(what: str) -> Any:
    """An optional name of which all details are shown."""
    return typer.Argument(metavar="NAME", help=f"Show all details of {what}.", show_default=False)


Image0 = Annotated[Path, path_argument("A", "First image.")]
Image1 = Annotated[Path, path_argument("B", "Second image.")]
Weights = Annotated[
    str,
    typer.Option("--weights", metavar="NAME|FILE", help="Shipped weights by name, or a .safetensors file."),
]
MaxSide = Annotated[
    str,
    typer.Option(
        metavar="auto|none|N",
        help="Longest image side in pixels; larger images are reduced before encoding; none = full size.",
        show_default="auto, the training size of the weights: 1024, birds 160",
    ),
]
Consensus = Annotated[
    bool | None,
    switch("consensus", "Where descriptors alone do not decide, let the matches around a point decide."),
]
Views = Annotated[
    bool | None,
    switch("views", "Where scale or rotation differ much, encode an image again, enlarged or rotated."),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or mps.", show_default="the best available"),
]
Seed = Annotated[int, count_option("Random seed of RANSAC.", minimum=0)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing outputs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", envvar="UCN_DEBUG", help="Show the traceback of an error.")]


@dataclass(frozen=True)
class PairOptions:
    """Options of every command that matches two images."""

    weights: Weights = "geometric"
    max_side: MaxSide = "auto"
    consensus: Consensus = None
    views: Views = None
    device: Device = None
    overwrite: Overwrite = False
    json: Json = False
    debug: Debug = False


@dataclass(frozen=True)
class TransferOptions(PairOptions):
    """Those of pairs; parts of other objects need other weights than one scene."""

    weights: Weights = "universal"


def expand_options(run: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the fields of its keyword ``options``, a dataclass, as options after its own."""
    own = inspect.signature(run, eval_str=True).parameters
    group = own["options"].annotation
    shared = inspect.signature(group, eval_str=True).parameters

    @functools.wraps(run)
    def expanded(**given: Any) -> None:
        run(options=group(**{name: given.pop(name) for name in shared}), **given)

    parameters = [*(each for each in own.values() if each.name != "options"), *shared.values()]
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in parameters}
    return expanded


class Keypoints(StrEnum):
    """What is matched without given points."""

    corners = "corners"
    grid = "grid"


def read_camera_option(
    option: str, given: str, image: Path | None = None, *, is_quiet: bool = False
) -> NDArray[np.float64]:
    """The camera matrix (3, 3) that an option gives, as `ucn.data.cameras.read_camera` reads it.

    Args:
        option: its name, for errors and warnings.
        given: its value.
        image: the image that it is for, if it is for one.
        is_quiet: do not warn of lens distortion.

    Raises:
        DataError: it is none; the error names the option.
    """
    from ucn.data.cameras import read_camera
    from ucn.errors import DataError

    try:
        camera = read_camera(given, image)
    except DataError as error:
        reason, _, remedy = str(error).rpartition("; ")
        if remedy in _VAGUE_REMEDIES:
            remedy = "give fx,fy,cx,cy in pixels, such as 1200,1200,639.5,479.5, or a file of 3 × 3 numbers"
        raise DataError(f"{option} {reason}; {remedy}" if reason else f"{option} {error}") from error
    if camera.is_distorted and not is_quiet:
        warn(
            f"warning: {option} {given[:80]} has lens distortion, which is ignored: right for undistorted "
            "images (`colmap image_undistorter`, cv2.undistort)"
        )
    return camera.K


def read_max_side(given: str) -> Literal["auto"] | int | None:
    """The value of --max-side, as `MatchConfig.max_side`; raises `typer.BadParameter`."""
    if given == "auto":
        return "auto"
    if given == "none":
        return None
    if not (given.isascii() and given.isdecimal()) or len(given) > 9 or int(given) < 32:
        raise typer.BadParameter(
            f"--max-side must be auto, none (full size) or a number of pixels from 32 on, got {given[:40]!r}"
        )
    return int(given)


def build_config(max_side: str = "auto", **given: Any) -> MatchConfig | None:
    """The configuration from the given options; None where all are None, or auto, that is, not given.

    Raises:
        ConfigError: a value is out of range.
        typer.BadParameter: --max-side is none of its values.
    """
    from ucn.config import MatchConfig

    changes = {name: value for name, value in given.items() if value is not None}
    side = read_max_side(max_side)
    if side != "auto":
        changes["max_side"] = side
    return MatchConfig.from_dict(changes) if changes else None
