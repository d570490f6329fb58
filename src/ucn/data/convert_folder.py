"""The folder that a conversion writes, under a temporary name until it is complete, and its images."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

import ucn
from ucn.data.catalogue import list_data
from ucn.data.io import read_image, to_pixels, write_image
from ucn.errors import ImageReadError, OutputError
from ucn.files import (
    clean_up,
    exists_error,
    explain_failure,
    find_real_path,
    hash_file,
    lock_output,
    scratch_folder,
    write_bytes_atomically,
)

FORMAT = "ucn own data 1"
"""The value of ``format`` in ``source.json``; only folders with it are ever replaced."""

_MAX_SOURCE_BYTES = 2**20
# Not allowed in file names on some systems, or special in a list of paths.
_ODD_LETTERS = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|,;]')


@contextmanager
def new_folder(output: str | Path, root: Path, overwrite: bool) -> Iterator[Path]:
    """Yields a temporary folder, and renames it when it is complete.

    Args:
        output: the folder to write.
        root: the data set to convert.
        overwrite: replace a folder that an earlier conversion wrote.

    Raises:
        OutputError: the folder exists or cannot be written; nothing is left behind.
    """
    place = _check_folder(Path(output), root, overwrite)
    try:
        with lock_output(place), scratch_folder(place) as work:
            part = work / "new"
            part.mkdir()
            yield part
            _seal(part)
            _move(part, place, overwrite)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {output}: {explain_failure(error)}") from error


def write_record(folder: Path, source: str, split: str | None, values: Mapping[str, Any]) -> None:
    """Writes ``source.json``, which says where a folder comes from.

    Args:
        folder: the new folder.
        source: name of the data set.
        split: its split; None is its default.
        values: settings and counts.
    """
    record: dict[str, Any] = {"format": FORMAT, "ucn": ucn.__version__, "set": source}
    record |= {"split": split or _find_split(source), **values}
    write_text(folder / "source.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _find_split(source: str) -> str | None:
    """The default split of a data set of the catalogue."""
    names = [info.splits[0] for info in list_data() if info.name == source]
    return names[0] if names else None


def _seal(folder: Path) -> None:
    """Adds the hash of all files to ``source.json``: what was changed since is not only ours any more."""
    path = folder / "source.json"
    if path.is_file():
        record = {**json.loads(path.read_bytes()), "files": _digest_files(folder)}
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        write_bytes_atomically(path, text.encode("utf-8"), overwrite=True)


def _digest_files(folder: Path) -> str:
    """A hash of the names of all files but ``source.json``, of the sizes of images, and of other contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            content: str | int = "of others"
        elif path.is_dir():
            continue
        else:
            content = path.stat().st_size if name.startswith("images/") else hash_file(path)
        if name != "source.json":
            digest.update(json.dumps([name, content]).encode())
    return digest.hexdigest()


class ImageWriter:
    """Writes images into a new folder, each once.

    Attributes:
        copied_count: files copied byte for byte; the others were written as PNG.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        """Writes nothing yet.

        Args:
            folder: the new folder.
            root: the data set, whose folders the names keep.
        """
        self._folder, self._root = folder, root
        self._names: dict[tuple[Path, bytes], str] = {}
        self._taken: set[str] = set()
        self.copied_count = 0

    def __len__(self) -> int:
        return len(self._names)

    def write(self, path: Path, image: Tensor) -> str:
        """The name of an image in the folder; a new image is written."""
        # One file may give several images: a reader may crop one object after another.
        key = (path, hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=16).digest())
        if key not in self._names:
            is_copy = _is_file_of(path, image)
            name = self._free_name(path, path.suffix if is_copy else ".png")
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if is_copy:
                shutil.copyfile(path, target)
            else:
                write_image(target, to_pixels(image))
            self.copied_count += is_copy
            self._names[key] = name
        return self._names[key]

    def _free_name(self, path: Path, suffix: str) -> str:
        """A readable name that no other image has, also where file names ignore case."""
        root = self._root
        inner = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        *folders, last = (part for part in inner.parts if part != "..")
        parts = [*map(_clean, folders), _clean_file(last)]
        if parts[:1] == ["images"] and len(parts) > 1:
            parts = parts[1:]
        stem = PurePosixPath("images", *parts)
        stem = stem.with_suffix("") if stem.suffix == path.suffix and path.suffix else stem
        name, number = f"{stem}{suffix}", 1
        while name.casefold() in self._taken:
            number += 1
            name = f"{stem}_{number}{suffix}"
        self._taken.add(name.casefold())
        return name


class PartTable:
    """The object parts of all samples in one table; tables of several classes are appended."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._mirror: list[int] = []
        self._places: dict[tuple[tuple[int, ...], tuple[str, ...]], int] = {}

    def place(self, mirror: tuple[int, ...], names: tuple[str, ...], category: str) -> int:
        """The row at which the parts of a class begin.

        Args:
            mirror: the part that each part becomes in a mirrored image.
            names: names of the parts; unused unless each part has one.
            category: the class, a prefix of names that another class has already.
        """
        if (mirror, names) not in self._places:
            first = self._places[mirror, names] = len(self.names)
            unique = [f"{category} {name}" if name in self.names else name for name in names]
            if len(set(unique) - set(self.names)) != len(mirror):
                unique = [f"part_{number}" for number in range(first, first + len(mirror))]
            self.names += unique
            self._mirror += [first + other for other in mirror]
        return self._places[mirror, names]

    def rows(self) -> list[list[str]]:
        """The name of each part, and of the part that it becomes in a mirrored image."""
        return [[name, self.names[other]] for name, other in zip(self.names, self._mirror, strict=True)]


def _is_file_of(path: Path, image: Tensor) -> bool:
    """Whether reading a file gives exactly this image."""
    if not path.is_file():
        return False
    try:
        return torch.equal(read_image(path), image)
    except ImageReadError:  # a reader with a decoder of its own
        return False


def _clean(part: str) -> str:
    """Makes one component of a path legal on all systems and in a line of CSV."""
    return _ODD_LETTERS.sub("_", part.encode("utf-8", "replace").decode("utf-8")).strip(" .")[:120] or "_"


def _clean_file(name: str) -> str:
    """The same for a file name; the suffix is kept where the name is too long."""
    stem, dot, suffix = name.rpartition(".")
    return f"{_clean(stem)[:100]}{dot}{_clean(suffix)[:20]}" if stem.strip(" .") else _clean(name)


def format_csv(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8."""
    write_bytes_atomically(path, text.encode("utf-8"))


def _check_folder(output: Path, root: Path, overwrite: bool) -> Path:
    """The resolved path of the folder to write, checked before the work."""
    try:
        if output.is_symlink():
            raise OutputError(f"cannot write {output}: it is a link; give the name of a folder")
        place = find_real_path(output)
        clean_up(place)
        if not place.parent.is_dir() or not place.name:
            raise OutputError(f"cannot write {output}: {place.parent} is not a folder; create it first")
        if place.exists() or place.is_symlink():
            if not place.is_dir():
                raise OutputError(f"cannot write {output}: it is a file; give the name of a folder")
            if not overwrite:
                raise exists_error(output)
            if not _is_ours(place):
                raise OutputError(
                    f"{output} was kept: it is not empty, and no source.json shows that a conversion wrote "
                    "all that it holds; use a new name"
                )
            if find_real_path(root).is_relative_to(place):
                raise OutputError(f"{output} was kept: the data set to convert lies in it; use a new name")
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {output}: {explain_failure(error)}") from error
    return place


def _is_ours(folder: Path) -> bool:
    """Whether a folder is empty, or as a conversion wrote it."""
    path = folder / "source.json"
    if path.is_symlink() or not path.is_file():
        return next(folder.iterdir(), None) is None
    if path.stat().st_size > _MAX_SOURCE_BYTES:
        return False
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return False
    return bool(record.get("files") == _digest_files(folder))


def _move(part: Path, place: Path, overwrite: bool) -> None:
    """Renames the complete folder; an old one is moved beside it, to be deleted."""
    if not place.exists():
        part.rename(place)
        return
    if not overwrite or not _is_ours(place):
        raise OutputError(f"{place} appeared meanwhile and was kept; use a new name")
    old = part.with_name("old")
    place.rename(old)
    try:
        part.rename(place)
    except OSError:
        old.rename(place)
        raise
