"""``ucn pose``: the relative pose of two cameras."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._command import PairCommand
from ucn.cli._outputs import Output
from ucn.cli._report import describe_doubt, format_estimator, format_matrix, warn

if TYPE_CHECKING:
    from ucn.data.cameras import Array
    from ucn.geometry.pose import PoseEstimate
    from ucn.types import Matches

_FEW_INLIERS = 30  # as many agree by chance among a thousand wrong matches
_MIN_INLIER_SHARE = _MIN_PAIR_SCORE = 0.5


class Estimators(StrEnum):
    """Library that estimates the essential matrix."""

    poselib = "poselib"
    opencv = "opencv"


def _intrinsics_option(help_text: str, metavar: str = "FILE|…") -> Any:
    return typer.Option(metavar=metavar, help=help_text, show_default=False)


@opt.expand_options
def run(
    image0: opt.Image0,
    image1: opt.Image1,
    intrinsics: Annotated[
        str | None,
        _intrinsics_option(
            "Camera matrix of both images: four numbers; `exif` for the focal length that the photographs "
            "store; or a file: 3 × 3 numbers, KITTI's calib.txt:P2, OpenCV's YAML, or COLMAP's cameras.txt. "
            "Pixel centres are at integers as in OpenCV; subtract 0.5 from cx and cy of COLMAP.",
            "FILE|fx,fy,cx,cy|exif",
        ),
    ] = None,
    intrinsics0: Annotated[str | None, _intrinsics_option("Camera matrix of A, where they differ.")] = None,
    intrinsics1: Annotated[str | None, _intrinsics_option("Camera matrix of B, where they differ.")] = None,
    output: Annotated[Path | None, opt.output_option("Write the pose: .json, or .npz with matches.")] = None,
    draw: Annotated[
        Path | None, opt.path_option("Draw inliers, outliers and epipolar lines: .png, .jpg or .webp.")
    ] = None,
    estimator: Annotated[Estimators, typer.Option(help="Essential-matrix estimator.")] = Estimators.poselib,
    threshold: Annotated[
        float,
        typer.Option(
            metavar="PX",
            help="Inlier threshold: largest epipolar error of a match. The KITTI benchmarks use 0.5; 1 "
            "tolerates less exact intrinsics.",
        ),
    ] = 1.0,
    seed: opt.Seed = 0,
    *,
    options: opt.PairOptions,
) -> None:
    """Estimate the relative pose of two cameras: X1 = R X0 + t, with t up to scale.

    Camera coordinates: x to the right, y down, z ahead. Where the matches do not determine a pose, the reason
    is printed, nothing is written, and the exit code is 1. A warning marks an unreliable pose.
    """
    given = _choose_intrinsics(intrinsics, intrinsics0, intrinsics1)
    if not threshold > 0:
        raise typer.BadParameter(f"--threshold must be above 0 pixels, got {threshold:g}")
    with PairCommand("pose", options) as command:
        from ucn.data.cameras import POSE_SUFFIXES, write_pose

        command.check_outputs(
            Output(output, "a camera pose", POSE_SUFFIXES),
            Output(draw),
            inputs=(image0, image1, *(Path(text) for _, text in given)),
        )
        K0, K1 = _read_cameras(given, (image0, image1))
        command.check_images(image0, image1)
        from ucn.data.io import to_pixels, write_image
        from ucn.geometry.pose import estimate_pose
        from ucn.viz.epipolar import draw_pose

        matcher = command.load_matcher()
        matches = matcher.match(image0, image1, progress=command.stages)
        command.stages("estimating the pose")
        pose = estimate_pose(
            matches.points0,
            matches.points1,
            K0,
            K1,
            estimator=estimator.value,
            threshold=threshold,
            seed=seed,
        )
        command.summary |= {
            "estimator": {"name": estimator.value, "threshold_px": threshold, "seed": seed},
            **_summarise(pose, matches),
            "K0": K0.tolist(),
            "K1": K1.tolist(),
        }
        if not pose.failure:
            low = matcher.config.min_score

            def paint(path: Path) -> None:
                images = to_pixels(image0), to_pixels(image1)
                write_image(path, draw_pose(*images, matches, pose, K0, K1, min_score=low))

            command.write(
                {
                    output: lambda path: write_pose(path, pose, matches, (K0, K1), command.summary),
                    draw: paint,
                }
            )
    command.report(_format_lines(command.summary))
    if command.summary["warning"] and not options.json:
        warn(f"warning: {command.summary['warning']}")
    if pose.failure:
        raise typer.Exit(1)


def _choose_intrinsics(both: str | None, first: str | None, second: str | None) -> list[tuple[str, str]]:
    """Option and value of the intrinsics of A and of B."""
    if both is not None and first is None and second is None:
        return [("--intrinsics", both)] * 2
    if both is None and first is not None and second is not None:
        return [("--intrinsics0", first), ("--intrinsics1", second)]
    raise typer.BadParameter(
        "give --intrinsics for both images, or --intrinsics0 and --intrinsics1: a pose needs known cameras"
    )


def _read_cameras(given: list[tuple[str, str]], images: tuple[Path, Path]) -> list[Array]:
    """The camera matrices of both images; a distortion that both have is mentioned once."""
    return [
        opt.read_camera_option(option, text, image, is_quiet=(option, text) in given[:row])
        for row, ((option, text), image) in enumerate(zip(given, images, strict=True))
    ]


def _summarise(pose: PoseEstimate, matches: Matches) -> dict[str, Any]:
    found: dict[str, Any] = {"R": None, "t": None, "rotation_degrees": None}
    if pose.R is not None and pose.t is not None:
        sine = math.hypot(*(pose.R[i, j] - pose.R[j, i] for i, j in ((2, 1), (0, 2), (1, 0)))) / 2
        angle = math.degrees(math.atan2(sine, (float(pose.R.trace()) - 1) / 2))
        found = {"R": pose.R.tolist(), "t": pose.t.tolist(), "rotation_degrees": angle}
    return {
        **found,
        "failure": pose.failure or None,
        "warning": None if pose.failure else _find_warning(pose, matches),
        "matches": len(matches),
        "inliers": pose.inlier_count,
        "pair_score": float(matches.pair_score),
    }


def _find_warning(pose: PoseEstimate, matches: Matches) -> str | None:
    """Why an estimated pose may be wrong, and what to do; None where nothing indicates that."""
    reasons = []
    if pose.inlier_count < _MIN_INLIER_SHARE * len(matches):
        reasons.append(f"only {pose.inlier_count:,} of {len(matches):,} matches are inliers")
    if matches.pair_score < _MIN_PAIR_SCORE:
        reasons.append(f"the pair score is {matches.pair_score:.2f}: {describe_doubt(matches)}")
    if not reasons:
        return None
    return (
        f"the pose is unreliable, since {', and '.join(reasons)}. Wrong matches can agree with a pose, too. "
        "Look at the inliers (--draw), check --intrinsics, or use images that share more of the scene"
    )


def _format_lines(summary: dict[str, Any]) -> dict[str, str]:
    few = ""
    if summary["failure"]:
        lines = {"pose": f"not found: {summary['failure']}"}
    else:
        lines = format_matrix("R", summary["R"], "9.6f")
        lines["t"] = "  ".join(f"{value:9.6f}" for value in summary["t"]) + "   (of unit length)"
        lines["rotation"] = f"{summary['rotation_degrees']:.4f} degrees"
        few = " (so few may agree by chance)" if summary["inliers"] < _FEW_INLIERS else ""
    lines["inliers"] = f"{summary['inliers']:,} of {summary['matches']:,} matches{few}"
    return {**lines, "estimator": format_estimator(summary["estimator"])}
