"""``ucn pose``: how the camera moved between two images."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
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
from ucn.cli._outputs import check_names, check_outputs, write_result
from ucn.cli._report import describe_run, print_json, print_lines, say_files, say_seconds
from ucn.cli._stages import Stages

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ucn.geometry.pose import PoseEstimate
    from ucn.types import Matches

_FEW_INLIERS = 30  # as many agree by chance among a thousand wrong matches
_LEAST_SHARE = _LEAST_SCORE = 0.5  # below, matches or images are more likely wrong than right


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
        output_option("Write the motion: .json, or .npz with the matches."),
    ] = None,
    draw: Annotated[
        Path | None,
        path_option("Draw the matches that agree: .png, .jpg or .webp."),
    ] = None,
    estimator: Annotated[
        Estimators, typer.Option(help="How the essential matrix is estimated.")
    ] = Estimators.poselib,
    threshold: Annotated[
        float,
        typer.Option(
            metavar="PX",
            help="How far a match may lie from its epipolar line. Benchmarks of camera motion take 0.5, "
            "chosen on KITTI's exact cameras; 1 errs little more there and bears cameras known less exactly.",
        ),
    ] = 1.0,
    seed: Seed = 0,
    weights: Weights = "geometric",
    max_side: MaxSide = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find how the camera moved between two images: X1 = R X0 + t, t up to its length.

    Coordinates are those of the cameras: x to the right, y down, z ahead. Where the matches do not determine
    a motion, the reason is printed, nothing is written, and the exit code is 1. Where they determine one that
    is doubtful, a warning says so.
    """
    given = _choose_intrinsics(intrinsics, intrinsics0, intrinsics1)
    if not threshold > 0:
        raise typer.BadParameter(f"--threshold must be above 0 pixels, got {threshold:g}")
    config = build_config(max_side)
    outputs = [path for path in (output, draw) if path is not None]
    with Stages(is_quiet=json) as stages:
        from ucn.data.cameras import POSE_SUFFIXES, read_intrinsics
        from ucn.data.io import read_image
        from ucn.geometry.pose import estimate_pose

        check_names(output, POSE_SUFFIXES, "a camera motion", draw)
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
        if written:
            _write((output, draw), _Result(pose, matches, cameras, tensors), summary, overwrite)
    if json:
        files = [str(path) for path in written]
        print_json({**summary, "seconds": stages.report(), "outputs": files})
    else:
        _print(summary, stages.report(), written)
    if pose.failure:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Result:
    """What was found, and of what."""

    pose: PoseEstimate
    matches: Matches
    cameras: tuple[NDArray[Any], NDArray[Any]]
    images: tuple[Tensor, Tensor]


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
        "warning": _doubt(pose, matches),
        "matches": len(matches),
        "inliers": pose.inlier_count,
        "pair_score": float(matches.pair_score),
        "K0": cameras[0].tolist(),
        "K1": cameras[1].tolist(),
    }


def _doubt(pose: PoseEstimate, matches: Matches) -> str | None:
    """Why a motion that was found may be none, and what to do; None where nothing speaks against it."""
    reasons = []
    if pose.inlier_count < _LEAST_SHARE * len(matches):
        reasons.append(f"only {pose.inlier_count:,} of {len(matches):,} matches agree with it")
    if matches.pair_score < _LEAST_SCORE:
        reasons.append(f"the pair score is {matches.pair_score:.2f}: the images may not show the same scene")
    if pose.failure or not reasons:
        return None
    return (
        f"the motion is doubtful, since {', and '.join(reasons)}. Wrong matches agree with some motion, too. "
        "Look at those that agree (--draw), check --intrinsics, and take images that share more of the scene"
    )


def _write(
    paths: tuple[Path | None, Path | None], result: _Result, summary: dict[str, Any], overwrite: bool
) -> None:
    from ucn.data.cameras import write_pose
    from ucn.viz import draw_matches

    output, draw = paths
    inliers = result.matches.select(result.pose.is_inlier)
    write_result(
        output,
        lambda place: write_pose(place, result.pose, result.matches, result.cameras, summary),
        draw,
        lambda: draw_matches(*result.images, inliers),
        overwrite,
    )


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
    if summary["warning"]:
        typer.secho(f"warning: {summary['warning']}", err=True, fg=typer.colors.YELLOW)
