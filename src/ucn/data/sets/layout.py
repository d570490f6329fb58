"""Finds the folders and files of a data set, and keeps listed paths inside its root."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ucn.data.io import IMAGE_SUFFIXES
from ucn.errors import DataError


def find_root(folder: Path, markers: Sequence[str], inside: Sequence[str] = ()) -> Path:
    """Finds the folder that holds a data set: the given one, or an official sub-folder of it.

    Args:
        folder: the folder that the user gave.
        markers: paths or glob patterns, at least one of which must exist in the right folder.
        inside: names of sub-folders to try, such as ``CUB_200_2011``.

    Raises:
        DataError: not a folder, or no marker is in it.
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
    """Raises `DataError` where a path is no folder: missing, an archive, or another file."""
    if not folder.exists():
        raise DataError(f"no folder {folder}: check the path")
    if not folder.is_dir():
        if folder.is_file() and (zipfile.is_zipfile(folder) or tarfile.is_tarfile(folder)):
            raise DataError(f"{folder} is an archive; unpack it and give the folder")
        raise DataError(f"{folder} is a file; expected {expected}")


def resolve_inside(root: Path, name: str) -> Path:
    """Resolves a path from a list, relative to a root that it must not leave.

    Raises:
        DataError: the name is absolute, contains ``..``, or is empty.
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
    """The image file with a path given without suffix; None where there is none.

    All suffixes are tried in order, since repacked data sets often hold JPEG in place of PNG or PPM.
    """
    for suffix in suffixes:
        path = stem.with_name(stem.name + suffix)
        if path.is_file():
            return path
    return None


def list_numbered(folder: Path, pattern: str) -> dict[int, Path]:
    """Files by the number in their name, sorted; empty where the folder is missing.

    Args:
        folder: the folder.
        pattern: a regular expression for whole names, whose first group is the number.
    """
    if not folder.is_dir():
        return {}
    found = (re.fullmatch(pattern, name) for name in sorted(path.name for path in folder.iterdir()))
    return {int(match[1]): folder / match[0] for match in found if match}
