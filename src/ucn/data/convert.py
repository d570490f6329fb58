"""Converts any data set to a folder of your own data, to inspect, correct, mix or share it.

The folder is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

import ucn
from ucn.data.catalogue import Option, list_data
from ucn.data.checking import spread
from ucn.data.io import read_image, to_pixels, write_image
from ucn.data.pairs import PairData
from ucn.errors import DataError, ImageReadError, OutputError
from ucn.files import exists_error, explain_failure, write_bytes_atomically
from ucn.types import PairSample

FORMAT = "ucn own data 1"
"""The value of ``format`` in ``source.json``; only folders with it are ever replaced."""

_MAX_SOURCE_BYTES = 2**20
# Not allowed in file names on some systems, or special in a list of paths.
_ODD_LETTERS = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|,;]')


@dataclass(frozen=True)
class ConvertSummary:
    """What `convert_pairs` wrote.

    Attributes:
        pair_count: number of pairs.
        image_count: number of image files; pairs share images.
        copied_count: image files copied byte for byte from the source; the others were written as PNG, since
            the source crops, decodes or renders them.
        point_count: number of correspondences.
    """

    pair_count: int
    image_count: int
    copied_count: int
    point_count: int


def convert_pairs(
    data: PairData,
    output: str | Path,
    *,
    source: str = "",
    split: str | None = None,
    options: Mapping[str, Option] | None = None,
    max_pairs: int | None = None,
    max_points: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertSummary:
    """Writes a data set as a folder that the reader `own` reads: images, pairs.csv, points and parts.

    Reading it back gives bit-identical points, and bit-identical images except for those with more than 8
    bits that cannot be copied.

    Args:
        data: the pairs.
        output: the folder to write.
        source: name of the data set, recorded in ``source.json``.
        split: its split, recorded likewise.
        options: options of its reader, recorded likewise.
        max_pairs: the most pairs, evenly spaced; None converts all.
        max_points: the most points of a pair, sampled at random; None keeps all.
        seed: random seed of that sample.
        overwrite: replace a folder that an earlier conversion wrote.
        progress: called with (done, total) after each pair.

    Raises:
        OutputError: the folder exists or cannot be written; nothing is left behind.
        UcnError: a pair cannot be read, or there is none.
    """
    place = _check_folder(Path(output), data.root, overwrite)
    part = place.with_name(f".ucn-{secrets.token_hex(6)}.part")
    chosen = spread(len(data), len(data) if max_pairs is None else max_pairs)
    if not chosen:
        raise DataError(f"{data.root} has no pairs to convert")
    choice = {"max_pairs": max_pairs, "max_points": max_points, "seed": seed}
    record: dict[str, Any] = {"format": FORMAT, "ucn": ucn.__version__, "set": source}
    record |= {"split": split or _find_split(source), "options": dict(options or {})} | choice
    try:
        part.mkdir()
        summary = _write_pairs(_Writer(part, data), data, chosen, max_points, seed, progress)
        record |= asdict(summary)
        _write_text(part / "source.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        _move(part, place, overwrite)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {output}: {explain_failure(error)}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return summary


def _find_split(source: str) -> str | None:
    """The default split of a data set of the catalogue."""
    names = [info.splits[0] for info in list_data() if info.name == source]
    return names[0] if names else None


def _write_pairs(
    writer: _Writer,
    data: PairData,
    chosen: Sequence[int],
    max_points: int | None,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> ConvertSummary:
    generator = torch.Generator().manual_seed(seed)
    for done, index in enumerate(chosen, start=1):
        sample = data.read(index)
        if max_points is not None and len(sample) > max_points:
            rows = torch.randperm(len(sample), generator=generator)[:max_points]
            sample = sample.select(rows.sort().values)
        writer.add(index, sample)
        if progress is not None:
            progress(done, len(chosen))
    return writer.finish()


class _Writer:
    """Writes pairs one by one into a new folder."""

    def __init__(self, folder: Path, data: PairData) -> None:
        self._folder, self._data = folder, data
        self._names: dict[tuple[Path, bytes], str] = {}
        self._taken: set[str] = set()
        self._rows: list[dict[str, str]] = []
        self._copied_count = self._point_count = 0
        self._parts = _PartTable()
        (folder / "points").mkdir()

    def add(self, index: int, sample: PairSample) -> None:
        """Writes the points of a pair, and its images where they are not written yet."""
        path0, path1 = self._data.image_paths(index)
        points = f"points/{len(self._rows):06d}.csv"
        _write_text(self._folder / points, self._format_points(index, sample))
        self._rows.append(
            {
                "image0": self._write_image(path0, sample.image0),
                "image1": self._write_image(path1, sample.image1),
                "points": points,
                "pck_length": "" if sample.pck_length is None else repr(float(sample.pck_length)),
                "class": self._data.pair_class(index),
                "split": self._data.pair_split(index),
            }
        )
        self._point_count += len(sample)

    def finish(self) -> ConvertSummary:
        """Writes pairs.csv and parts.csv."""
        columns = ["image0", "image1", "points"]
        columns += [name for name in ("pck_length", "class", "split") if any(row[name] for row in self._rows)]
        rows = [[row[name] for name in columns] for row in self._rows]
        _write_text(self._folder / "pairs.csv", _format_csv(columns, rows))
        if self._parts.names:
            _write_text(self._folder / "parts.csv", _format_csv(["name", "mirror"], self._parts.rows()))
        return ConvertSummary(len(self._rows), len(self._names), self._copied_count, self._point_count)

    def _format_points(self, index: int, sample: PairSample) -> str:
        coordinates = torch.cat([sample.points0, sample.points1], dim=1).float().cpu().numpy()
        rows = coordinates.astype(str).tolist()  # the fewest digits that give the same float32
        columns = ["x0", "y0", "x1", "y1"]
        if sample.parts is None or sample.mirror_parts is None:
            return _format_csv(columns, rows)
        names, category = self._data.pair_part_names(index), self._data.pair_class(index)
        first = self._parts.place(tuple(sample.mirror_parts.tolist()), tuple(names), category)
        parts = [self._parts.names[first + part] for part in sample.parts.tolist()]
        return _format_csv([*columns, "part"], [[*row, part] for row, part in zip(rows, parts, strict=True)])

    def _write_image(self, path: Path, image: Tensor) -> str:
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
            self._copied_count += is_copy
            self._names[key] = name
        return self._names[key]

    def _free_name(self, path: Path, suffix: str) -> str:
        """A readable name that no other image has, also where file names ignore case."""
        root = self._data.root
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


class _PartTable:
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


def _format_csv(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _write_text(path: Path, text: str) -> None:
    write_bytes_atomically(path, text.encode("utf-8"))


def _check_folder(output: Path, root: Path, overwrite: bool) -> Path:
    """The resolved path of the folder to write, checked before the work."""
    try:
        place = output.resolve()
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
                    "it; use a new name"
                )
            if root.resolve().is_relative_to(place):
                raise OutputError(f"{output} was kept: the data set to convert lies in it; use a new name")
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {output}: {explain_failure(error)}") from error
    return place


def _is_ours(folder: Path) -> bool:
    """Whether a folder is empty, or was written by a conversion."""
    path = folder / "source.json"
    if not path.is_file():
        return next(folder.iterdir(), None) is None
    if path.stat().st_size > _MAX_SOURCE_BYTES:
        return False
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("format") == FORMAT


def _move(part: Path, place: Path, overwrite: bool) -> None:
    """Renames the complete folder; an old one is deleted only after that."""
    if not place.exists():
        part.rename(place)
        return
    if not overwrite or not _is_ours(place):
        raise OutputError(f"{place} appeared meanwhile and was kept; use a new name")
    old = part.with_suffix(".old")
    place.rename(old)
    try:
        part.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)
