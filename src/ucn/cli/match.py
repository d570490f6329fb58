"""``ucn match``: corresponding points of two images."""

from __future__ import annotations

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
    Keypoints,
    MaxSide,
    Overwrite,
    Weights,
    build_config,
    output_option,
    path_option,
)
from ucn.cli._outputs import check_names, check_outputs, write_result
from ucn.cli._report import describe_run, print_json, print_lines, say_files, say_seconds, say_share
from ucn.cli._stages import Stages
from ucn.config import MatchConfig

if TYPE_CHECKING:
    from torch import Tensor

    from ucn.types import Matches


def run(
    image0: Image0,
    image1: Image1,
    points: Annotated[
        Path | None,
        path_option("CSV of x,y in A: one row out per row in, on stdout unless -o is given."),
    ] = None,
    output: Annotated[
        Path | None,
        output_option("Write matches: .npz, .csv or .h5."),
    ] = None,
    draw: Annotated[
        Path | None,
        path_option("Draw the matches: .png, .jpg or .webp."),
    ] = None,
    mask: Annotated[
        Path | None,
        path_option("Match only where this image is not black, in both."),
    ] = None,
    mask0: Annotated[
        Path | None,
        path_option("The same for A only."),
    ] = None,
    mask1: Annotated[
        Path | None,
        path_option("The same for B only."),
    ] = None,
    weights: Weights = "geometric",
    max_side: MaxSide = None,
    keypoints: Annotated[
        Keypoints | None,
        typer.Option(help="What is matched without --points.", show_default=MatchConfig.keypoints),
    ] = None,
    max_keypoints: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Match at most this many keypoints.",
            show_default=str(MatchConfig.max_keypoints),
        ),
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Drop matches farther than this share of the distance of the best one elsewhere; 1 = off.",
            show_default=f"{MatchConfig.ratio:g}",
        ),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Drop matches with a smaller score.", show_default=f"{MatchConfig.min_score:g}"
        ),
    ] = None,
    mutual: Annotated[
        bool | None,
        typer.Option("--mutual/--no-mutual", help="Keep only matches that lead back.", show_default="mutual"),
    ] = None,
    refine: Annotated[
        bool | None,
        typer.Option(
            "--refine/--no-refine", help="Place matches between feature cells.", show_default="refine"
        ),
    ] = None,
    align: Annotated[
        bool | None,
        typer.Option(
            "--align/--no-align",
            help="Then move them by parts of a pixel to where the images agree.",
            show_default="align",
        ),
    ] = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find corresponding points of two images."""
    if mask is not None and (mask0 is not None or mask1 is not None):
        raise typer.BadParameter("give --mask for both images, or --mask0 and --mask1, not both kinds")
    config = build_config(
        max_side,
        keypoints=None if keypoints is None else keypoints.value,
        max_keypoints=max_keypoints,
        ratio=ratio,
        min_score=min_score,
        use_mutual=mutual,
        use_refinement=refine,
        use_alignment=align,
    )
    outputs = [path for path in (output, draw) if path is not None]
    masks = (mask or mask0, mask or mask1)
    with Stages(is_quiet=json) as stages:
        from ucn.data.points import MATCH_SUFFIXES

        check_names(output, MATCH_SUFFIXES, "matches", draw)
        check_outputs(outputs, (image0, image1, points, *masks), overwrite)
        stages("reading images")
        inputs = _read(image0, image1, points, masks)
        stages("loading weights")
        matcher = _matcher.load_matcher(weights, config, device)
        stages("matching")
        matches = matcher.match(*inputs.images, **inputs.options, progress=stages)
        meta = {**describe_run(matcher), "image0": str(image0), "image1": str(image1)}
        stages("writing")
        _write((output, draw), matches, meta, inputs, overwrite)
    if json:
        rows = {"points": _rows(matches)} if points is not None else {}
        files = {"outputs": [str(path) for path in outputs]}
        print_json(
            {"command": "match", **meta, **_summarise(matches), "seconds": stages.report(), **files, **rows}
        )
    else:
        _print(matches, meta, stages.report(), outputs, rows_to_stdout=points is not None and output is None)


@dataclass(frozen=True)
class _Inputs:
    images: tuple[Tensor, Tensor]
    options: dict[str, Any]


def _read(image0: Path, image1: Path, points: Path | None, masks: tuple[Path | None, Path | None]) -> _Inputs:
    """Reads all inputs, before weights are loaded, so that what is wrong with them is said at once."""
    from ucn.data.io import read_image, read_mask
    from ucn.data.points import read_points

    images = read_image(image0), read_image(image1)
    options: dict[str, Any] = {}
    if points is not None:
        options["points"] = read_points(points, _size(images[0]))
    for name, path, image in zip(("mask0", "mask1"), masks, images, strict=True):
        if path is not None:
            options[name] = read_mask(path, _size(image))
    return _Inputs(images, options)


def _size(image: Tensor) -> tuple[int, int]:
    return image.shape[-2], image.shape[-1]


def _print(
    matches: Matches,
    meta: dict[str, Any],
    seconds: dict[str, float],
    outputs: list[Path],
    rows_to_stdout: bool,
) -> None:
    """Prints the summary; on stderr when stdout carries the answers to the caller's points."""
    if rows_to_stdout:
        from ucn.data.points import format_matches

        typer.echo(format_matches(matches), nl=False)
    summary = _summarise(matches)
    doubt = "" if matches.pair_score >= 0.5 else " (these images may not show the same thing)"
    lines = {
        "matches": f"{len(matches):,}",
        "mutual": say_share(summary["mutual_share"]),
        "mean score": f"{summary['mean_score']:.3f}" if len(matches) else "–",
        "pair score": f"{matches.pair_score:.3f}{doubt}",
        "weights": f"{meta['weights']['name']}, sha256 {meta['weights']['sha256'][:16]}",
        "time": say_seconds(seconds),
        "written": "rows on stdout" if rows_to_stdout and not outputs else say_files(outputs),
    }
    print_lines(lines, rows_to_stdout)


def _write(
    paths: tuple[Path | None, Path | None],
    matches: Matches,
    meta: dict[str, Any],
    inputs: _Inputs,
    overwrite: bool,
) -> None:
    from ucn import viz
    from ucn.data.points import write_matches

    output, picture = paths
    names = Path(meta["image0"]).name, Path(meta["image1"]).name
    draw = viz.draw_points if "points" in inputs.options else viz.draw_matches
    write_result(
        output,
        lambda place: write_matches(place, matches, meta, names),
        picture,
        lambda: draw(*inputs.images, matches),
        overwrite,
    )


def _summarise(matches: Matches) -> dict[str, Any]:
    nothing = float("nan")
    return {
        "matches": len(matches),
        "mutual_share": float(matches.is_mutual.mean()) if len(matches) else nothing,
        "mean_score": float(matches.scores.mean()) if len(matches) else nothing,
        "pair_score": float(matches.pair_score),
        "image0_hw": list(matches.image0_hw),
        "image1_hw": list(matches.image1_hw),
    }


def _rows(matches: Matches) -> list[dict[str, Any]]:
    return [
        {"x0": x0, "y0": y0, "x1": x1, "y1": y1, "score": score, "is_mutual": is_mutual}
        for (x0, y0), (x1, y1), score, is_mutual in zip(
            matches.points0.tolist(),
            matches.points1.tolist(),
            matches.scores.tolist(),
            matches.is_mutual.tolist(),
            strict=True,
        )
    ]
