"""Label transfer to a folder: points of labelled images on all its images; a stopped run resumes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucn.config import MIN_VISIBLE_SCORE
from ucn.data.checking import spread
from ucn.data.io import write_image
from ucn.data.point_files.files import is_coco, write_point_table
from ucn.data.point_files.table import PointTable, rename_columns
from ucn.errors import OutputError, UcnError
from ucn.folders.extraction import list_image_names
from ucn.folders.journal import Journal, stamp_files
from ucn.folders.labelled_images import LabelledImages
from ucn.matching.many import CACHE_BYTES, SharedFeatures
from ucn.matching.matcher import Matcher
from ucn.matching.transfer import collect_votes, decide
from ucn.types import BoolArray
from ucn.viz.contact_sheet import SheetImage, draw_contact_sheet

JOURNAL_ENDING = ".progress.jsonl"
"""The journal lies beside the output, and has its name with this ending."""
COLUMNS = ("image", "part", "x", "y", "score", "visible")
"""Header of the output; further columns of the labels follow."""
SHEET_IMAGES = 24
"""The most images of a contact sheet."""

_MAX_SHEET_LABELLED = 4

Progress = Callable[[int, int], None]
"""Called with (images done, all images)."""


@dataclass(frozen=True)
class TransferRecord:
    """The points of an image.

    Attributes:
        image: its name below the folder.
        image_hw: (H, W).
        points: (N, 2) x, y; None where there is none.
        scores: (N,) as `TransferredPoints.scores`.
    """

    image: str
    image_hw: tuple[int, int]
    points: tuple[tuple[float, float] | None, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class FolderTransfer:
    """The outcome of a run.

    Attributes:
        table: a row for each image and part, images in natural order, as written.
        records: of the images, in that order.
        resumed: how many of them an earlier run had done.
        failures: for each image without points the reason, by name.
    """

    table: PointTable
    records: tuple[TransferRecord, ...]
    resumed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)


class TransferJournal(Journal):
    """The finished images of a run."""

    home = "output"

    def check_item(self, item: Mapping[str, Any]) -> None:
        """Raises where an item is no record."""
        _to_record(item)


def transfer_folder(
    matcher: Matcher,
    labels: LabelledImages,
    folder: Path,
    output: Path,
    *,
    sheet: Path | None = None,
    min_score: float = MIN_VISIBLE_SCORE,
    cache_bytes: int = CACHE_BYTES,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> FolderTransfer:
    """Finds the points of labelled images on every image below a folder, and writes them.

    Images that an earlier run with the same labels, weights and settings finished are skipped, unless they
    have changed. A labelled image that lies in the folder keeps its own points, with score 1. An image that
    cannot be read does not stop the others.

    Args:
        matcher: matches images.
        labels: the labelled images.
        folder: of images, searched recursively.
        output: .csv, .json or .coco.json; rows have `COLUMNS`.
        sheet: .png, .jpg or .webp for a contact sheet of up to `SHEET_IMAGES` images.
        min_score: the score from which a point counts as visible.
        cache_bytes: memory for the features of labelled images.
        overwrite: do all images anew, and replace existing outputs.
        progress: called at the beginning, and after each image.

    Raises:
        DataError: the folder has no image, or the journal is of a run with other labels or settings.
        OutputError: a file cannot be written, or exists already and is of no earlier run.
    """
    outputs = [path for path in (output, sheet) if path is not None]
    ours = {os.path.realpath(path) for path in outputs}
    names = [name for name in list_image_names(folder) if os.path.realpath(folder / name) not in ours]
    key = {"weights": matcher.weights.sha256, "config": matcher.config.to_dict(), "labels": labels.digest()}
    work = _Work(matcher, labels, cache_bytes)
    records: dict[str, TransferRecord] = {}
    failures: dict[str, str] = {}
    with TransferJournal(output.with_name(output.name + JOURNAL_ENDING), key, outputs, overwrite) as journal:
        for name in names:
            found = journal.find_item((name,), [folder / name])
            if found is not None:
                records[name] = _to_record(found)
        resumed = len(records)
        if progress is not None:
            progress(resumed, len(names))
        for count, name in enumerate([name for name in names if name not in records], 1):
            stamps = stamp_files([folder / name])
            try:
                records[name] = work.transfer(folder / name, name)
            except OutputError:
                raise  # a full disk concerns all images
            except (UcnError, MemoryError, torch.OutOfMemoryError) as error:
                failures[name] = " ".join(str(error).split()) or "not enough memory; reduce max_side"
            else:
                if stamps is not None:
                    journal.add_item(asdict(records[name]), stamps)
            if progress is not None:
                progress(resumed + count, len(names))
    done = tuple(records[name] for name in names if name in records)
    table = _tabulate(labels, done, min_score)
    written = _hide(table) if is_coco(output) else table
    write_point_table(output, written, sizes_hw={r.image: r.image_hw for r in done}, overwrite=True)
    if sheet is not None:
        write_image(sheet, _draw(labels, done, folder, min_score), overwrite=True)
    return FolderTransfer(table, done, resumed, failures)


class _Work:
    """Carries the labels to one image after another."""

    def __init__(self, matcher: Matcher, labels: LabelledImages, cache_bytes: int) -> None:
        self._matcher, self._labels = matcher, labels
        self._features = SharedFeatures(matcher.extract, cache_bytes)
        self._is_reversed = False
        self._known = {os.path.realpath(each.path): each.points for each in reversed(labels.images)}

    def transfer(self, path: Path, name: str) -> TransferRecord:
        target = self._matcher.extract(path)
        points, scores = self._known.get(os.path.realpath(path)), np.ones(len(self._labels.parts))
        if points is None:
            images = self._labels.images[::-1] if self._is_reversed else self._labels.images
            self._is_reversed = not self._is_reversed  # begin with those that are still in the cache
            references = ((self._features.get(each.path), each.points) for each in images)
            votes = collect_votes(self._matcher.match_features, references, target)
            is_hidden = np.stack([each.is_hidden for each in images])
            votes = replace(votes, is_labelled=votes.is_labelled | is_hidden)
            found = decide(votes, target.image_hw, names=self._labels.parts)
            points, scores = found.points.astype(np.float64), found.scores.astype(np.float64)
        is_found: BoolArray = np.asarray(np.isfinite(points).all(axis=1))
        rounded = [(x, y) for x, y in points.round(2).tolist()]
        return TransferRecord(
            name,
            target.image_hw,
            tuple(point if use else None for point, use in zip(rounded, is_found.tolist(), strict=True)),
            tuple(np.where(is_found, scores, 0.0).round(4).tolist()),
        )


def _tabulate(labels: LabelledImages, records: tuple[TransferRecord, ...], min_score: float) -> PointTable:
    """A row for each image and part."""
    points = [point or (np.nan, np.nan) for record in records for point in record.points]
    scores = [score for record in records for score in record.scores]
    repeated = {name: cells * len(records) for name, cells in labels.columns.items()}
    extra = {name: tuple(cells) for name, cells in rename_columns(repeated, COLUMNS).items()}
    columns = {
        "image": tuple(record.image for record in records for _ in labels.parts),
        "part": labels.parts * len(records),
        "score": tuple(f"{score:.4f}" for score in scores),
        "visible": tuple(str(int(score >= min_score and score > 0)) for score in scores),
        **extra,
    }
    header, kinds = (*COLUMNS, *extra), {"score": float, "visible": bool}
    return PointTable(np.array(points, np.float64).reshape(-1, 2), columns, header=header, kinds=kinds)


def _hide(table: PointTable) -> PointTable:
    """Without the places of points that are not visible: COCO has no other sign for them."""
    hidden = np.array(table.columns["visible"]) == "0"
    return table.with_points(np.where(hidden[:, None], np.nan, table.points))


def _draw(labels: LabelledImages, records: tuple[TransferRecord, ...], folder: Path, min_score: float) -> Any:
    """Some labelled images, then images of the folder, evenly spread."""
    own = [SheetImage(f"{each.path.name} (labelled)", each.path, each.points) for each in labels.images]
    own = own[:_MAX_SHEET_LABELLED]
    labelled = {os.path.realpath(each.path) for each in labels.images}
    others = [record for record in records if os.path.realpath(folder / record.image) not in labelled]
    shown = [others[row] for row in spread(len(others), SHEET_IMAGES - len(own))]
    for record in shown:
        table = _hide(_tabulate(labels, (record,), min_score))
        own.append(SheetImage(record.image, folder / record.image, table.points))
    return draw_contact_sheet(own, labels.parts)


def _to_record(item: Mapping[str, Any]) -> TransferRecord:
    """A record from an item of a file that anyone may have edited."""
    height, width = (int(side) for side in item["image_hw"])
    points = tuple(None if point is None else (float(point[0]), float(point[1])) for point in item["points"])
    scores = tuple(float(score) for score in item["scores"])
    if len(points) != len(scores):
        raise ValueError("points and scores must be of one length")
    return TransferRecord(str(item["image"]), (height, width), points, scores)
