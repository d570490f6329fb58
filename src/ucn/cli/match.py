"""``ucn match``: corresponding points of two images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._command import PairCommand
from ucn.cli._outputs import Output
from ucn.cli._report import describe_doubt, describe_views, format_share
from ucn.config import MatchConfig

if TYPE_CHECKING:
    from torch import Tensor

    from ucn.types import Matches


@opt.expand_options
def run(
    image0: opt.Image0,
    image1: opt.Image1,
    points: Annotated[
        Path | None,
        opt.path_option("CSV of points x,y in A: one row out per row in, on stdout unless -o is given."),
    ] = None,
    output: Annotated[Path | None, opt.output_option("Write matches: .npz, .csv or .h5.")] = None,
    draw: Annotated[Path | None, opt.path_option("Draw the matches: .png, .jpg or .webp.")] = None,
    max_lines: Annotated[
        int,
        typer.Option("--lines", metavar="N", min=0, help="Largest number of matches joined in the drawing."),
    ] = 100,
    mask: Annotated[Path | None, opt.path_option("Mask of both images: match where it is not black.")] = None,
    mask0: Annotated[Path | None, opt.path_option("Mask for A only.")] = None,
    mask1: Annotated[Path | None, opt.path_option("Mask for B only.")] = None,
    keypoints: Annotated[
        opt.Keypoints | None,
        typer.Option(help="What to match without --points.", show_default=MatchConfig.keypoints),
    ] = None,
    max_keypoints: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Largest number of keypoints.", show_default=str(MatchConfig.max_keypoints)
        ),
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Ratio test: drop matches whose distance exceeds this share of the second best; 1 = off.",
            show_default=f"{MatchConfig.ratio:g}",
        ),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Drop matches with a lower score.", show_default=f"{MatchConfig.min_score:g}"
        ),
    ] = None,
    mutual: Annotated[
        bool | None, opt.switch("mutual", "Keep only matches that pass the forward-backward check.")
    ] = None,
    refine: Annotated[
        bool | None, opt.switch("refine", "Refine matches to sub-cell positions of the feature map.")
    ] = None,
    align: Annotated[
        bool | None, opt.switch("align", "Then refine them photometrically, to a fraction of a pixel.")
    ] = None,
    *,
    options: opt.PairOptions,
) -> None:
    """Find corresponding points of two images."""
    if mask is not None and (mask0 is not None or mask1 is not None):
        raise typer.BadParameter("give --mask for both images, or --mask0 and --mask1, not both kinds")
    settings = {
        "keypoints": None if keypoints is None else keypoints.value,
        "max_keypoints": max_keypoints,
        "ratio": ratio,
        "min_score": min_score,
        "use_mutual": mutual,
        "use_refinement": refine,
        "use_alignment": align,
    }
    masks = (mask or mask0, mask or mask1)
    with PairCommand("match", options, **settings) as command:
        from ucn import viz
        from ucn.data.io import write_image
        from ucn.data.points import MATCH_SUFFIXES, write_matches

        command.check_outputs(
            Output(output, "matches", MATCH_SUFFIXES), Output(draw), inputs=(image0, image1, points, *masks)
        )
        images = command.read_images(image0, image1)
        inputs = _read_options(images, points, masks)
        matcher = command.load_matcher()
        matches = matcher.match(*images, **inputs, progress=command.stages)
        command.summary |= _summarise(matches)
        draw_result: Callable[..., Any] = viz.draw_points
        if points is None:
            draw_result = partial(viz.draw_matches, max_lines=max_lines, min_score=matcher.config.min_score)
        command.write(
            {
                output: lambda path: write_matches(path, matches, command.run, (image0.name, image1.name)),
                draw: lambda path: write_image(path, draw_result(*images, matches)),
            }
        )
    if points is None:
        command.report(_format_lines(matches, command.summary))
        return
    has_rows = output is None and not options.json
    if has_rows:
        from ucn.data.points import format_matches

        typer.echo(format_matches(matches), nl=False)
    lines = _format_lines(matches, command.summary)
    if has_rows and draw is None:
        lines["written"] = "rows on stdout"
    command.report(lines, rows={"points": _list_rows(matches)}, to_stderr=has_rows)


def _read_options(
    images: tuple[Tensor, Tensor], points: Path | None, masks: tuple[Path | None, Path | None]
) -> dict[str, Any]:
    """Points and masks, as arguments of `Matcher.match`."""
    from ucn.data.io import read_mask
    from ucn.data.points import read_points

    sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
    options: dict[str, Any] = {} if points is None else {"points": read_points(points, sizes[0])}
    for name, path, size_hw in zip(("mask0", "mask1"), masks, sizes, strict=True):
        if path is not None:
            options[name] = read_mask(path, size_hw)
    return options


def _summarise(matches: Matches) -> dict[str, Any]:
    has_matches = len(matches) > 0
    return {
        "matches": len(matches),
        "mutual_share": float(matches.is_mutual.mean()) if has_matches else float("nan"),
        "mean_score": float(matches.scores.mean()) if has_matches else float("nan"),
        "pair_score": float(matches.pair_score),
        "view_change": None if matches.view_change is None else asdict(matches.view_change),
        "image0_hw": list(matches.image0_hw),
        "image1_hw": list(matches.image1_hw),
    }


def _format_lines(matches: Matches, summary: dict[str, Any]) -> dict[str, str]:
    note = "" if matches.pair_score >= 0.5 else f" ({describe_doubt(matches)})"
    return {
        "matches": f"{len(matches):,}",
        "mutual": format_share(summary["mutual_share"]),
        "mean score": f"{summary['mean_score']:.3f}" if len(matches) else "–",
        "pair score": f"{matches.pair_score:.3f}{note}",
        **describe_views(matches),
    }


def _list_rows(matches: Matches) -> list[dict[str, Any]]:
    columns = (*matches.points0.T, *matches.points1.T, matches.scores, matches.is_mutual)
    names = ("x0", "y0", "x1", "y1", "score", "is_mutual")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]
