"""Options that the verbs for folders of images share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli._options import path_argument

if TYPE_CHECKING:
    from ucn.evaluate.reconstruction.methods import FolderMethod
    from ucn.folders.extraction import Engine
    from ucn.folders.image_features import ExtractSettings

Folder = Annotated[Path, path_argument("FOLDER", "Images, in folders below it too.")]
MethodName = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Another method than the network: sift, daisy, disk, …",
        show_default=False,
    ),
]
MaxKeypoints = Annotated[int, typer.Option(metavar="N", min=1, help="At most so many keypoints an image.")]
Batch = Annotated[
    int, typer.Option(metavar="N", min=1, help="Images of one size that pass the network together.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Of Ray: processes, each with a GPU or a core.", show_default="all there are"
    ),
]


class DetectorName(StrEnum):
    """Where keypoints are."""

    corners = "corners"
    blobs = "blobs"
    features = "features"
    grid = "grid"
    own = "own"


Detector = Annotated[
    DetectorName,
    typer.Option(
        help="Keypoints: corners, blobs (SIFT's), peaks of features, a grid, or the method's own (disk)."
    ),
]


class EngineName(StrEnum):
    """Who does the work."""

    local = "local"
    ray = "ray"


def find_method(weights: str, method: str | None) -> FolderMethod:
    """The method that the options ask for."""
    from ucn.evaluate.reconstruction.methods import load_folder_method

    return load_folder_method(method or weights, engine="auto")


def build_settings(
    found: FolderMethod, max_side: int | None, max_keypoints: int, detector: DetectorName, batch: int
) -> ExtractSettings:
    """How images are described; without --max-side as large as the method was made for."""
    from ucn.folders.image_features import ExtractSettings

    side = found.max_side if max_side is None else max_side or None
    return ExtractSettings(side, max_keypoints, detector.value, batch)


def build_engine(name: EngineName, workers: int | None, device: str | None) -> Engine:
    """The engine that the options ask for."""
    from ucn.errors import ConfigError

    if name is EngineName.ray:
        from ucn.folders.ray_engine import RayEngine

        return RayEngine(workers=workers, device=device)
    if workers is not None:
        raise ConfigError("--workers is for --engine ray; leave it out")
    from ucn.folders.extraction import LocalEngine

    return LocalEngine(device)
