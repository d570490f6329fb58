"""``ucn extract``: keypoints and descriptors of all images of a folder, in hloc's layout."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli._folder import (
    Batch,
    Detector,
    DetectorName,
    EngineName,
    Folder,
    MaxKeypoints,
    MethodName,
    Workers,
    build_engine,
    build_settings,
    find_method,
)
from ucn.cli._options import Debug, Device, Json, MaxSide, Overwrite, Weights, output_option
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_json, print_lines

if TYPE_CHECKING:
    from ucn.folders.extraction import Extracted

_SHOWN = 5  # failures that are printed


def run(
    folder: Folder,
    output: Annotated[Path, output_option("Features, .h5.", show_default=True)] = Path("features.h5"),
    weights: Weights = "geometric",
    method: MethodName = None,
    detector: Detector = DetectorName.corners,
    max_keypoints: MaxKeypoints = 4096,
    max_side: MaxSide = None,
    batch: Batch = 4,
    shard: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Images written together: what a kill can cost; three shards are held in memory.",
        ),
    ] = 16,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The first so many images only.", show_default="all"),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="This process, or a Ray cluster.")] = EngineName.local,
    workers: Workers = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Describe all images of a folder; write keypoints and descriptors as hloc and COLMAP users expect them.

    A run that was stopped, even by a kill, goes on when the same command is given again.
    """
    from ucn.errors import OutputError
    from ucn.folders.extraction import extract_folder

    if output.suffix.lower() not in (".h5", ".hdf5"):
        raise OutputError(f"cannot write features {output}: its name must end in .h5 or .hdf5")
    found = find_method(weights, method)
    settings = build_settings(found, max_side, max_keypoints, detector, batch)
    begin = time.perf_counter()
    with CountBar("images", is_quiet=json) as bar:
        extracted = extract_folder(
            folder,
            output,
            found.method,
            settings,
            engine=build_engine(engine, workers, device),
            shard=shard,
            limit=limit,
            overwrite=overwrite,
            progress=bar,
        )
    seconds = time.perf_counter() - begin
    speed = (extracted.images - extracted.resumed) / seconds
    if not json:
        _print(extracted, found.title, seconds, speed)
        return
    print_json(
        {
            "command": "extract",
            "ucn": find_version(),
            "folder": str(folder),
            "output": str(output),
            "method": {"name": found.method.name, "title": found.title, "key": dict(found.method.key)},
            "settings": vars(settings),
            "engine": engine.value,
            "images": extracted.images,
            "resumed": extracted.resumed,
            "failures": dict(extracted.failures),
            "seconds": round(seconds, 3),
            "images_per_second": round(speed, 3),
        }
    )


def _print(extracted: Extracted, title: str, seconds: float, speed: float) -> None:
    resumed = f", {extracted.resumed:,} of them by an earlier run" if extracted.resumed else ""
    print_lines(
        {
            "images": f"{extracted.images:,}{resumed}",
            "method": title,
            "time": f"{seconds:.1f} s, {speed:.2f} images a second",
            "written": str(extracted.path),
        }
    )
    say_failures(extracted)


def say_failures(extracted: Extracted) -> None:
    """Names, on stderr, images that could not be read."""
    for reason in list(extracted.failures.values())[:_SHOWN]:
        typer.secho(f"left out: {reason}", err=True, fg=typer.colors.YELLOW)
    if len(extracted.failures) > _SHOWN:
        rest = len(extracted.failures) - _SHOWN
        typer.secho(f"left out: {rest:,} more (--json names them all)", err=True, fg=typer.colors.YELLOW)
