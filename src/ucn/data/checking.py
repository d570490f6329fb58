"""Is a data set whole? Every file is read once, and as many pairs as are asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ucn.data.pairs import DataFile, Fault, PairData
from ucn.errors import UcnError
from ucn.geometry.coords import is_inside
from ucn.types import PairSample

_WORKERS = 4  # decoding releases Python's lock


@dataclass(frozen=True)
class CheckReport:
    """What a check found.

    Attributes:
        pair_count: pairs of the set.
        file_counts: files by kind.
        read_count: pairs that were read.
        point_count: correspondences of those.
        empty_names: pairs, of those read, that have no correspondence at all; not a fault.
        faults: everything that is wrong.
        notes: what the reader left out by its own rules; not faults.
        bad_pairs: indices of pairs that cannot be used though each of their files is good.
    """

    pair_count: int
    file_counts: dict[str, int]
    read_count: int
    point_count: int
    empty_names: tuple[str, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    bad_pairs: frozenset[int] = frozenset()

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    @property
    def bad_files(self) -> frozenset[Path]:
        """The files that no pair can be made of; what is left out already does not count."""
        return _find_bad_files(self.faults)


def check_data(
    data: PairData, progress: Callable[[int, int], None] | None = None, max_pairs: int = 200
) -> CheckReport:
    """Reads every file of a data set once, then pairs spread evenly over it.

    Args:
        data: an opened data set; what its indexing found wrong is part of the report.
        progress: called with (done, all) after each file and pair.
        max_pairs: at most this many pairs are read; some sets have millions.
    """
    files = data.files()
    chosen = spread(len(data), max_pairs)
    total, done = len(files) + len(chosen), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    faults = list(data.faults)
    with ThreadPoolExecutor(_WORKERS) as pool:
        for found in pool.map(_check_file, files):
            faults += found
            advance()
    bad_files, bad_pairs = set(_find_bad_files(faults)), set()
    points, empty, read_count = 0, [], 0
    for index in chosen:
        if bad_files.isdisjoint(data.pair_files(index)):  # a bad file is named once, not once a pair
            sample, found = _check_pair(data, index)
            faults += found
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
        faults=tuple(dict.fromkeys(faults)),
        notes=tuple(data.notes),
        bad_pairs=frozenset(bad_pairs),
    )


def skip_bad(data: PairData, report: CheckReport) -> PairData:
    """The pairs of a data set that could be read and that no faulty file is part of."""
    good = data.without_pairs(report.bad_pairs) if report.bad_pairs else data
    return good.without(report.bad_files) if report.bad_files else good


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` of the numbers below `count`, evenly spaced, the first among them."""
    if count <= limit:
        return list(range(count))
    return [index * count // limit for index in range(limit)]


def to_fault(error: UcnError, path: Path) -> Fault:
    """A fault of a file from the error that reading it raised, without naming the file twice.

    Args:
        error: what was raised; where it names the file that is wrong, the fault is that file's.
        path: the file to blame otherwise.
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
        return Fault(path, message)
    line = int(found["line"]) if found["line"] else None
    return Fault(path, found["before"] + start + message[found.end() :], line)


def _find_bad_files(faults: Iterable[Fault]) -> frozenset[Path]:
    return frozenset(fault.path for fault in faults if not fault.is_left_out)


def _check_file(file: DataFile) -> list[Fault]:
    try:
        file.check()
    except UcnError as error:
        return [to_fault(error, file.path)]
    return []


def _check_pair(data: PairData, index: int) -> tuple[PairSample | None, list[Fault]]:
    # The pair's own file is its last: the images come first, what says how they correspond follows. Other
    # pairs may have it too, so that it counts as bad only where the error says that it is the wrong one.
    path = data.pair_files(index)[-1]
    try:
        sample = data.read(index)
    except UcnError as error:
        return None, [replace(to_fault(error, path), is_left_out=error.path is None)]
    sizes = [(image.shape[-2], image.shape[-1]) for image in (sample.image0, sample.image1)]
    views = (sample.points0, sample.points1)
    outside = [int((~is_inside(points, size)).sum()) for points, size in zip(views, sizes, strict=True)]
    if any(outside):
        words = f"{outside[0]} points of image 0 and {outside[1]} of image 1 lie outside it"
        message = f"pair {sample.name}: {words}; correct or remove them"
        return sample, [Fault(path, message, is_left_out=True)]
    return sample, []
