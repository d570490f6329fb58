"""Converts any data set to a folder of your own data, to inspect, correct, mix or share it.

The folder is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ucn.data.catalogue import Option
from ucn.data.checking import spread
from ucn.data.convert_folder import ImageWriter, PartTable, format_csv, new_folder, write_record, write_text
from ucn.data.pairs import PairData
from ucn.errors import DataError
from ucn.types import PairSample


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
    chosen = spread(len(data), len(data) if max_pairs is None else max_pairs)
    if not chosen:
        raise DataError(f"{data.root} has no pairs to convert")
    choice = {"max_pairs": max_pairs, "max_points": max_points, "seed": seed}
    with new_folder(output, data.root, overwrite) as part:
        summary = _write_pairs(_Writer(part, data), data, chosen, max_points, seed, progress)
        values = {"options": dict(options or {}), **choice, **asdict(summary)}
        write_record(part, source, split, values)
    return summary


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
        self._images = ImageWriter(folder, data.root)
        self._rows: list[dict[str, str]] = []
        self._point_count = 0
        self._parts = PartTable()
        (folder / "points").mkdir()

    def add(self, index: int, sample: PairSample) -> None:
        """Writes the points of a pair, and its images where they are not written yet."""
        path0, path1 = self._data.image_paths(index)
        points = f"points/{len(self._rows):06d}.csv"
        write_text(self._folder / points, self._format_points(index, sample))
        self._rows.append(
            {
                "image0": self._images.write(path0, sample.image0),
                "image1": self._images.write(path1, sample.image1),
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
        write_text(self._folder / "pairs.csv", format_csv(columns, rows))
        if self._parts.names:
            write_text(self._folder / "parts.csv", format_csv(["name", "mirror"], self._parts.rows()))
        return ConvertSummary(
            len(self._rows), len(self._images), self._images.copied_count, self._point_count
        )

    def _format_points(self, index: int, sample: PairSample) -> str:
        coordinates = torch.cat([sample.points0, sample.points1], dim=1).float().cpu().numpy()
        rows = coordinates.astype(str).tolist()  # the fewest digits that give the same float32
        columns = ["x0", "y0", "x1", "y1"]
        if sample.parts is None or sample.mirror_parts is None:
            return format_csv(columns, rows)
        names, category = self._data.pair_part_names(index), self._data.pair_class(index)
        first = self._parts.place(tuple(sample.mirror_parts.tolist()), tuple(names), category)
        parts = [self._parts.names[first + part] for part in sample.parts.tolist()]
        return format_csv([*columns, "part"], [[*row, part] for row, part in zip(rows, parts, strict=True)])
