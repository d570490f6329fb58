"""Many pairs of images matched by one `Matcher`, into one file a pair, with a summary; a stopped run resumes.

An image that belongs to several pairs is encoded once, as long as its features fit into the memory set aside
for them; pairs are matched in an order in which images recur soon. A pair that fails, since an image is
damaged, does not stop the others: its row of the summary says why, and the next run tries it again.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ucn.data.io import write_image
from ucn.data.match_files import MATCH_SUFFIXES, write_matches
from ucn.errors import ConfigError, ImageReadError, OutputError, UcnError
from ucn.files import lock_output, write_bytes_atomically
from ucn.folders.image_pairs import ImagePair, name_outputs, order_by_images
from ucn.folders.pair_journal import PairJournal, PairRecord, make_folder, stamp_images
from ucn.geometry.verification import Verification, VerifySettings, verify_geometry
from ucn.matching.many import CACHE_BYTES, SharedFeatures
from ucn.matching.matcher import Matcher
from ucn.types import Features, ImageLike, Matches
from ucn.viz.matches import MAX_LINES, draw_matches

SUMMARY = "summary.csv"
"""The summary's file name in the folder of outputs."""
SUMMARY_COLUMNS = ("image0", "image1", "file", "matches", "inliers", "pair_score", "seconds", "error")
"""Header of the summary; one line per pair, in the order of the pairs."""

_DRAWING_SUFFIX = ".jpg"

Progress = Callable[[int, int], None]
"""Called with (pairs done, all pairs)."""


@dataclass(frozen=True)
class PairFileSettings:
    """What is written for each pair.

    Attributes:
        suffix: format of the files of matches, one of `MATCH_SUFFIXES`.
        verify: how matches are verified; None does not verify them.
        drawings: folder for a drawing of each pair, made if missing; None draws nothing.
        max_lines: largest number of matches that a drawing joins by lines.
        cache_bytes: memory for the features of images that may come again; those of the current pair are
            always kept.
    """

    suffix: str = ".npz"
    verify: VerifySettings | None = None
    drawings: Path | None = None
    max_lines: int = MAX_LINES
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        """Checks the suffix and the range."""
        if self.suffix not in MATCH_SUFFIXES:
            raise ConfigError(f"suffix must be one of {', '.join(MATCH_SUFFIXES)}, got '{self.suffix[:80]}'")
        if self.cache_bytes < 0:
            raise ConfigError(f"cache_bytes must be at least 0, got {self.cache_bytes}")


@dataclass(frozen=True)
class PairFilesResult:
    """The outcome of a run.

    Attributes:
        records: one per pair, in the order of the pairs.
        resumed: how many of them an earlier run had finished.
        encodings: how often an image was encoded.
    """

    records: tuple[PairRecord, ...]
    resumed: int
    encodings: int

    @property
    def failures(self) -> list[PairRecord]:
        """Records of the pairs that failed."""
        return [record for record in self.records if record.error]


@dataclass(frozen=True)
class _Target:
    """The outputs of a pair."""

    file: Path
    drawing: Path | None

    def is_written(self) -> bool:
        return self.file.is_file() and (self.drawing is None or self.drawing.is_file())


def match_pair_files(
    pairs: Sequence[ImagePair],
    folder: Path,
    matcher: Matcher,
    settings: PairFileSettings | None = None,
    *,
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PairFilesResult:
    """Matches pairs of image files and writes one file a pair, and `SUMMARY`.

    Pairs that an earlier run with the same weights and settings finished are skipped, unless one of their
    images has changed. Foreign files in the folder stay.

    Args:
        pairs: all different.
        folder: of the outputs; made if missing, but not its parent.
        matcher: matches images.
        settings: formats, verification and drawings; the defaults when None.
        meta: plain values on the run, stored in each file of matches.
        overwrite: match all pairs anew, and replace existing outputs.
        progress: called at the beginning, and after each pair.

    Raises:
        DataError: the folder holds matches of a run with other settings, or a pair comes twice.
        OutputError: a file cannot be written, exists already and is of no earlier run, or another run is
            writing into the folder.
    """
    settings = settings or PairFileSettings()
    targets = _choose_targets(pairs, folder, settings)
    key = {
        "weights": matcher.weights.sha256,
        "config": matcher.config.to_dict(),
        "verify": None if settings.verify is None else settings.verify.to_dict(),
        "suffix": settings.suffix,
    }
    outputs = [folder / SUMMARY, *(path for each in targets for path in (each.file, each.drawing) if path)]
    records: list[PairRecord | None] = [None] * len(pairs)
    work = _PairWork(matcher, settings, meta or {})
    make_folder(folder)
    with (
        lock_output(folder, is_folder=True),
        PairJournal(folder, key, outputs, start_over=overwrite) as journal,
    ):
        if settings.drawings is not None:
            make_folder(settings.drawings)
        for row, (pair, target) in enumerate(zip(pairs, targets, strict=True)):
            records[row] = journal.find(pair) if target.is_written() else None
        resumed = sum(record is not None for record in records)
        rows = [row for row in order_by_images([_image_keys(pair) for pair in pairs]) if records[row] is None]
        if progress is not None:
            progress(resumed, len(pairs))
        for count, row in enumerate(rows, 1):
            stamps = stamp_images(pairs[row])
            records[row] = record = work.match(pairs[row], targets[row])
            if not record.error and stamps is not None:
                journal.add(record, stamps)
            if progress is not None:
                progress(resumed + count, len(pairs))
        finished = tuple(record for record in records if record is not None)
        write_bytes_atomically(folder / SUMMARY, format_summary(finished).encode(), overwrite=True)
    return PairFilesResult(finished, resumed, work.encodings)


def format_summary(records: Sequence[PairRecord]) -> str:
    """Formats records as CSV: the header `SUMMARY_COLUMNS`, then a line per pair, empty where unknown."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SUMMARY_COLUMNS)
    for record in records:
        score = "" if record.pair_score is None else f"{record.pair_score:.4f}"
        counts = ("" if count is None else count for count in (record.matches, record.inliers))
        writer.writerow(
            [record.image0, record.image1, record.file, *counts, score, f"{record.seconds:.3f}", record.error]
        )
    return text.getvalue()


class _PairWork:
    """Matches one pair after another; keeps the features of recent images."""

    def __init__(self, matcher: Matcher, settings: PairFileSettings, meta: Mapping[str, Any]) -> None:
        self._matcher, self._settings, self._meta = matcher, settings, meta
        self._features = SharedFeatures(self._encode, settings.cache_bytes)
        self._unreadable: dict[Path, str] = {}
        self.encodings = 0

    def match(self, pair: ImagePair, target: _Target) -> PairRecord:
        """Matches a pair and writes its files; a failure is noted in the record."""
        begin = time.perf_counter()
        inliers = None
        try:
            features0, features1 = (
                self._extract(path, name) for path, name in zip(pair.paths, pair.names, strict=True)
            )
            matches = self._matcher.match_features(features0, features1)
            verification = None
            if self._settings.verify is not None:
                verification = verify_geometry(matches.points0, matches.points1, self._settings.verify)
                inliers = verification.inlier_count
            self._write(pair, target, matches, verification)
        except OutputError:
            raise  # a full disk concerns all pairs
        except (UcnError, MemoryError, torch.OutOfMemoryError) as error:
            return PairRecord(*pair.names, seconds=time.perf_counter() - begin, error=_explain(error, pair))
        seconds, score = time.perf_counter() - begin, float(matches.pair_score)
        return PairRecord(*pair.names, target.file.name, len(matches), inliers, score, seconds)

    def _extract(self, path: Path, name: str) -> Features:
        """The features of an image, encoded where they are not kept."""
        if path in self._unreadable:
            raise ImageReadError(self._unreadable[path])
        try:
            return self._features.get(path)
        except ImageReadError as error:
            reason = str(error).replace(str(path), name)
            self._unreadable[path] = reason if name in reason else f"{name}: {reason}"
            raise ImageReadError(self._unreadable[path]) from error

    def _encode(self, image: ImageLike) -> Features:
        self.encodings += 1
        return self._matcher.extract(image)

    def _write(
        self, pair: ImagePair, target: _Target, matches: Matches, verification: Verification | None
    ) -> None:
        """Writes the drawing, then the matches."""
        is_inlier = None if verification is None else verification.is_inlier
        meta: dict[str, Any] = {**self._meta, "image0": str(pair.paths[0]), "image1": str(pair.paths[1])}
        if verification is not None:
            meta["verification"] = verification.to_dict()
        if target.drawing is not None:
            low, lines = self._matcher.config.min_score, self._settings.max_lines
            pixels = draw_matches(*pair.paths, matches, is_inlier=is_inlier, min_score=low, max_lines=lines)
            write_image(target.drawing, pixels, overwrite=True)
        write_matches(target.file, matches, meta, pair.names, overwrite=True, is_inlier=is_inlier)


def _choose_targets(pairs: Sequence[ImagePair], folder: Path, settings: PairFileSettings) -> list[_Target]:
    """The outputs of all pairs; raises `OutputError` where a drawing would replace an image."""
    stems = name_outputs([pair.names for pair in pairs])
    drawings = settings.drawings
    targets = [
        _Target(
            folder / f"{stem}{settings.suffix}",
            None if drawings is None else drawings / f"{stem}{_DRAWING_SUFFIX}",
        )
        for stem in stems
    ]
    images = {os.path.realpath(path) for pair in pairs for path in pair.paths}
    for target in targets:
        if target.drawing is not None and os.path.realpath(target.drawing) in images:
            raise OutputError(f"cannot write {target.drawing}: it is one of the images; give another folder")
    return targets


def _image_keys(pair: ImagePair) -> tuple[str, str]:
    return str(pair.paths[0]), str(pair.paths[1])


def _explain(error: Exception, pair: ImagePair) -> str:
    """Why a pair failed, in one line."""
    if isinstance(error, UcnError):
        return " ".join(str(error).split())
    return f"not enough memory for {' and '.join(pair.names)}; reduce max_side"
