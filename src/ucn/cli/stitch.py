"""``ucn stitch``: a panorama of several images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _command
from ucn.cli import _options as opt
from ucn.cli._checks import check_images
from ucn.cli._outputs import Output, check_files
from ucn.cli._progress import CountBar
from ucn.cli._report import (
    describe_run,
    format_estimator,
    format_files,
    format_weights,
    print_json,
    print_lines,
    warn,
)
from ucn.files.writing import write_files

if TYPE_CHECKING:
    from ucn.matching.stitching import Panorama


@opt.expand_options
def run(
    images: Annotated[list[Path], opt.path_argument("IMAGE...", "Two or more images, in any order.")],
    output: Annotated[
        Path, opt.output_option("Write the panorama: .png, .jpg or .webp.", show_default=True)
    ] = Path("panorama.jpg"),
    max_megapixels: Annotated[
        float, typer.Option(metavar="N", help="Largest panorama in megapixels; larger ones are reduced.")
    ] = 50.0,
    use_gains: Annotated[
        bool, opt.flag("--gains/--no-gains", "Adjust the brightness of the images to each other.")
    ] = True,
    threshold: Annotated[
        float,
        typer.Option(
            metavar="PX",
            help="Largest error of an inlier, in pixels of the size at which images are matched.",
        ),
    ] = 3.0,
    min_inliers: Annotated[
        int, typer.Option(metavar="N", min=4, help="Fewest inliers that connect two images.")
    ] = 15,
    seed: opt.Seed = 0,
    *,
    options: opt.PairOptions,
) -> None:
    """Stitch images that overlap into one panorama.

    Homographies connect views of a plane, and views of a camera that only rotates. All pairs are matched, the
    homographies of all images are refined together, and the images are blended in the frame of the most
    central one. Images that do not connect are named and left out; if no two connect, nothing is written and
    the exit code is 1.
    """
    from ucn.weights import check_weights

    _check_numbers(images, max_megapixels, threshold)
    check_files([Output(output)], images, options.overwrite)
    check_images(images)
    check_weights(options.weights)
    from ucn.matching.stitching import stitch

    config = opt.build_config(options.max_side, consensus=options.consensus, use_views=options.views)
    matcher = _command.load_matcher(options.weights, config, options.device)
    with CountBar("encoding", is_quiet=options.json) as bar:
        made = stitch(
            matcher,
            images,
            threshold=threshold,
            min_inliers=min_inliers,
            max_megapixels=max_megapixels,
            use_gains=use_gains,
            seed=seed,
            progress=bar.show,
        )
    written = _write(output, made, options.overwrite)
    estimator = {"name": "poselib", "threshold_px": threshold, "min_inliers": min_inliers, "seed": seed}
    summary = {
        "command": "stitch",
        **describe_run(matcher),
        "images": [str(path) for path in images],
        "estimator": estimator,
        **_summarise(made),
        "outputs": [str(path) for path in written],
    }
    if options.json:
        print_json(summary)
    else:
        _print(summary)
    _warn_left_out(images, made)


def _check_numbers(images: list[Path], max_megapixels: float, threshold: float) -> None:
    if len(images) < 2:
        raise typer.BadParameter(f"give at least two images, got {len(images)}")
    if not 0 < max_megapixels <= 900:
        raise typer.BadParameter(f"--max-megapixels must be above 0 and at most 900, got {max_megapixels:g}")
    if not 0 < threshold < float("inf"):
        raise typer.BadParameter(f"--threshold must be a number of pixels above 0, got {threshold:g}")


def _write(output: Path, made: Panorama, overwrite: bool) -> list[Path]:
    from ucn.data.io import write_image

    return write_files({output: lambda path: write_image(path, made.canvas)}, overwrite)


def _summarise(made: Panorama) -> dict[str, Any]:
    from dataclasses import asdict

    height, width = made.is_covered.shape
    return {
        "width": width,
        "height": height,
        "covered": float(made.is_covered.mean()),
        "reference": made.reference,
        "scale": made.scale,
        "left_out": list(made.left_out),
        "median_error_px": made.median_error,
        "homographies_to_canvas": made.homographies.tolist(),
        "gains": made.gains.tolist(),
        "pairs": [asdict(pair) for pair in made.pairs],
    }


def _print(summary: dict[str, Any]) -> None:
    names, left_out = summary["images"], summary["left_out"]
    gains = [gain for index, gain in enumerate(summary["gains"]) if index not in left_out]
    links = [pair for pair in summary["pairs"] if not pair["failure"]]
    reduced = "" if summary["scale"] == 1 else f", reduced to {summary['scale']:.0%} (see --max-megapixels)"
    print_lines(
        {
            "panorama": f"{summary['width']:,} × {summary['height']:,} pixels{reduced}",
            "images": f"{len(names) - len(left_out)} of {len(names)}, in the frame of "
            f"{names[summary['reference']]}",
            "connected": f"{len(links)} of {len(summary['pairs'])} pairs, "
            f"{sum(pair['inliers'] for pair in links):,} inliers, median error "
            f"{summary['median_error_px']:.2f} px",
            "gains": f"{min(gains):.2f} to {max(gains):.2f}",
            "estimator": format_estimator(summary["estimator"]),
            "weights": format_weights(summary["weights"]),
            "written": format_files(map(Path, summary["outputs"])),
        }
    )


def _warn_left_out(images: list[Path], made: Panorama) -> None:
    for index in made.left_out:
        pair = made.best_pair(index)
        other = images[pair.image1 if pair.image0 == index else pair.image0]
        warn(
            f"left out: {images[index]} does not connect to the others; its best pair, with {other}, has the "
            f"pair score {pair.pair_score:.2f} ({pair.failure or f'{pair.inliers} inliers'})"
        )
