"""``ucn data``: which data sets can be read; is a folder whole; what does it show; make it one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli._options import Debug, Json, Overwrite, output_option, path_argument
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_json, print_lines

if TYPE_CHECKING:
    from ucn.data.catalogue import DataInfo, Option
    from ucn.data.checking import CheckReport
    from ucn.data.pairs import PairData

_SHOWN_FAULTS = 20

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A data set, see `ucn data list`.", show_default=False)
]
Folder = Annotated[Path, path_argument("DIR", "Its folder.")]
Split = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which part of it.", show_default="its first split")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of this data set's reader; repeatable."),
]


def list_sets(
    name: Annotated[
        str | None, typer.Argument(help="Say everything about this data set.", show_default=False)
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the data sets that can be read: task, truth, layout, licence, where to get them."""
    from ucn.data.catalogue import explain_options, find_info, list_data, list_options

    infos = list_data() if name is None else (find_info(name),)
    if json:
        sets = [
            asdict(info) | {"options": list_options(info.name), "options_mean": explain_options(info.name)}
            for info in infos
        ]
        print_json({"command": "data list", "ucn": find_version(), "data": sets})
    elif name is None:
        _print_infos(infos)
    else:
        _describe(infos[0])


def check(
    name: Name,
    folder: Folder,
    split: Split = None,
    options: Options = None,
    pairs: Annotated[int, typer.Option(metavar="N", min=0, help="Read at most so many pairs.")] = 200,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a data set: read every file once, and pairs spread over it; exit 1 where something is wrong."""
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
    output: Annotated[Path, output_option("Picture: .png or .jpg.")],
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, max=100, help="How many pairs.")] = 4,
    width: Annotated[
        int, typer.Option(metavar="N", min=200, max=8000, help="Of the picture, in pixels.")
    ] = 1200,
    split: Split = None,
    options: Options = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw pairs of a data set, spread evenly over it, with their true correspondences."""
    from ucn.data.checking import spread
    from ucn.data.io import check_image_suffix, check_output, write_image
    from ucn.viz import draw_samples

    check_image_suffix(output)
    check_output(output, overwrite)
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
    output: Annotated[Path, output_option("Folder to make.", metavar="DIR")],
    split: Split = None,
    options: Options = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="At most so many pairs, spread evenly.", show_default="all"),
    ] = None,
    max_points: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="At most so many points of a pair.", show_default="all"),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the choice of points.")] = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a data set as a folder of one's own: images, pairs.csv and a CSV of points for each pair."""
    from ucn.data.convert import convert_pairs

    data = _open_for_use(name, folder, split, options)
    with CountBar("converting", is_quiet=json) as bar:
        summary = convert_pairs(
            data,
            output,
            source=name,
            split=split,
            options=_parse(options),
            max_pairs=limit,
            max_points=max_points,
            seed=seed,
            overwrite=overwrite,
            progress=bar,
        )
    counts = asdict(summary)
    if json:
        print_json({"command": "data convert", "ucn": find_version(), "output": str(output)} | counts)
    else:
        lines = {what.replace("_", " "): f"{value:,}" for what, value in counts.items()}
        print_lines(lines | {"written": str(output)})


VERBS: dict[str, Callable[..., None]] = {"list": list_sets, "check": check, "show": show, "convert": convert}
"""The verbs of this group by name."""


def _open(name: str, folder: Path, split: str | None, options: list[str] | None) -> PairData:
    from ucn.data.catalogue import open_data

    return open_data(name, folder, split, _parse(options))


def _open_for_use(name: str, folder: Path, split: str | None, options: list[str] | None) -> PairData:
    """An opened set that has pairs; says on stderr what was left out."""
    from ucn.errors import DataError

    data = _open(name, folder, split, options)
    if data.faults:
        left_out = f"{len(data.faults):,} entries were left out, the first: {data.faults[0]}"
        hint = f"`ucn data check {name} DIR` lists them"
        if not len(data):
            raise DataError(f"{name} has no usable pair: {left_out}; {hint}")
        typer.secho(f"warning: {left_out}; {hint}", err=True, fg=typer.colors.YELLOW)
    return data


def _parse(options: list[str] | None) -> dict[str, Option]:
    from ucn.data.catalogue import parse_options

    return parse_options(options or ())


def _print_infos(infos: Sequence[DataInfo]) -> None:
    for info in infos:
        typer.secho(f"{info.name}: {info.title}", bold=True)
        print_lines({f"  {name}": text for name, text in _summarise(info).items()})
        typer.echo()
    typer.echo("`ucn data list NAME` says what the options of one of them mean.")


def _summarise(info: DataInfo) -> dict[str, str]:
    first, *others = info.layout
    indent = "\n" + " " * 19
    return {
        "task": info.task,
        "truth": info.truth,
        "layout": indent.join([first, *others]),
        "splits": ", ".join(info.splits),
        "licence": info.licence,
        "where to get it": info.source or "–",
    }


def _describe(info: DataInfo) -> None:
    from ucn.data.catalogue import explain_options, list_options

    typer.secho(f"{info.name}: {info.title}", bold=True)
    print_lines({f"  {name}": text for name, text in _summarise(info).items()})
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
    for note in report.notes[:_SHOWN_FAULTS]:
        typer.echo(f"note: {note}")
    for fault in report.faults[:_SHOWN_FAULTS]:
        typer.secho(f"fault: {fault}", fg=typer.colors.RED)
    left = len(report.faults) - _SHOWN_FAULTS
    if left > 0:
        typer.secho(f"… and {left:,} more faults (--json lists all)", fg=typer.colors.RED)
    if report.is_good:
        typer.secho(f"{name}: nothing wrong", fg=typer.colors.GREEN)
    else:
        count = len(report.faults)
        typer.secho(f"{name}: {count:,} {'fault' if count == 1 else 'faults'}", fg=typer.colors.RED)


def _to_dict(report: CheckReport) -> dict[str, Any]:
    faults = [{"file": str(f.path), "line": f.line, "message": f.message} for f in report.faults]
    return {
        "is_good": report.is_good,
        "files": report.file_counts,
        "pairs": report.pair_count,
        "pairs_read": report.read_count,
        "points": report.point_count,
        "empty_pairs": list(report.empty_names),
        "notes": list(report.notes),
        "faults": faults,
    }
