"""``ucn align``: the homography between two images, and one image warped onto the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._command import PairCommand
from ucn.cli._outputs import Output
from ucn.cli._report import format_estimator, format_matrix

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@opt.expand_options
def run(
    image0: opt.Image0,
    image1: opt.Image1,
    output: Annotated[Path | None, opt.output_option("Write B warped onto A: .png, .jpg or .webp.")] = None,
    overlay: Annotated[
        Path | None,
        opt.path_option("Write A in red and B in cyan, grey where they agree: .png, .jpg or .webp."),
    ] = None,
    blink: Annotated[Path | None, opt.path_option("Write a GIF that alternates between A and B.")] = None,
    matrix: Annotated[Path | None, opt.path_option("Write the homography: .json.")] = None,
    threshold: Annotated[
        float, typer.Option(metavar="PX", help="Largest reprojection error of an inlier.")
    ] = 3.0,
    min_inliers: Annotated[
        int, typer.Option(metavar="N", min=4, help="Fewest inliers of a homography.")
    ] = 15,
    seed: opt.Seed = 0,
    *,
    options: opt.PairOptions,
) -> None:
    """Estimate the homography between two images, and warp B onto A.

    A homography is exact for planar scenes and for a camera that only rotates; elsewhere it aligns the
    dominant plane. H_0to1 maps pixels (x, y, 1) of A to pixels of B. Where the matches do not determine one,
    the reason is printed, nothing is written, and the exit code is 1.
    """
    if not 0 < threshold < float("inf"):
        raise typer.BadParameter(f"--threshold must be a number of pixels above 0, got {threshold:g}")
    with PairCommand("align", options) as command:
        command.check_outputs(
            Output(output),
            Output(overlay),
            Output(blink, "an animation", (".gif",)),
            Output(matrix, "a homography", (".json",)),
            inputs=(image0, image1),
        )
        command.check_images(image0, image1)
        from ucn.data.io import to_pixels
        from ucn.geometry.homography import estimate_homography

        matcher = command.load_matcher()
        matches = matcher.match(image0, image1, progress=command.stages)
        command.stages("estimating the homography")
        found = estimate_homography(
            matches.points0, matches.points1, threshold=threshold, min_inliers=min_inliers, seed=seed
        )
        estimator = {"name": "poselib", "threshold_px": threshold, "min_inliers": min_inliers, "seed": seed}
        command.summary |= {
            "estimator": estimator,
            "H_0to1": None if found.H_0to1 is None else found.H_0to1.tolist(),
            "failure": found.failure or None,
            "matches": len(matches),
            "inliers": found.inlier_count,
            "pair_score": float(matches.pair_score),
            "image0_hw": list(matches.image0_hw),
            "image1_hw": list(matches.image1_hw),
        }
        if found.H_0to1 is not None:
            images = to_pixels(image0), to_pixels(image1)
            writers = _list_writers(images, found.H_0to1, command.summary)
            command.write(dict(zip((output, overlay, blink, matrix), writers, strict=True)))
    hint = {} if command.written else {"written": "nothing"}
    command.report({**_format_lines(command.summary), **hint})
    if found.failure:
        raise typer.Exit(1)


def _list_writers(
    images: tuple[NDArray[np.uint8], NDArray[np.uint8]], H_0to1: NDArray[Any], summary: dict[str, Any]
) -> list[Callable[[Path], object]]:
    """Functions that write the warped image, the overlay, the animation and the matrix."""
    from json import dumps

    from ucn.data.io import write_image
    from ucn.files.writing import write_bytes_atomically
    from ucn.viz.overlay import blend, warp_onto, write_animation

    size_hw = images[0].shape[0], images[0].shape[1]
    warp = cache(lambda: warp_onto(images[1], H_0to1, size_hw))
    return [
        lambda path: write_image(path, warp()[0]),
        lambda path: write_image(path, blend(images[0], *warp())),
        lambda path: write_animation(path, (images[0], warp()[0])),
        lambda path: write_bytes_atomically(path, (dumps(summary, indent=2) + "\n").encode()),
    ]


def _format_lines(summary: dict[str, Any]) -> dict[str, str]:
    if summary["failure"]:
        lines = {"homography": f"not found: {summary['failure']}"}
    else:
        lines = format_matrix("H_0to1", summary["H_0to1"], "14.7g")
    lines["inliers"] = f"{summary['inliers']:,} of {summary['matches']:,} matches"
    return {**lines, "estimator": format_estimator(summary["estimator"])}
