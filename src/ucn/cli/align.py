"""``ucn align``: one image laid over another by a homography."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _matcher
from ucn.cli._options import (
    Debug,
    Device,
    Image0,
    Image1,
    Json,
    MaxSide,
    Overwrite,
    Seed,
    Weights,
    build_config,
    output_option,
    path_option,
)
from ucn.cli._outputs import check_outputs, write_all
from ucn.cli._report import describe_run, print_json, print_lines, say_files, say_seconds
from ucn.cli._stages import Stages

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ucn.geometry.homography import HomographyEstimate
    from ucn.types import Matches


@dataclass(frozen=True)
class _Files:
    """What is asked for, by what it shows."""

    warped: Path | None
    overlay: Path | None
    blink: Path | None
    matrix: Path | None

    def given(self) -> dict[str, Path]:
        return {name: path for name, path in vars(self).items() if path is not None}


def run(
    image0: Image0,
    image1: Image1,
    output: Annotated[Path | None, output_option("Write B in the frame of A: .png, .jpg or .webp.")] = None,
    overlay: Annotated[
        Path | None,
        path_option("Write A in red and B in cyan, grey where they agree: .png, .jpg or .webp."),
    ] = None,
    blink: Annotated[Path | None, path_option("Write a GIF that shows A and B in turn.")] = None,
    matrix: Annotated[Path | None, path_option("Write the homography: .json.")] = None,
    threshold: Annotated[
        float, typer.Option(metavar="PX", help="How far a match may lie from where the homography puts it.")
    ] = 3.0,
    min_inliers: Annotated[
        int, typer.Option(metavar="N", min=4, help="With fewer matches that agree there is no homography.")
    ] = 15,
    seed: Seed = 0,
    weights: Weights = "geometric",
    max_side: MaxSide = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Lay one image over another: the homography between them, and B in the frame of A.

    A homography holds for flat things and for views from one place; elsewhere it aligns the plane that most
    matches lie on. H_0to1 takes pixels (x, y, 1) of A to pixels of B. Where the matches do not determine one,
    the reason is printed, nothing is written, and the exit code is 1.
    """
    if not 0 < threshold < float("inf"):
        raise typer.BadParameter(f"--threshold must be a number of pixels above 0, got {threshold:g}")
    config = build_config(max_side)
    files = _Files(output, overlay, blink, matrix)
    with Stages(is_quiet=json) as stages:
        from ucn.data.io import read_image
        from ucn.geometry.homography import estimate_homography

        _check_names(files)
        check_outputs(list(files.given().values()), (image0, image1), overwrite)
        stages("reading images")
        tensors = read_image(image0), read_image(image1)
        stages("loading weights")
        matcher = _matcher.load_matcher(weights, config, device)
        stages("matching")
        matches = matcher.match(*tensors, progress=stages)
        stages("estimating the homography")
        found = estimate_homography(
            matches.points0, matches.points1, threshold=threshold, min_inliers=min_inliers, seed=seed
        )
        summary = {
            "command": "align",
            **describe_run(matcher),
            "image0": str(image0),
            "image1": str(image1),
            "estimator": _describe_estimator(threshold, min_inliers, seed),
            **_summarise(found, matches),
        }
        stages("writing")
        written = _write(files, tensors, found.H_0to1, summary, overwrite)
    _report(summary, stages.report(), written, json)
    if found.failure:
        raise typer.Exit(1)


def _check_names(files: _Files) -> None:
    from ucn.data.io import check_image_suffix
    from ucn.data.points import check_suffix

    for path in (files.warped, files.overlay):
        if path is not None:
            check_image_suffix(path)
    if files.blink is not None:
        check_suffix(files.blink, (".gif",), "blinking images")
    if files.matrix is not None:
        check_suffix(files.matrix, (".json",), "a homography")


def _describe_estimator(threshold: float, min_inliers: int, seed: int) -> dict[str, Any]:
    return {"name": "poselib", "threshold_px": threshold, "min_inliers": min_inliers, "seed": seed}


def _summarise(found: HomographyEstimate, matches: Matches) -> dict[str, Any]:
    return {
        "H_0to1": None if found.H_0to1 is None else found.H_0to1.tolist(),
        "failure": found.failure or None,
        "matches": len(matches),
        "inliers": found.inlier_count,
        "pair_score": float(matches.pair_score),
        "image0_hw": list(matches.image0_hw),
        "image1_hw": list(matches.image1_hw),
    }


def _write(
    files: _Files,
    images: tuple[Tensor, Tensor],
    H_0to1: NDArray[Any] | None,
    summary: dict[str, Any],
    overwrite: bool,
) -> list[Path]:
    """Writes what is asked for, all or nothing; without a homography, nothing."""
    from json import dumps

    from ucn.data.io import to_pixels, write_bytes_atomically, write_image
    from ucn.viz.overlay import mix, warp_onto, write_blinking

    given = files.given()
    if H_0to1 is None or not given:
        return []
    size_hw = (int(images[0].shape[-2]), int(images[0].shape[-1]))
    warped, is_seen = warp_onto(images[1], H_0to1, size_hw)
    writers: dict[str, Callable[[Path], object]] = {
        "warped": lambda place: write_image(place, warped),
        "overlay": lambda place: write_image(place, mix(images[0], warped, is_seen)),
        "blink": lambda place: write_blinking(place, (to_pixels(images[0]), warped)),
        "matrix": lambda place: write_bytes_atomically(place, (dumps(summary, indent=2) + "\n").encode()),
    }
    write_all({path: writers[name] for name, path in given.items()}, overwrite)
    return list(given.values())


def _report(summary: dict[str, Any], seconds: dict[str, float], written: list[Path], is_json: bool) -> None:
    if is_json:
        print_json({**summary, "seconds": seconds, "outputs": list(map(str, written))})
    else:
        _print(summary, seconds, written)


def _print(summary: dict[str, Any], seconds: dict[str, float], written: list[Path]) -> None:
    lines: dict[str, str] = {}
    if summary["failure"]:
        lines["homography"] = f"not found: {summary['failure']}"
    else:
        rows = ["  ".join(f"{value:14.7g}" for value in row) for row in summary["H_0to1"]]
        lines |= {"H_0to1": rows[0], " ": rows[1], "  ": rows[2]}
    estimator = summary["estimator"]
    lines |= {
        "inliers": f"{summary['inliers']:,} of {summary['matches']:,} matches",
        "estimator": f"poselib, threshold {estimator['threshold_px']:g} px, seed {estimator['seed']}",
        "weights": f"{summary['weights']['name']}, sha256 {summary['weights']['sha256'][:16]}",
        "time": say_seconds(seconds),
        "written": say_files(written) if written else "nothing",
    }
    print_lines(lines)
