"""Options of the commands for folders of images: extract, pairs and reconstruct."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli import _options as opt
from ucn.cli._checks import check_features, check_image_folder
from ucn.cli._options import count_option, flag, path_argument
from ucn.cli._report import warn

if TYPE_CHECKING:
    from ucn.features.method import MethodInfo
    from ucn.folders.extraction import Executor, ExtractionResult
    from ucn.folders.worker import ExtractSettings

_SHOWN_FAILURES = 5

Folder = Annotated[Path, path_argument("FOLDER", "Folder of images, searched recursively.")]
MethodName = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Features other than the network's: sift, daisy, disk, …",
        show_default=False,
    ),
]
MaxKeypoints = Annotated[int, count_option("Largest number of keypoints per image.")]
Scales = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Multi-scale features, for views from different distances: relative sizes at which images are "
        "encoded, such as 1,0.5,0.25.",
    ),
]
Batch = Annotated[int, count_option("Batch size; images of one size are encoded together.")]
Workers = Annotated[
    int | None, count_option("Number of Ray workers, each with a GPU or a CPU core.", "all available")
]


class DetectorName(StrEnum):
    """Keypoint detectors."""

    corners = "corners"
    blobs = "blobs"
    features = "features"
    grid = "grid"
    own = "own"


Detector = Annotated[
    DetectorName,
    typer.Option(
        help="Keypoints: corners, SIFT blobs, peaks of the features, a grid, or the method's own (disk)."
    ),
]


class ExecutorName(StrEnum):
    """Where the work runs."""

    local = "local"
    ray = "ray"


ExecutorOption = Annotated[ExecutorName, typer.Option(help="This process, or a Ray cluster.")]


class PairingName(StrEnum):
    """How image pairs are chosen."""

    exhaustive = "exhaustive"
    sequential = "sequential"
    retrieval = "retrieval"


Pairing = Annotated[
    PairingName, typer.Option(help="All pairs; images that follow each other by name; or similar images.")
]
Overlap = Annotated[int, count_option("Sequential pairing: number of following images.")]
Neighbours = Annotated[int, count_option("Retrieval pairing: number of similar images.")]
MinSimilarity = Annotated[
    float,
    typer.Option(metavar="S", help="Drop matches with a lower cosine similarity of descriptors; -1 = off."),
]
Consensus = Annotated[
    bool,
    flag(
        "--consensus/--no-consensus",
        "Let the matches around a keypoint decide where descriptors do not.",
    ),
]


@dataclass(frozen=True)
class ExtractOptions:
    """Options of the commands that extract features: what, where, and how to report it."""

    weights: opt.Weights = "geometric"
    method: MethodName = None
    detector: Detector = DetectorName.corners
    max_keypoints: MaxKeypoints = 4096
    max_side: opt.MaxSide = "auto"
    scales: Scales = "1"
    batch: Batch = 4
    executor: ExecutorOption = ExecutorName.local
    workers: Workers = None
    device: opt.Device = None
    overwrite: opt.Overwrite = False
    json: opt.Json = False
    debug: opt.Debug = False

    def check_inputs(self, folder: Path) -> None:
        """Checks the folder of images and the method, before torch is imported."""
        check_image_folder(folder)
        check_features(self.method, self.weights)

    def find_method(self) -> MethodInfo:
        """The method of --method, or the network of --weights; its weights are not loaded."""
        from ucn.errors import ConfigError
        from ucn.features.baselines import BASELINES

        name = self.method or self.weights
        try:
            return BASELINES.find_features(name, engine="auto")
        except ConfigError:  # the larger table says of systems of the paper why they do not serve
            from ucn.paper.registry import METHODS

            return METHODS.find_features(name, engine="auto")

    def build_settings(self, found: MethodInfo) -> ExtractSettings:
        """Settings of the extraction; --max-side auto is the size that the method was made for."""
        from ucn.folders.worker import ExtractSettings

        given = opt.read_max_side(self.max_side)
        side = found.max_side if given == "auto" else given
        scales = _read_scales(self.scales)
        return ExtractSettings(side, self.max_keypoints, self.detector.value, self.batch, scales)

    def build_executor(self) -> Executor:
        """The executor that --executor names."""
        from ucn.errors import ConfigError

        if self.executor is ExecutorName.ray:
            from ucn.folders.ray_executor import RayExecutor

            return RayExecutor(workers=self.workers, device=self.device)
        if self.workers is not None:
            raise ConfigError("--workers is for --executor ray; leave it out")
        from ucn.folders.extraction import LocalExecutor

        return LocalExecutor(self.device)


def _read_scales(given: str) -> tuple[float, ...]:
    from ucn.errors import ConfigError

    try:
        return tuple(float(part) for part in given.split(","))
    except ValueError as error:
        raise ConfigError(
            f"--scales must be numbers separated by commas, such as 1,0.5,0.25, got '{given[:80]}'"
        ) from error


def warn_failures(extracted: ExtractionResult) -> None:
    """Prints, on stderr, why images could not be read."""
    reasons = list(extracted.failures.values())
    for reason in reasons[:_SHOWN_FAILURES]:
        warn(f"left out: {reason}")
    if len(reasons) > _SHOWN_FAILURES:
        warn(f"left out: {len(reasons) - _SHOWN_FAILURES:,} more (--json lists all)")
