"""Files of images and videos, in natural order: ``img2.png`` before ``img10.png``."""

from __future__ import annotations

import re
from pathlib import Path

from ucn.data.io import IMAGE_SUFFIXES
from ucn.errors import DataError
from ucn.files.reading import explain_failure

VIDEO_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg"),
    *(".wmv", ".ogv", ".mts", ".m2ts", ".3gp", ".flv"),
)
"""Suffixes of video files."""


def natural_key(name: str) -> tuple[str, str]:
    """Sort key of natural order: numbers in names count by value, everything else as in a plain sort.

    Names whose numbers have equally many digits keep the order of a plain sort.
    """

    def grow(run: re.Match[str]) -> str:
        digits = run[0].lstrip("0")
        return f"{len(digits):04}{digits}"  # more digits, a larger number

    return re.sub("[0-9]+", grow, name), name


def list_images(folder: Path, *, is_recursive: bool = False) -> list[str]:
    """Lists the images of a folder, in natural order.

    Hidden files and folders are left out.

    Args:
        folder: where to look.
        is_recursive: look in the folders below it, too.

    Returns:
        Paths relative to the folder, with / between folders; empty where it holds no image.

    Raises:
        DataError: the folder cannot be listed.
    """
    found = []
    try:
        for path in folder.rglob("*") if is_recursive else folder.iterdir():
            relative = path.relative_to(folder)
            if any(part.startswith(".") for part in relative.parts):
                continue
            if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                found.append(relative.as_posix())
    except OSError as error:
        raise DataError(f"cannot list {folder}: {explain_failure(error)}; check the path") from error
    return sorted(found, key=natural_key)
