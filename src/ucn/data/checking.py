"""Checks whether a data set is complete: reads every file once, and pairs spread over the set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ucn.data.pairs import DataFile, PairData, Problem
from ucn.errors import UcnError
from ucn.geometry.coords import is_inside
from ucn.types import PairSample

_WORKERS = 4  # decoding releases Python's lock


@dataclass(frozen=True)
class CheckReport:
    """The result of `check_data`.

    Attributes:
        pair_count: number of pairs in the set.
        file_counts: number of files by kind.
        read_count: number of pairs that were read.
        point_count: number of correspondences in these.
        empty_names: names of pairs among these without any correspondence; not a problem.
        problems: all errors found.
        notes: what the reader excludes by its own rules; not problems.
        bad_pairs: indices of pairs that cannot be used although each of their files is good.
    """

    pair_count: int
    file_counts: dict[str, int]
    read_count: int
    point_count: int
    empty_names: tuple[str, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    bad_pairs: frozenset[int] = frozenset()

    @property
    def is_good(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def bad_files(self) -> frozenset[Path]:
        """Files that no pair can use; problems of entries that are already excluded do not count."""
        return _find_bad_files(self.problems)


def check_data(
    data: PairData, progress: Callable[[int, int], None] | None = None, max_pairs: int = 200
) -> CheckReport:
    """Reads every file of a data set once, then pairs evenly spaced over it.

    Args:
        data: an opened data set; the problems that its indexing found are part of the report.
        progress: called with (done, total) after each file and pair.
        max_pairs: the most pairs to read; some sets have millions.
    """
    files = data.files()
    chosen = spread(len(data), max_pairs)
    total, done = len(files) + len(chosen), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    problems = list(data.problems)
    with ThreadPoolExecutor(_WORKERS) as pool:
        for found in pool.map(_check_file, files):
            problems += found
            advance()
    bad_files, bad_pairs = set(_find_bad_files(problems)), set()
    points, empty, read_count = 0, [], 0
    for index in chosen:
        if bad_files.isdisjoint(data.pair_files(index)):  # a bad file is reported once, not once per pair
            sample, found = _check_pair(data, index)
            problems += found
            bad_files |= _find_bad_files(found)
            if found and bad_files.isdisjoint(data.pair_files(index)):
                bad_pairs.add(index)
            if sample is not None:
                read_count += 1
                points += len(sample)
                empty += [] if len(sample) else [sample.name]
        advance()
    return CheckReport(
        pair_count=len(data),
        file_counts=dict(sorted(Counter(file.kind for file in files).items())),
        read_count=read_count,
        point_count=points,
        empty_names=tuple(empty),
        problems=tuple(dict.fromkeys(problems)),
        notes=tuple(data.notes),
        bad_pairs=frozenset(bad_pairs),
    )


def skip_bad(data: PairData, report: CheckReport) -> PairData:
    """The pairs of a data set that were not found faulty and use no faulty file."""
    good = data.without_pairs(report.bad_pairs) if report.bad_pairs else data
    return good.without(report.bad_files) if report.bad_files else good


def spread(count: int, limit: int) -> list[int]:
    """Returns at most `limit` evenly spaced indices below `count`, beginning with 0."""
    if count <= limit:
        return list(range(count))
    return [index * count // limit for index in range(limit)]


def to_problem(error: UcnError, path: Path) -> Problem:
    """Converts an error of reading a file to a problem whose message does not repeat the path.

    Args:
        error: the error; its `path`, where set, is the faulty file.
        path: the faulty file otherwise.
    """
    path = error.path or path
    name, message = re.escape(str(path)), str(error)
    if found := re.match(rf"(?P<before>){name}(?::(?P<line>\d+))?: ", message):
        start = ""
    elif found := re.match(rf"(?P<before>){name}(?P<line>) ", message):
        start = "it "
    elif found := re.search(rf"^(?P<before>cannot read [^:]*?) {name}(?::(?P<line>\d+))?: ", message):
        start = ": "
    elif found := re.match(rf"(?P<before>cannot read ){name}(?P<line>) ", message):
        start = "it "
    else:
        return Problem(path, message)
    line = int(found["line"]) if found["line"] else None
    return Problem(path, found["before"] + start + message[found.end() :], line)


def _find_bad_files(problems: Iterable[Problem]) -> frozenset[Path]:
    return frozenset(problem.path for problem in problems if not problem.is_excluded)


def _check_file(file: DataFile) -> list[Problem]:
    try:
        file.check()
    except UcnError as error:
        return [to_problem(error, file.path)]
    return []


def _check_pair(data: PairData, index: int) -> tuple[PairSample | None, list[Problem]]:
    # The last file of a pair is its ground truth. Other pairs may share it, so that it counts as bad only
    # where the error names it.
    path = data.pair_files(index)[-1]
    try:
        sample = data.read(index)
    except UcnError as error:
        return None, [replace(to_problem(error, path), is_excluded=error.path is None)]
    sizes = [(image.shape[-2], image.shape[-1]) for image in (sample.image0, sample.image1)]
    views = (sample.points0, sample.points1)
    outside = [int((~is_inside(points, size)).sum()) for points, size in zip(views, sizes, strict=True)]
    if any(outside):
        words = f"{outside[0]} points of image 0 and {outside[1]} of image 1 lie outside"
        message = f"pair {sample.name}: {words}; correct or remove them"
        return sample, [Problem(path, message, is_excluded=True)]
    return sample, []
