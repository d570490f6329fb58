"""``ucn match``: corresponding points of two images, or of many pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._command import PairCommand
from ucn.cli._many_pairs import FileFormat, PairSource, format_verifier, match_many
from ucn.cli._outputs import Output
from ucn.cli._report import describe_doubt, describe_views, format_share, warn
from ucn.config import MatchConfig

if TYPE_CHECKING:
    from ucn.data.point_files.table import PointTable
    from ucn.geometry.verification import VerifySettings
    from ucn.types import BoolArray, Matches


class GeometricModel(StrEnum):
    """Geometry that inliers agree with."""

    homography = "homography"
    fundamental = "fundamental"


@opt.expand_options
def run(
    image0: Annotated[Path | None, opt.path_argument("A", "First image, or a folder of images.")] = None,
    image1: Annotated[Path | None, opt.path_argument("B", "Second image, or a folder of images.")] = None,
    pairs: Annotated[
        Path | None, opt.path_option("Match many pairs: a list of two image names per line.")
    ] = None,
    root: Annotated[
        Path | None,
        opt.path_option("Folder of the images of --pairs.", metavar="DIR", show_default="that of the list"),
    ] = None,
    use_all: Annotated[
        bool, opt.flag("--all-pairs", "Match every image of one folder with every image of the other.")
    ] = False,
    points: Annotated[
        Path | None,
        opt.path_option(
            "Points in A (CSV, COCO, labelme, .pts): one row out per row in, on stdout unless -o is given."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        opt.output_option("Write matches: .npz, .csv, .h5, .json or .coco.json; of many pairs, a folder."),
    ] = None,
    file_format: Annotated[
        FileFormat | None,
        typer.Option("--format", help="Format of the files of many pairs.", show_default="npz"),
    ] = None,
    draw: Annotated[
        Path | None, opt.path_option("Draw the matches: .png, .jpg or .webp; of many pairs, a folder.")
    ] = None,
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
        bool | None, opt.switch("align", "Refine matches photometrically, to a fraction of a pixel.")
    ] = None,
    verify: Annotated[
        GeometricModel | None,
        typer.Option(
            help="Tell inliers from outliers: a homography for planes and cameras that only rotate, a "
            "fundamental matrix for any rigid scene.",
            show_default=False,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="PX",
            help="Largest error of an inlier for --verify.",
            show_default="3 for homography, 1 for fundamental",
        ),
    ] = None,
    seed: opt.Seed = 0,
    *,
    options: opt.PairOptions,
) -> None:
    """Find corresponding points of two images, or of many pairs.

    Many pairs are those of a list (--pairs) or, of two folders, images of equal names. Each gets a file of
    matches in the folder -o, and a row in its summary.csv. A pair that fails does not stop the others; the
    exit code is then 1. Run again, the command matches only the remaining pairs.
    """
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
    verifier = _read_verifier(verify, threshold, seed)
    source = PairSource(image0, image1, pairs, root, use_all)
    if source.is_many():
        if points is not None or any(masks):
            raise typer.BadParameter(
                "--points, --mask, --mask0 and --mask1 are for two images; leave them out"
            )
        match_many(
            source,
            options,
            settings,
            output=output,
            drawings=draw,
            max_lines=max_lines,
            file_format=file_format or FileFormat.npz,
            verify=verifier,
        )
        return
    if file_format is not None:
        raise typer.BadParameter("--format is for many pairs; the name given by -o chooses the format of one")
    assert image0 is not None and image1 is not None
    names = (image0.name, image1.name)
    with PairCommand("match", options, **settings) as command:
        from ucn.data.match_files import MATCH_SUFFIXES, write_matches

        command.check_outputs(
            Output(output, "matches", MATCH_SUFFIXES), Output(draw), inputs=(image0, image1, points, *masks)
        )
        sizes, table = command.check_images(image0, image1, masks=masks, points=points)
        columns = None if table is None else table.columns
        inputs = _read_options(sizes, table, masks)
        is_empty = _warn_empty(inputs, masks)
        matcher = command.load_matcher()
        matches = matcher.match(image0, image1, **inputs, progress=command.stages)
        command.summary |= _summarise(matches)
        is_inlier = None if verifier is None else _verify(command, matches, verifier)

        def paint(path: Path) -> None:
            from ucn import viz
            from ucn.data.io import to_pixels, write_image

            images = to_pixels(image0), to_pixels(image1)
            if points is not None and is_inlier is None:
                write_image(path, viz.draw_points(*images, matches))
                return
            low = matcher.config.min_score
            drawn = viz.draw_matches(
                *images, matches, is_inlier=is_inlier, max_lines=max_lines, min_score=low
            )
            write_image(path, drawn)

        command.write(
            {
                output: lambda path: write_matches(
                    path, matches, command.run, names, is_inlier=is_inlier, columns=columns
                ),
                draw: paint,
            }
        )
    if table is None:
        command.report(_format_lines(matches, command.summary, is_empty))
        return
    for note in table.notes:
        warn(f"note: {note}")
    has_rows = output is None and not options.json
    if has_rows:
        from ucn.data.match_files import format_matches

        typer.echo(format_matches(matches, is_inlier, columns), nl=False)
    shown = _format_lines(matches, command.summary, is_empty)
    if has_rows and draw is None:
        shown["written"] = "rows on stdout"
    from ucn.data.match_files import list_matches

    command.report(shown, rows={"points": list_matches(matches, is_inlier, columns)}, to_stderr=has_rows)


def _read_verifier(model: GeometricModel | None, threshold: float | None, seed: int) -> VerifySettings | None:
    """The settings of --verify; None without it."""
    if model is None:
        if threshold is not None:
            raise typer.BadParameter("--threshold is for --verify; leave it out, or add --verify")
        return None
    from ucn.geometry.verification import VerifySettings

    return VerifySettings(model.value, threshold, seed)


def _verify(command: PairCommand, matches: Matches, settings: VerifySettings) -> BoolArray:
    """The inliers (N,); the geometry is added to the report and to what is stored with the matches."""
    from ucn.geometry.verification import verify_geometry

    command.stages("verifying")
    found = verify_geometry(matches.points0, matches.points1, settings)
    command.run["verification"] = found.to_dict()
    command.summary |= {
        "inliers": found.inlier_count,
        "verification": {**found.to_dict(), "is_inlier": found.is_inlier.tolist()},
    }
    return found.is_inlier


def _read_options(
    sizes: Sequence[tuple[int, int]],
    table: PointTable | None,
    masks: tuple[Path | None, Path | None],
) -> dict[str, Any]:
    """Points and masks, as arguments of `Matcher.match`."""
    from ucn.data.io import read_mask

    options: dict[str, Any] = {} if table is None else {"points": table.points.astype("float32")}
    for name, path, size_hw in zip(("mask0", "mask1"), masks, sizes, strict=True):
        if path is not None:
            options[name] = read_mask(path, size_hw)
    return options


def _warn_empty(inputs: dict[str, Any], masks: tuple[Path | None, Path | None]) -> bool:
    """Names masks that use no pixel: nothing can match there, whatever the images show."""
    empty = {
        path: None
        for name, path in zip(("mask0", "mask1"), masks, strict=True)
        if name in inputs and not inputs[name].any()
    }
    for path in empty:
        warn(f"warning: mask {path} is empty: all its pixels are black or transparent")
    return bool(empty)


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


def _format_lines(matches: Matches, summary: dict[str, Any], is_mask_empty: bool) -> dict[str, str]:
    doubt = "an empty mask leaves nothing to match" if is_mask_empty else describe_doubt(matches)
    note = "" if matches.pair_score >= 0.5 else f" ({doubt})"
    return {
        "matches": f"{len(matches):,}",
        **_format_verification(summary),
        "mutual": format_share(summary["mutual_share"]),
        "mean score": f"{summary['mean_score']:.3f}" if len(matches) else "–",
        "pair score": f"{matches.pair_score:.3f}{note}",
        **describe_views(matches),
    }


def _format_verification(summary: dict[str, Any]) -> dict[str, str]:
    found = summary.get("verification")
    if found is None:
        return {}
    failure = f" ({found['failure']})" if found["failure"] else ""
    return {"inliers": f"{found['inliers']:,}{failure}", "verified by": format_verifier(found)}
