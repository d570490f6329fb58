"""Folders and text files of strangers: found, kept inside their root, read with file and line in errors."""

from __future__ import annotations

import math
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ucn.data.headers import IMAGE_SUFFIXES as IMAGE_SUFFIXES
from ucn.errors import DataError

MAX_TEXT_BYTES = 256 * 2**20
"""Larger text files are refused unread."""
MAX_BINARY_BYTES = 2**30
"""Larger binary files (flow, scans, .mat) are refused unread."""


def find_root(folder: Path, markers: Sequence[str], inside: Sequence[str] = ()) -> Path:
    """The folder that holds a data set: the given one, or an official sub-folder of it.

    Args:
        folder: what the user gave.
        markers: paths (or glob patterns) of which at least one must exist in the right folder.
        inside: names of sub-folders to try, such as ``CUB_200_2011``.

    Raises:
        DataError: not a folder (archives are named as such), or no marker is in it.
    """
    check_folder(folder, "the folder of the data set")
    for candidate in (folder, *(folder / name for name in inside)):
        if any(next(candidate.glob(marker), None) is not None for marker in markers):
            return candidate
    expected = " or ".join(markers)
    also = f" or in its {', '.join(inside)}" if inside else ""
    raise DataError(
        f"{folder} does not have the expected layout: no {expected} in it{also}; `ucn data list NAME` shows "
        "what belongs where"
    )


def check_folder(folder: Path, expected: str) -> None:
    """Raises `DataError` where a folder is missing, an archive or another file; says what was expected."""
    if not folder.exists():
        raise DataError(f"no folder {folder}: check the path")
    if not folder.is_dir():
        if folder.is_file() and (zipfile.is_zipfile(folder) or tarfile.is_tarfile(folder)):
            raise DataError(f"{folder} is an archive; unpack it and give the folder")
        raise DataError(f"{folder} is a file; expected {expected}")


def resolve_inside(root: Path, name: str) -> Path:
    """The path of a file that a list names, relative to a root that it must not leave.

    Raises:
        DataError: the name is absolute, has a ``..``, or is empty.
    """
    parts = PurePosixPath(name.replace("\\", "/"))
    if (
        not name.strip()
        or "\0" in name
        or parts.is_absolute()
        or ".." in parts.parts
        or not parts.parts
        or ":" in parts.parts[0]
    ):
        raise DataError(f"expected a path inside {root}, got {name[:80]!r}; correct the list")
    return root.joinpath(*parts.parts)


def find_image(stem: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> Path | None:
    """The image file of a path given without its suffix; None where there is none.

    Repacked data sets often hold JPEG for PNG or PPM, so that all suffixes are tried in order.
    """
    for suffix in suffixes:
        path = stem.with_name(stem.name + suffix)
        if path.is_file():
            return path
    return None


def read_binary(path: Path, what: str, limit: int = MAX_BINARY_BYTES) -> bytes:
    """All bytes of a regular file within a size limit; raises `DataError` saying why not."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would wait for ever, a device might never end
            expected = "it is not a regular file; put the file itself in its place"
            raise DataError(f"cannot read {what} {path}: {expected}", path=path)
        if status.st_size > limit:
            size = f"{path} has {status.st_size:,} bytes, the limit for {what} is {limit:,}"
            raise DataError(f"{size}; check that it is the right file", path=path)
        return path.read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))
        message = f"cannot read {what} {path}: {reason.lower()}; check the path and its rights"
        raise DataError(message, path=path) from error


def read_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Lines of a text file with their numbers from 1, stripped, blank ones left out.

    Raises:
        DataError: the file is missing, too large, or not UTF-8.
    """
    try:
        text = read_binary(path, what, MAX_TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"cannot read {what} {path}: it is not UTF-8 text; save it as UTF-8"
        raise DataError(message, path=path) from error
    # Unlike `str.splitlines`, which also splits at U+2028 and its like: a line of JSON may hold these.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def is_number(text: str) -> bool:
    """Whether text is a number as files have it, NaN and infinity among them."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_0 as 10


def parse_numbers(text: str, count: int | None, where: str) -> list[float]:
    """Finite numbers separated by blanks or commas.

    Args:
        text: one line.
        count: how many are expected; None takes any.
        where: file and line, for errors.

    Raises:
        DataError: not that many, or one is not a finite number.
    """
    cells = text.replace(",", " ").split()
    if count is not None and len(cells) != count:
        raise DataError(f"{where}: expected {count} numbers, got {len(cells)}: {text[:60]!r}; correct it")
    numbers = []
    for cell in cells:
        if not is_number(cell):
            raise DataError(f"{where}: expected a number, got {cell[:40]!r}; correct it")
        value = float(cell)
        if not math.isfinite(value):
            raise DataError(f"{where}: expected a finite number, got {cell[:40]!r}; correct it")
        numbers.append(value)
    return numbers
