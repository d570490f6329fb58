"""``ucn pose``: how the camera moved between two images."""

from __future__ import annotations

from enum import StrEnum
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

    from ucn.geometry.pose import PoseEstimate
    from ucn.types import Matches

_FEW_INLIERS = 30  # as many agree by chance among a thousand wrong matches


class Estimators(StrEnum):
    """How the essential matrix is estimated."""

    poselib = "poselib"
    opencv = "opencv"


def run(
    image0: Image0,
    image1: Image1,
    intrinsics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|fx,fy,cx,cy",
            help="Camera matrix of both images: a text file of 3 × 3 numbers, or four numbers. It must be "
            "for pixels whose centres are at integers, as OpenCV's and KITTI's are; of COLMAP's cx and cy "
            "subtract 0.5.",
            show_default=False,
        ),
    ] = None,
    intrinsics0: Annotated[
        str | None,
        typer.Option(metavar="FILE|…", help="Camera matrix of A, where they differ.", show_default=False),
    ] = None,
    intrinsics1: Annotated[
        str | None,
        typer.Option(metavar="FILE|…", help="Camera matrix of B, where they differ.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            readable=False,
            help="Write the motion: .json, or .npz with the matches.",
            show_default=False,
        ),
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="Draw the matches that agree: .png, .jpg or .webp.",
            show_default=False,
        ),
    ] = None,
    estimator: Annotated[
        Estimators, typer.Option(help="How the essential matrix is estimated.")
    ] = Estimators.poselib,
    threshold: Annotated[
        float, typer.Option(metavar="PX", help="How far a match may lie from its epipolar line.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the estimator's draws.")] = 0,
    weights: Weights = "geometric",
    max_side: MaxSide = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find how the camera moved between two images: X1 = R X0 + t, t up to its length.

    Coordinates are those of the cameras: x to the right, y down, z ahead. Where the matches do not determine
    a motion, the reason is printed, nothing is written, and the exit code is 1.
    """
    given = _choose_intrinsics(intrinsics, intrinsics0, intrinsics1)
    if not threshold > 0:
        raise typer.BadParameter(f"--threshold must be above 0 pixels, got {threshold:g}")
    config = build_config(max_side)
    outputs = [path for path in (output, draw) if path is not None]
    with Stages(is_quiet=json) as stages:
        from ucn.data.cameras import read_intrinsics, write_pose
        from ucn.data.io import read_image
        from ucn.geometry.pose import estimate_pose

        _check_names(output, draw)
        check_outputs(outputs, (image0, image1, *map(Path, given)), overwrite)
        stages("reading images")
        cameras = read_intrinsics(given[0]), read_intrinsics(given[1])
        tensors = read_image(image0), read_image(image1)
        stages("loading weights")
        matcher = _matcher.load_matcher(weights, config, device)
        stages("matching")
        matches = matcher.match(*tensors, progress=stages)
        stages("estimating the motion")
        pose = estimate_pose(
            matches.points0,
            matches.points1,
            *cameras,
            estimator=estimator.value,
            threshold=threshold,
            seed=seed,
        )
        summary = {
            "command": "pose",
            **describe_run(matcher),
            "image0": str(image0),
            "image1": str(image1),
            "estimator": {"name": estimator.value, "threshold_px": threshold, "seed": seed},
            **_summarise(pose, matches, cameras),
        }
        stages("writing")
        written = [] if pose.failure else outputs
        if output in written:
            write_pose(output, pose, matches, cameras, summary, overwrite)
        if draw in written:
            _draw(draw, tensors, matches.select(pose.is_inlier), overwrite)
    if json:
        files = [str(path) for path in written]
        print_json({**summary, "seconds": stages.report(), "outputs": files})
    else:
        _print(summary, stages.report(), written)
    if pose.failure:
        raise typer.Exit(1)


def _choose_intrinsics(both: str | None, first: str | None, second: str | None) -> tuple[str, str]:
    """What was given for A and for B."""
    if both is not None and first is None and second is None:
        return both, both
    if both is None and first is not None and second is not None:
        return first, second
    raise typer.BadParameter(
        "give --intrinsics for both images, or --intrinsics0 and --intrinsics1: a motion is found for known "
        "cameras only"
    )


def _check_names(output: Path | None, draw: Path | None) -> None:
    from ucn.data.cameras import POSE_SUFFIXES
    from ucn.data.io import check_image_suffix
    from ucn.data.points import check_suffix

    if output is not None:
        check_suffix(output, POSE_SUFFIXES, "a camera motion")
    if draw is not None:
        check_image_suffix(draw)


def _summarise(
    pose: PoseEstimate, matches: Matches, cameras: tuple[NDArray[Any], NDArray[Any]]
) -> dict[str, Any]:
    import math

    found: dict[str, Any] = {"R": None, "t": None, "rotation_degrees": None}
    if pose.R is not None and pose.t is not None:
        sine = math.hypot(*(pose.R[i, j] - pose.R[j, i] for i, j in ((2, 1), (0, 2), (1, 0)))) / 2
        angle = math.degrees(math.atan2(sine, (float(pose.R.trace()) - 1) / 2))
        found = {"R": pose.R.tolist(), "t": pose.t.tolist(), "rotation_degrees": angle}
    return {
        **found,
        "failure": pose.failure or None,
        "matches": len(matches),
        "inliers": pose.inlier_count,
        "pair_score": float(matches.pair_score),
        "K0": cameras[0].tolist(),
        "K1": cameras[1].tolist(),
    }


def _draw(path: Path, images: tuple[Any, Any], inliers: Matches, overwrite: bool) -> None:
    from ucn import viz
    from ucn.data.io import write_image

    write_image(path, viz.draw_matches(*images, inliers), overwrite)


def _print(summary: dict[str, Any], seconds: dict[str, float], written: list[Path]) -> None:
    lines: dict[str, str] = {}
    if summary["failure"]:
        lines["motion"] = f"not found: {summary['failure']}"
    else:
        rows = ["  ".join(f"{value:9.6f}" for value in row) for row in summary["R"]]
        lines |= {"R": rows[0], " ": rows[1], "  ": rows[2]}
        lines["t"] = "  ".join(f"{value:9.6f}" for value in summary["t"]) + "   (of unit length)"
        lines["rotation"] = f"{summary['rotation_degrees']:.4f} degrees"
    few = summary["inliers"] < _FEW_INLIERS and not summary["failure"]
    doubt = " (so few may agree by chance)" if few else ""
    estimator = summary["estimator"]
    lines |= {
        "inliers": f"{summary['inliers']:,} of {summary['matches']:,} matches{doubt}",
        "estimator": f"{estimator['name']}, threshold {estimator['threshold_px']:g} px, "
        f"seed {estimator['seed']}",
        "weights": f"{summary['weights']['name']}, sha256 {summary['weights']['sha256'][:16]}",
        "time": say_seconds(seconds),
        "written": say_files(written),
    }
    print_lines(lines)
