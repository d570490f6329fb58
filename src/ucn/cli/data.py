"""``ucn data``: lists, checks, shows and converts data sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._outputs import Output, check_files
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_columns, print_json, print_lines, to_dicts, warn

if TYPE_CHECKING:
    from ucn.data.catalogue import Option
    from ucn.data.checking import CheckReport
    from ucn.data.descriptions import DataInfo
    from ucn.data.pairs import PairData

_SHOWN_PROBLEMS = 20


class Layout(StrEnum):
    """How `ucn data convert` writes points."""

    images = "images"
    coco = "coco"
    pairs = "pairs"


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Data set, see `ucn data list`.", show_default=False)
]
Folder = Annotated[Path, opt.path_argument("DIR", "Folder of the data set.")]
Split = Annotated[
    str | None, typer.Option(metavar="NAME", help="Split of the data set.", show_default="the first")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Option of the data set's reader; repeatable."),
]


def list_sets(
    name: Annotated[str | None, opt.detail_argument("this data set")] = None,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """List the supported data sets, or show layout, licence, source and options of one of them."""
    from ucn.data.catalogue import explain_options, find_info, list_data, list_options

    infos = list_data() if name is None else (find_info(name),)
    if json:
        sets = []
        for info in infos:
            values = asdict(info)
            options = {"options": list_options(info.name), "options_mean": explain_options(info.name)}
            sets.append({**values, **options})
        print_json({"command": "data list", "ucn": find_version(), "data": sets})
        return
    if name is None:
        print_columns([(info.name, info.task, info.title) for info in infos])
        typer.echo("`ucn data list NAME` shows layout, licence, source and options of one of them.")
        return
    for info in infos:
        _print_info(info)
        _print_options(info)


def check(
    name: Name,
    folder: Folder,
    split: Split = None,
    options: Options = None,
    pairs: Annotated[int, opt.count_option("Largest number of pairs to read.", minimum=0)] = 200,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Check a data set: read every file and evenly spread pairs; exit with 1 where something is wrong."""
    from ucn.data.checking import check_data

    data = _open(name, folder, split, options)
    with CountBar("reading", is_quiet=json) as bar:
        report = check_data(data, bar, max_pairs=pairs)
    if json:
        print_json({"command": "data check", "ucn": find_version(), "name": name} | _to_dict(report))
    else:
        _print_report(name, report)
    if not report.is_good:
        raise typer.Exit(1)


def show(
    name: Name,
    folder: Folder,
    output: Annotated[Path, opt.output_option("Image: .png, .jpg or .webp.")],
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, max=100, help="Number of pairs.")] = 4,
    width: Annotated[
        int, typer.Option(metavar="N", min=200, max=8000, help="Width of the image in pixels.")
    ] = 1200,
    split: Split = None,
    options: Options = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Draw evenly spread pairs of a data set with their correspondences."""
    check_files([Output(output)], [folder], overwrite)
    from ucn.data.checking import spread
    from ucn.data.io import write_image
    from ucn.viz import draw_samples

    data = _open_for_use(name, folder, split, options)
    samples = []
    with CountBar("reading", is_quiet=json) as bar:
        for index in spread(len(data), count):
            samples.append(data.read(index))
            bar(len(samples), min(count, len(data)))
    write_image(output, draw_samples(samples, width=width), overwrite)
    shown = {sample.name: len(sample) for sample in samples}
    if json:
        print_json({"command": "data show", "ucn": find_version(), "pairs": shown, "output": str(output)})
    else:
        print_lines({pair: f"{points:,} correspondences" for pair, points in shown.items()})
        print_lines({"written": str(output)})


def convert(
    name: Name,
    folder: Folder,
    output: Annotated[Path, opt.output_option("Folder to create.", metavar="DIR")],
    split: Split = None,
    options: Options = None,
    layout: Annotated[
        Layout | None,
        typer.Option(
            help="images: keypoints.csv; coco: keypoints.json; pairs: pairs.csv and a CSV per pair.",
            show_default="images where any two are a pair, else pairs",
        ),
    ] = None,
    limit: Annotated[
        int | None, opt.count_option("Largest number of images or pairs, evenly spread.", "all")
    ] = None,
    max_points: Annotated[int | None, opt.count_option("Largest number of points per pair.", "all")] = None,
    seed: Annotated[int, opt.count_option("Random seed of the choice of points.", minimum=0)] = 0,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write a data set as your own data: images with their points, or pairs with a CSV of points each."""
    from ucn.data.convert import convert_pairs
    from ucn.data.convert_images import choose_layout, convert_images
    from ucn.data.sets.semantic.keypoint_pairs import KeypointData

    data = _open_for_use(name, folder, split, options)
    chosen = choose_layout(data, None if layout is None else layout.value)
    if chosen != "pairs" and max_points is not None:
        raise typer.BadParameter("--max-points is for pairs: add --layout pairs, or leave it out")
    origin: dict[str, Any] = {"source": name, "split": split, "options": _parse(options)}
    with CountBar("converting", is_quiet=json) as bar:
        if chosen != "pairs" and isinstance(data, KeypointData):
            summary = convert_images(
                data, output, layout=chosen, max_images=limit, overwrite=overwrite, progress=bar, **origin
            )
        else:
            summary = convert_pairs(
                data,
                output,
                max_pairs=limit,
                max_points=max_points,
                seed=seed,
                overwrite=overwrite,
                progress=bar,
                **origin,
            )
    counts = asdict(summary)
    if json:
        print_json({"command": "data convert", "ucn": find_version(), "output": str(output)} | counts)
    else:
        lines = {"pairs": f"{summary.pair_count:,}", "points": f"{summary.point_count:,}"}
        lines["images"] = f"{summary.image_count:,}, {summary.copied_count:,} of them copied unchanged"
        print_lines(lines | {"written": str(output)})


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_sets,
    "check": check,
    "show": show,
    "convert": convert,
}
"""The commands of this group by name."""


def _open(name: str, folder: Path, split: str | None, options: list[str] | None) -> PairData:
    from ucn.data.catalogue import open_data

    return open_data(name, folder, split, _parse(options))


def _open_for_use(name: str, folder: Path, split: str | None, options: list[str] | None) -> PairData:
    """Opens a data set with at least one pair; warns of pairs that were left out."""
    from ucn.errors import DataError

    data = _open(name, folder, split, options)
    if data.problems:
        left_out = f"{len(data.problems):,} entries were left out, the first: {data.problems[0]}"
        hint = f"`ucn data check {name} DIR` lists them"
        if not len(data):
            raise DataError(f"{name} has no usable pair: {left_out}; {hint}")
        warn(f"warning: {left_out}; {hint}")
    return data


def _parse(options: list[str] | None) -> dict[str, Option]:
    from ucn.data.catalogue import parse_options

    return parse_options(options or ())


def _print_info(info: DataInfo) -> None:
    typer.secho(f"{info.name}: {info.title}", bold=True)
    print_lines(
        {
            "  task": info.task,
            "  ground truth": info.ground_truth,
            "  layout": ("\n" + " " * 16).join(info.layout),
            "  splits": ", ".join(info.splits),
            "  licence": info.licence,
            "  source": info.source or "–",
        }
    )


def _print_options(info: DataInfo) -> None:
    from ucn.data.catalogue import explain_options, list_options

    meanings = explain_options(info.name)
    if meanings:
        typer.secho("options (--option KEY=VALUE)", bold=True)
        defaults = list_options(info.name)
        print_lines({f"  {key}={defaults[key]}": meaning for key, meaning in meanings.items()})


def _print_report(name: str, report: CheckReport) -> None:
    lines = {kind + " files": f"{count:,}" for kind, count in report.file_counts.items()}
    lines |= {"pairs": f"{report.pair_count:,}", "pairs read": f"{report.read_count:,}"}
    lines["points of those"] = f"{report.point_count:,}"
    if report.empty_names:
        lines["without points"] = f"{len(report.empty_names):,} of the pairs read"
    print_lines(lines)
    for note in report.notes[:_SHOWN_PROBLEMS]:
        typer.echo(f"note: {note}")
    for problem in report.problems[:_SHOWN_PROBLEMS]:
        typer.secho(f"problem: {problem}", fg=typer.colors.RED)
    left = len(report.problems) - _SHOWN_PROBLEMS
    if left > 0:
        typer.secho(f"… and {left:,} more problems (--json lists all)", fg=typer.colors.RED)
    if report.is_good:
        typer.secho(f"{name}: nothing wrong", fg=typer.colors.GREEN)
    else:
        count = len(report.problems)
        typer.secho(f"{name}: {count:,} {'problem' if count == 1 else 'problems'}", fg=typer.colors.RED)


def _to_dict(report: CheckReport) -> dict[str, Any]:
    return {
        "is_good": report.is_good,
        "files": report.file_counts,
        "pairs": report.pair_count,
        "pairs_read": report.read_count,
        "points": report.point_count,
        "empty_pairs": list(report.empty_names),
        "notes": list(report.notes),
        "faults": to_dicts(report.problems),
    }
