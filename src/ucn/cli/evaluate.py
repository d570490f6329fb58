"""``ucn evaluate``: benchmarks with the network and other methods side by side, in one run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli._options import Debug, Device, Json, Overwrite, output_option, path_option
from ucn.cli._progress import CountBar
from ucn.cli._report import print_json, say_files

if TYPE_CHECKING:
    from ucn.evaluate.core.report import Report
    from ucn.evaluate.evaluations import Evaluation

_WIDTH = 160


def run(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A benchmark of those above.", show_default=False),
    ],
    data: Annotated[
        Path | None,
        path_option("Its data; mini, motorcycle and self have theirs.", metavar="DIR"),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="What to measure, of those above.",
            show_default="all but those only where named",
        ),
    ] = None,
    weights_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--weights-file",
            metavar="FILE",
            help="Weights of `ucn train` to measure, a method of the file's name; repeatable.",
        ),
    ] = None,
    trunk: Annotated[
        Path | None,
        path_option("ImageNet weights for method trunk.", show_default="googlenet/*.npz in $UCN_DATA"),
    ] = None,
    xfeat: Annotated[
        Path | None,
        path_option("ONNX file for method xfeat.", show_default="peers/*.onnx in $UCN_DATA"),
    ] = None,
    siamese: Annotated[
        Path | None,
        path_option("Network for method siamese.", show_default="the package's"),
    ] = None,
    vgg: Annotated[
        Path | None,
        path_option("Torchvision's vgg16 for method vgg.", show_default="vgg/*.safetensors in $UCN_DATA"),
    ] = None,
    output: Annotated[
        Path,
        output_option("Folder for the results.", metavar="DIR", show_default=True),
    ] = Path("ucn-results"),
    cache: Annotated[
        Path | None,
        path_option(
            "Folder for predictions; those in it are not made again.",
            metavar="DIR",
            show_default="predictions/ in the results",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="At most so many pairs, evenly spread.", show_default="all"),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Of points, intervals, and the estimators of camera motion, homographies and models.",
        ),
    ] = 0,
    refinement: Annotated[
        bool, typer.Option("--refinement/--no-refinement", help="Measure with and without, or without only.")
    ] = True,
    max_side: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=32,
            help="Longest side of images in pixels.",
            show_default="the benchmark's own",
        ),
    ] = None,
    sheet: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Also draw N pairs: query, truth, each method. Shows images of the data."
        ),
    ] = 0,
    class_masks: Annotated[
        Path | None,
        path_option("Masks SEQUENCE/FRAME.png of classes, for kitti-raw-points.", metavar="DIR"),
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Processes that share the methods of the CPU.")
    ] = 1,
    device: Device = None,
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Keep all other methods of the results in the folder of -o, and replace these files.",
        ),
    ] = False,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure how many points methods find, on a benchmark; write table, JSON, CSV and curves.

    Predictions are kept, so that a run that was stopped goes on, and a second run only scores.

    Benchmarks:
    - need no data: mini, motorcycle, self
    - one scene: hpatches, hpatches-matches, sintel, kitti-flow, middlebury,
      middlebury-flow, middlebury-stereo, flow (all flow sets of a folder)
    - driving: kitti-raw-points, kitti-odometry-points (points);
      kitti-raw, kitti-odometry, kitti-odometry-train (camera motion)
    - kinds of things: cub, faces, pf-willow, pf-pascal, spair,
      pascal-berkeley, flowweb
    - others: own (your pairs), pair-score, reconstruction

    Methods:
    - weights: those of `ucn weights`, and each --weights-file by its name
    - sift, daisy, kaze, hog, surf, trunk, xfeat, disk
    - only where named: vgg, pixel-sift, siamese, nn-transfer; sift-flow, dsp,
      deepmatching, which also work on features of others (daisy+dsp)
    - sift-ratio (camera motion only), colmap-sift (reconstruction only)
    """
    from ucn.evaluate.core.merge import read_earlier
    from ucn.evaluate.core.methods import MethodFiles
    from ucn.evaluate.core.outputs import check_outputs, list_outputs, write_outputs
    from ucn.evaluate.evaluations import Request, find_evaluation
    from ucn.evaluate.points.run import RunSettings
    from ucn.runtime.device import choose_device

    evaluation = find_evaluation(name)
    _check_options(name, evaluation, data, sheet, class_masks)
    if update:
        _check_update(name, evaluation, sheet)
    names = None if methods is None else [part.strip() for part in methods.split(",") if part.strip()]
    given = {
        "--data": data,
        "--methods": methods,
        "--weights-file": weights_files,
        "--trunk": trunk,
        "--xfeat": xfeat,
        "--siamese": siamese,
        "--vgg": vgg,
        "--limit": limit,
        "--seed": seed or None,
        "--no-refinement": not refinement,
        "--max-side": max_side,
        "--sheet": sheet or None,
        "--class-masks": class_masks,
        "--jobs": jobs if jobs > 1 else None,
        "--device": device,
        "-o": output,
        "--cache": cache,
        "--overwrite": overwrite,
    }
    pictures = evaluation.pictures if sheet else ()
    earlier = read_earlier(output / f"{name}.json", name) if update else None
    check_outputs(list_outputs(output, name, evaluation.plots, pictures), overwrite or update)
    settings = RunSettings(
        cache=cache or output / "predictions",
        limit=limit,
        seed=seed,
        refinements=(True, False) if refinement else (False,),
        max_side=max_side,
        device=str(choose_device(device)),
        jobs=jobs,
        command=_say_command(name, given),
    )
    with CountBar(name, is_quiet=json) as bar:
        request = Request(
            folder=data or Path(),
            settings=settings,
            methods=names,
            files=MethodFiles(weights_files or (), trunk, xfeat, siamese, vgg),
            sheet_pairs=sheet,
            class_masks=class_masks,
            on_skip=None if json else _say_skipped,
            progress=bar,
            earlier=earlier,
        )
        outcome = evaluation.run(request)
    written = write_outputs(outcome.report, output, overwrite or update, outcome.pictures)
    if json:
        _print_json(outcome.report, written)
    else:
        _print_report(outcome.report, written)


def _check_options(
    name: str, evaluation: Evaluation, data: Path | None, sheet: int, class_masks: Path | None
) -> None:
    """Refuses options that this evaluation has nothing to do with, and asks for what it needs."""
    from ucn.errors import ConfigError

    if data is None and evaluation.needs_folder:
        raise ConfigError(f"{name} needs its data: give the folder with --data DIR")
    if data is not None and not evaluation.needs_folder:
        raise ConfigError(f"{name} has its data in the package; leave --data out")
    if sheet and not evaluation.pictures:
        raise ConfigError(f"{name} has no sheet of matches; leave --sheet out")
    if class_masks is not None and not evaluation.has_classes:
        raise ConfigError(f"{name} does not tell classes of things; leave --class-masks out")


def _check_update(name: str, evaluation: Evaluation, sheet: int) -> None:
    """Refuses to keep methods of earlier results where their figures are not enough."""
    from ucn.errors import ConfigError

    if sheet:
        raise ConfigError(
            "--sheet draws the answers of all methods, and --update has those of methods measured now only; "
            "leave one of them out"
        )
    if evaluation.update_obstacle:
        raise ConfigError(f"{name} cannot be measured with --update: {evaluation.update_obstacle}")


def _say_skipped(name: str, reason: str) -> None:
    typer.secho(f"skipped {name}: {reason}", err=True, fg=typer.colors.YELLOW)


def _say_command(name: str, options: Mapping[str, Any]) -> str:
    """The command that makes the run again; options that are None or False were not given."""
    words = ["ucn", "evaluate", name]
    for option, given in options.items():
        for value in given if isinstance(given, list) else [given]:
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, _say_path(value) if isinstance(value, Path) else shlex.quote(str(value))]
    return " ".join(words)


def _say_path(path: Path) -> str:
    """A path; one in the folder of sample data relative to it, so that a page can be followed anywhere."""
    folder = os.environ.get("UCN_DATA")
    if folder and path.is_relative_to(folder):
        return f"$UCN_DATA/{shlex.quote(path.relative_to(folder).as_posix())}".removesuffix("/.")
    return shlex.quote(str(path))


def _print_json(report: Report, written: list[Path]) -> None:
    from ucn.evaluate.core.report import to_dict

    print_json({**to_dict(report), "outputs": [str(path) for path in written]})


def _print_report(report: Report, written: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    for table in report.tables:
        shown = Table(*table.header, title=table.title, title_justify="left")
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    for line in (*report.protocol, *report.notes):
        console.print(f"- {line}")
    for method in report.methods:
        console.print(f"- {method.name}: {method.title}")
    console.print(f"written: {say_files(written)}")
