"""``ucn align``: one image laid over another by a homography."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _matcher
from ucn.cli._options import Debug, Device, Image0, Image1, Json, MaxSide, Overwrite, Weights, build_config
from ucn.cli._outputs import check_outputs
from ucn.cli._report import describe_run, print_json, print_lines, say_files, say_seconds
from ucn.cli._stages import Stages

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ucn.geometry.homography import HomographyEstimate
    from ucn.types import Matches


def run(
    image0: Image0,
    image1: Image1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            readable=False,
            help="Write B in the frame of A: .png, .jpg or .webp.",
            show_default=False,
        ),
    ] = None,
    overlay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="Write A in red and B in cyan, grey where they agree: .png, .jpg or .webp.",
            show_default=False,
        ),
    ] = None,
    blink: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="Write a GIF that shows A and B in turn.",
            show_default=False,
        ),
    ] = None,
    matrix: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Write the homography: .json.", show_default=False),
    ] = None,
    threshold: Annotated[
        float, typer.Option(metavar="PX", help="How far a match may lie from where the homography puts it.")
    ] = 3.0,
    min_inliers: Annotated[
        int, typer.Option(metavar="N", min=4, help="With fewer matches that agree there is no homography.")
    ] = 15,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the estimator's draws.")] = 0,
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
    outputs = [path for path in (output, overlay, blink, matrix) if path is not None]
    with Stages(is_quiet=json) as stages:
        from ucn.data.io import read_image
        from ucn.geometry.homography import estimate_homography

        _check_names(output, overlay, blink, matrix)
        check_outputs(outputs, (image0, image1), overwrite)
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
            "estimator": {
                "name": "poselib",
                "threshold_px": threshold,
                "min_inliers": min_inliers,
                "seed": seed,
            },
            **_summarise(found, matches),
        }
        stages("writing")
        written: list[Path] = []
        if found.H_0to1 is not None:
            _write_pictures(tensors, found.H_0to1, (output, overlay, blink), overwrite)
            if matrix is not None:
                _write_matrix(matrix, summary, overwrite)
            written = outputs
    if json:
        files = [str(path) for path in written]
        print_json({**summary, "seconds": stages.report(), "outputs": files})
    else:
        _print(summary, stages.report(), written)
    if found.failure:
        raise typer.Exit(1)


def _check_names(output: Path | None, overlay: Path | None, blink: Path | None, matrix: Path | None) -> None:
    from ucn.data.io import check_image_suffix
    from ucn.data.points import check_suffix

    for path in (output, overlay):
        if path is not None:
            check_image_suffix(path)
    if blink is not None:
        check_suffix(blink, (".gif",), "blinking images")
    if matrix is not None:
        check_suffix(matrix, (".json",), "a homography")


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


def _write_pictures(
    images: tuple[Tensor, Tensor],
    H_0to1: NDArray[Any],
    paths: tuple[Path | None, Path | None, Path | None],
    overwrite: bool,
) -> None:
    from ucn.data.io import to_pixels, write_image
    from ucn.viz.overlay import mix, warp_onto, write_blinking

    output, overlay, blink = paths
    size_hw = (int(images[0].shape[-2]), int(images[0].shape[-1]))
    warped, is_seen = warp_onto(images[1], H_0to1, size_hw)
    if output is not None:
        write_image(output, warped, overwrite)
    if overlay is not None:
        write_image(overlay, mix(images[0], warped, is_seen), overwrite)
    if blink is not None:
        write_blinking(blink, (to_pixels(images[0]), warped), overwrite=overwrite)


def _write_matrix(path: Path, summary: dict[str, Any], overwrite: bool) -> None:
    from json import dumps

    from ucn.data.io import write_bytes_atomically

    write_bytes_atomically(path, (dumps(summary, indent=2) + "\n").encode(), overwrite)


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
