"""``ucn evaluate``: benchmarks of the network and other methods side by side."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._checks import check_methods
from ucn.cli._progress import CountBar
from ucn.cli._report import print_json, print_lines, print_table, warn

if TYPE_CHECKING:
    from ucn.evaluate.core.report import Report
    from ucn.evaluate.evaluations import Evaluation


_SHOWN_PROTOCOL = ("data", "score")  # the lines without which the main table cannot be read


def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="One of the benchmarks above.", show_default=False)
    ],
    data: Annotated[Path | None, opt.path_option("Folder of the data.", metavar="DIR")] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Methods to evaluate.", show_default="all but 'only where named'"),
    ] = None,
    weights_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--weights-file",
            metavar="FILE",
            help="Weights of `ucn train` as another method, named after the file; repeatable.",
        ),
    ] = None,
    trunk: Annotated[
        Path | None,
        opt.path_option("ImageNet weights for method trunk.", show_default="googlenet/*.npz in $UCN_DATA"),
    ] = None,
    xfeat: Annotated[
        Path | None, opt.path_option("ONNX file for method xfeat.", show_default="peers/*.onnx in $UCN_DATA")
    ] = None,
    siamese: Annotated[
        Path | None, opt.path_option("Network for method siamese.", show_default="the package's")
    ] = None,
    vgg: Annotated[
        Path | None,
        opt.path_option("Torchvision's vgg16 for method vgg.", show_default="vgg/*.safetensors in $UCN_DATA"),
    ] = None,
    output: Annotated[
        Path, opt.output_option("Folder for the results.", metavar="DIR", show_default=True)
    ] = Path("ucn-results"),
    cache: Annotated[
        Path | None,
        opt.path_option(
            "Folder for cached predictions, which are reused.",
            metavar="DIR",
            show_default="predictions/ in the results",
        ),
    ] = None,
    limit: Annotated[int | None, opt.count_option("Largest number of pairs, evenly spread.", "all")] = None,
    seed: Annotated[
        int,
        opt.count_option(
            "Random seed of points, confidence intervals, and estimators of pose, homography and models.",
            minimum=0,
        ),
    ] = 0,
    seeds: Annotated[int, opt.count_option("Average over N seeds from --seed on, for reconstruction.")] = 1,
    refinement: Annotated[
        bool,
        opt.flag("--refinement/--no-refinement", "With and without sub-cell refinement, or only without."),
    ] = True,
    max_side: Annotated[
        int | None, opt.count_option("Longest image side in pixels.", "the benchmark's own", minimum=32)
    ] = None,
    sheet: Annotated[int, opt.count_option("Also draw N pairs with all methods.", minimum=0)] = 0,
    class_masks: Annotated[
        Path | None, opt.path_option("Class masks SEQUENCE/FRAME.png for kitti-raw-points.", metavar="DIR")
    ] = None,
    scenes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Scenes of the folder, for multiview.", show_default="all of them"
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Split of KITTI flow and Sintel: val, train or training (both).",
            show_default="val, or all of a folder without it",
        ),
    ] = None,
    subset: Annotated[
        Path | None,
        opt.path_option("List of images or pairs for cub, such as WarpNet's.", show_default="2,000 pairs"),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Classes of the folder, for objects.", show_default="all of them"),
    ] = None,
    jobs: Annotated[int, opt.count_option("Number of processes; they share the pairs and the GPU.")] = 1,
    device: opt.Device = None,
    update: Annotated[
        bool,
        opt.flag("--update", "Evaluate only these methods, and keep all others of the existing results."),
    ] = False,
    verbose: Annotated[
        bool, opt.flag("--verbose", "Print all tables, the protocol and the methods, not only one table.")
    ] = False,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Evaluate methods on a benchmark; write tables, JSON, CSV and plots.

    Predictions are cached: an interrupted run resumes, and a second run only computes scores.

    Benchmarks:
    - need no data: mini, motorcycle, self
    - geometric: hpatches, hpatches-matches, sintel, kitti-flow, middlebury,
      middlebury-flow, middlebury-stereo, flow (all flow sets of a folder),
      multiview (COLMAP reconstructions)
    - driving: kitti-raw-points, kitti-odometry-points (points);
      kitti-raw, kitti-odometry, kitti-odometry-train (relative pose)
    - semantic: cub, faces, pf-willow, pf-pascal, spair,
      pascal-berkeley, flowweb
    - objects (classes of images with masks, without labelled points)
    - others: own (your pairs), pair-score, transfer (labels), reconstruction

    Methods:
    - weights: those of `ucn weights`, and each --weights-file by its name, with
      neighbourhood consensus; without it: NAME+nearest
    - sift, daisy, kaze, hog, surf, trunk, xfeat, disk; with it: NAME+consensus
    - only where named: vgg, pixel-sift, siamese, nn-transfer; sift-flow, dsp,
      deepmatching, which can use other features (daisy+dsp)
    - sift-ratio (relative pose only), colmap-sift (reconstruction only)
    - disk-lightglue, aliked-lightglue, xfeat-lighterglue (relative pose,
      hpatches-matches, reconstruction)
    """
    check_methods(_split(methods or ""), weights_files or ())
    from ucn.errors import ConfigError
    from ucn.evaluate.core.predictions import RunSettings
    from ucn.evaluate.core.report import check_outputs, list_outputs, to_dict, write_report
    from ucn.evaluate.core.update import read_page
    from ucn.evaluate.evaluations import Request, find_evaluation
    from ucn.features.method import MethodFiles
    from ucn.files.scratch import lock_output
    from ucn.runtime.device import choose_device

    evaluation = find_evaluation(name)
    _check_options(name, evaluation, data, sheet, class_masks, scenes, classes, update)
    _check_choice(name, evaluation, split, subset)
    if seeds > 1 and not evaluation.has_seeds:
        raise ConfigError(f"{name} does not average over seeds; leave --seeds out")
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
        "--seeds": seeds if seeds > 1 else None,
        "--no-refinement": not refinement,
        "--max-side": max_side,
        "--sheet": sheet or None,
        "--class-masks": class_masks,
        "--scenes": scenes,
        "--split": split,
        "--subset": subset,
        "--classes": classes,
        "--jobs": jobs if jobs > 1 else None,
        "--device": device,
        "-o": output,
        "--cache": cache,
        "--update": update,
        "--overwrite": overwrite,
    }
    page = read_page(output / f"{name}.json", name) if update else None
    images = evaluation.images if sheet else ()
    check_outputs(list_outputs(output, name, evaluation.plots, images), overwrite or update)
    settings = RunSettings(
        cache=cache or output / "predictions",
        limit=limit,
        seed=seed,
        seeds=seeds,
        refinements=(True, False) if refinement else (False,),
        max_side=max_side,
        device=str(choose_device(device)),
        jobs=jobs,
        command=_format_command(name, given),
        page=page,
    )
    with lock_output(output / name), CountBar(name, is_quiet=json) as bar:
        request = Request(
            folder=data or Path(),
            settings=settings,
            methods=None if methods is None else _split(methods),
            files=MethodFiles(weights_files or (), trunk, xfeat, siamese, vgg),
            sheet_pairs=sheet,
            class_masks=class_masks,
            scenes=_split(scenes or ""),
            split=split or "",
            subset=subset,
            classes=_split(classes or ""),
            on_skip=None if json else _warn_skipped,
            progress=bar,
        )
        report = evaluation.run(request)
        written = write_report(report, output, overwrite or update)
    if json:
        print_json({**to_dict(report), "outputs": [str(path) for path in written]})
    else:
        _print_report(report, written, verbose)


def _split(names: str) -> list[str]:
    return [part.strip() for part in names.split(",") if part.strip()]


def _warn_skipped(method: str, reason: str) -> None:
    """Warns that a method is skipped; names the option where the library names the field of its file."""
    remedy = re.sub(r"`MethodFiles\.(\w+)`", r"--\1", reason)
    warn(f"skipped {method}: {remedy}")


def _check_options(
    name: str,
    evaluation: Evaluation,
    data: Path | None,
    sheet: int,
    class_masks: Path | None,
    scenes: str | None,
    classes: str | None,
    update: bool,
) -> None:
    """Checks that the options fit the benchmark."""
    from ucn.errors import ConfigError

    if data is None and evaluation.needs_folder:
        raise ConfigError(f"{name} needs its data: give the folder with --data DIR")
    if data is not None and not evaluation.needs_folder:
        raise ConfigError(f"{name} has its data in the package; leave --data out")
    if sheet and not evaluation.images:
        raise ConfigError(f"{name} has no sheet of matches; leave --sheet out")
    if class_masks is not None and not evaluation.has_classes:
        raise ConfigError(f"{name} has no classes of objects; leave --class-masks out")
    if scenes is not None and not evaluation.has_scenes:
        raise ConfigError(f"{name} has no scenes to choose from; leave --scenes out")
    if scenes is not None and not _split(scenes):
        raise ConfigError(f"--scenes names no scene: expected names such as kitchen,cup, got {scenes!r}")
    if classes is not None and not evaluation.has_class_names:
        raise ConfigError(f"{name} has no classes to choose from; leave --classes out")
    if classes is not None and not _split(classes):
        raise ConfigError(f"--classes names no class: expected names such as car,cow, got {classes!r}")
    if update and sheet:
        raise ConfigError(
            "--sheet draws the predictions of all methods, and --update has only those of methods evaluated "
            "now; leave one of them out"
        )
    if update and evaluation.update_obstacle:
        raise ConfigError(f"{name} cannot be evaluated with --update: {evaluation.update_obstacle}")


def _check_choice(name: str, evaluation: Evaluation, split: str | None, subset: Path | None) -> None:
    """Checks that a split or a list of images fits the benchmark."""
    from ucn.errors import ConfigError

    if split is not None and not evaluation.has_splits:
        raise ConfigError(f"{name} has no choice of splits; leave --split out")
    if subset is not None and not evaluation.has_subset:
        raise ConfigError(f"{name} takes no list of its images; leave --subset out")
    if subset is not None and not subset.is_file():
        raise ConfigError(f"no list at {subset}: expected a text file of image names, one or two a line")


def _format_command(name: str, options: Mapping[str, Any]) -> str:
    """The command that repeats the run; options that are None or False were not given."""
    words = ["ucn", "evaluate", name]
    for option, given in options.items():
        for value in given if isinstance(given, list) else [given]:
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, _format_path(value) if isinstance(value, Path) else shlex.quote(str(value))]
    return " ".join(words)


def _format_path(path: Path) -> str:
    """A quoted path; paths in the folder of sample data are relative to $UCN_DATA."""
    folder = os.environ.get("UCN_DATA")
    if folder and path.is_relative_to(folder):
        return f"$UCN_DATA/{shlex.quote(path.relative_to(folder).as_posix())}".removesuffix("/.")
    return shlex.quote(str(path))


def _print_report(report: Report, written: list[Path], is_verbose: bool) -> None:
    """Prints the main table or, if verbose, all of them and what was done."""
    for table in report.tables if is_verbose else [report.tables[report.main_table]]:
        print_table(table.header, table.rows, title=f"{report.name}: {table.title}")
    lines = {"written": _format_written(written)}
    if is_verbose:
        for line in (*report.protocol, *report.notes):
            typer.echo(f"- {line}")
        for method in report.methods:
            typer.echo(f"- {method.name}: {method.title}")
    else:
        found = (line.partition(": ") for line in report.protocol)
        lines = {
            **{what: text for what, _, text in found if what in _SHOWN_PROTOCOL},
            "more": _describe_rest(report),
            **lines,
        }
    print_lines(lines)


def _describe_rest(report: Report) -> str:
    """What the first table leaves out, and where it is."""
    left = len(report.tables) - 1
    tables = {0: "", 1: "another table, "}.get(left, f"{left} more tables, ")
    return f"{tables}protocol and methods with --verbose, and in {report.name}.md"


def _format_written(paths: list[Path]) -> str:
    """Files by folder and name, with their suffixes in braces as a shell expands them."""
    suffixes: dict[Path, list[str]] = {}
    for path in paths:
        suffixes.setdefault(path.with_suffix(""), []).append(path.suffix)
    return ", ".join(
        f"{stem}{found[0]}" if len(found) == 1 else f"{stem}.{{{','.join(end[1:] for end in found)}}}"
        for stem, found in suffixes.items()
    )
