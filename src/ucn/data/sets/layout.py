"""Folders and text files of strangers: found, kept inside their root, read with file and line in errors."""

from __future__ import annotations

import math
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ucn.errors import DataError

MAX_TEXT_BYTES = 256 * 2**20
"""Larger text files are refused unread."""
MAX_BINARY_BYTES = 2**30
"""Larger binary files (flow, scans, .mat) are refused unread."""
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm", ".webp", ".bmp", ".tif", ".tiff")
"""Suffixes that `find_image` tries, in order: repacked data sets often hold JPEG for PNG or PPM."""


def find_root(folder: Path, markers: Sequence[str], inside: Sequence[str] = ()) -> Path:
    """The folder that holds a data set: the given one, or an official sub-folder of it.

    Args:
        folder: what the user gave.
        markers: paths (or glob patterns) of which at least one must exist in the right folder.
        inside: names of sub-folders to try, such as ``CUB_200_2011``.

    Raises:
        DataError: not a folder (archives are named as such), or no marker is in it.
    """
    if not folder.exists():
        raise DataError(f"no folder {folder}: check the path")
    if not folder.is_dir():
        if zipfile.is_zipfile(folder) or tarfile.is_tarfile(folder):
            raise DataError(f"{folder} is an archive; unpack it and give the folder")
        raise DataError(f"{folder} is a file; expected the folder of the data set")
    for candidate in (folder, *(folder / name for name in inside)):
        if any(next(candidate.glob(marker), None) is not None for marker in markers):
            return candidate
    expected = " or ".join(markers)
    also = f" or in its {', '.join(inside)}" if inside else ""
    raise DataError(f"{folder} does not have the expected layout: no {expected} in it{also}")


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
        raise DataError(f"expected a path inside {root}, got {name[:80]!r}")
    return root.joinpath(*parts.parts)


def find_image(stem: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> Path | None:
    """The image file of a path given without its suffix; None where there is none."""
    for suffix in suffixes:
        path = stem.with_name(stem.name + suffix)
        if path.is_file():
            return path
    return None


def read_binary(path: Path, what: str, limit: int = MAX_BINARY_BYTES) -> bytes:
    """All bytes of a file within a size limit; raises `DataError` saying why not."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise DataError(f"{path} has {size:,} bytes, the limit for {what} is {limit:,}")
        return path.read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))
        raise DataError(f"cannot read {what} {path}: {reason.lower()}") from error


def read_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Lines of a text file with their numbers from 1, stripped, blank ones left out.

    Raises:
        DataError: the file is missing, too large, or not UTF-8.
    """
    try:
        text = read_binary(path, what, MAX_TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {what} {path}: it is not UTF-8 text; save it as UTF-8") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, line.strip()


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
        raise DataError(f"{where}: expected {count} numbers, got {len(cells)}: {text[:60]!r}")
    numbers = []
    for cell in cells:
        try:
            value = float(cell)
        except ValueError:
            raise DataError(f"{where}: expected a number, got {cell[:40]!r}") from None
        if not math.isfinite(value):
            raise DataError(f"{where}: expected a finite number, got {cell[:40]!r}")
        numbers.append(value)
    return numbers
