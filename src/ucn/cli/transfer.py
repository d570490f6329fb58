"""``ucn transfer``: the points of labelled images, found on every image of a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _command
from ucn.cli import _options as opt
from ucn.cli._checks import check_file, check_image_folder, check_images
from ucn.cli._outputs import Output, check_files
from ucn.cli._progress import CountBar
from ucn.cli._report import (
    describe_run,
    format_files,
    format_share,
    format_weights,
    print_json,
    print_lines,
    warn,
)
from ucn.config import MIN_VISIBLE_SCORE

if TYPE_CHECKING:
    from ucn.folders.labelled_images import LabelledImages
    from ucn.folders.transfer import FolderTransfer

_SHOWN = 5


@opt.expand_options
def run(
    paths: Annotated[
        list[Path],
        opt.path_argument("[REF]... FOLDER", "Labelled images, then the folder whose images get the points."),
    ],
    points: Annotated[
        list[Path],
        opt.path_option(
            "Points of the labelled images (CSV, COCO, labelme, .pts): one file for all, or one for each "
            "(repeat the option). Without REF, the file must name its images."
        ),
    ],
    output: Annotated[
        Path, opt.output_option("Write the points: .csv, .json or .coco.json.", show_default=True)
    ] = Path("labels.csv"),
    sheet: Annotated[
        Path | None, opt.path_option("Draw up to 24 images with their points: .png, .jpg or .webp.")
    ] = None,
    min_score: Annotated[
        float,
        typer.Option(metavar="S", min=0, max=1, help="Points with a lower score count as not visible."),
    ] = MIN_VISIBLE_SCORE,
    *,
    options: opt.TransferOptions,
) -> None:
    """Carry the points of labelled images to all images of a folder.

    Each labelled image votes with the scores of its matches, and agreement decides: ten labelled images are
    better than one. Each point of each image gets a position, a score, and whether it is visible.

    Run again, the command processes only images that are new, changed or failed. An image that fails does
    not stop the others; the exit code is then 1.
    """
    from ucn.data.point_files.files import POINT_TABLE_SUFFIXES
    from ucn.weights import check_weights

    begin = time.perf_counter()
    *images, folder = paths
    for path in points:
        check_file(path, "points")
    check_image_folder(folder)
    check_images(images)
    # Whether outputs exist is checked with the journal: those of an earlier run of this command are replaced.
    check_files(
        [Output(output, "points", POINT_TABLE_SUFFIXES), Output(sheet)], [*images, *points], overwrite=True
    )
    check_weights(options.weights)
    from ucn.folders.labelled_images import read_labelled_images
    from ucn.folders.transfer import transfer_folder

    config = opt.build_config(options.max_side, consensus=options.consensus, use_views=options.views)
    labels = read_labelled_images(points, images, folder)
    with CountBar("images", is_quiet=options.json) as bar:
        matcher = _command.load_matcher(options.weights, config, options.device)
        made = transfer_folder(
            matcher,
            labels,
            folder,
            output,
            sheet=sheet,
            min_score=min_score,
            overwrite=options.overwrite,
            progress=bar,
        )
    summary = {
        "command": "transfer",
        **describe_run(matcher),
        "folder": str(folder),
        **_summarise(labels, made),
        "min_score": min_score,
        "seconds": round(time.perf_counter() - begin, 3),
        "outputs": [str(path) for path in (output, sheet) if path is not None],
    }
    if options.json:
        from ucn.data.point_files.files import list_rows

        print_json({**summary, "points": list_rows(made.table)})
    else:
        _print(summary)
        for note in labels.notes:
            warn(f"note: {note}")
        for name, reason in list(made.failures.items())[:_SHOWN]:
            warn(f"failed: {name}: {reason}")
        if len(made.failures) > _SHOWN:
            warn(f"failed: {len(made.failures) - _SHOWN:,} more (--json lists all)")
    if made.failures:
        raise typer.Exit(1)


def _summarise(labels: LabelledImages, made: FolderTransfer) -> dict[str, Any]:
    visible = made.table.columns["visible"]
    return {
        "labelled": [str(each.path) for each in labels.images],
        "parts": list(labels.parts),
        "images": len(made.records),
        "resumed": made.resumed,
        "failed": dict(made.failures),
        "visible_share": visible.count("1") / len(visible) if visible else float("nan"),
    }


def _print(summary: dict[str, Any]) -> None:
    resumed = f", {summary['resumed']:,} of them by an earlier run" if summary["resumed"] else ""
    failed = {"failed": f"{len(summary['failed']):,}"} if summary["failed"] else {}
    print_lines(
        {
            "labelled": f"{len(summary['labelled']):,}, with {len(summary['parts']):,} points",
            "images": f"{summary['images']:,}{resumed}",
            **failed,
            "visible": f"{format_share(summary['visible_share'])} of the points (score at least "
            f"{summary['min_score']:g})",
            "weights": format_weights(summary["weights"]),
            "time": f"{summary['seconds']:.2f} s",
            "written": format_files(map(Path, summary["outputs"])),
        }
    )
