"""Text files by which a user chooses images of a set, or pairs of them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ucn.data.pairs import Fault
from ucn.data.sets.layout import IMAGE_SUFFIXES, read_lines, resolve_inside
from ucn.data.sets.semantic.keypoint_pairs import shorten
from ucn.data.sets.semantic.parts import Example
from ucn.errors import DataError

OUTSIDE_SPLIT = -1
"""Row of an image that the set has, but not the split."""


@dataclass
class ImageList:
    """What a list chooses.

    Attributes:
        rows: of single images; empty where the list names pairs.
        pairs: rows of pairs; None where it names single images.
        faults: lines that are wrong.
        notes: what was left out since it is not of the split.
    """

    rows: list[int] = field(default_factory=list)
    pairs: list[tuple[int, int]] | None = None
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def choose(self, examples: list[Example]) -> list[Example]:
        """The images, in their own order; all of them where the list names pairs."""
        return examples if self.pairs is not None else [examples[row] for row in sorted(self.rows)]


def read_image_list(root: Path, name: str, rows: Mapping[str, int]) -> ImageList:
    """Reads a list of images, one name a line, or of pairs, two names a line.

    Two names of the same image on a line, such as its id and its file, are that image.

    Args:
        root: the folder of the set.
        name: the list's path, or where it lies in the folder.
        rows: of every name that an image goes by; `OUTSIDE_SPLIT` where it is not to be had.

    Raises:
        DataError: there is no such file, or it is not text.
    """
    path = Path(name)
    if not path.is_file() and not path.is_absolute():
        path = resolve_inside(root, name)
    chosen, left_out = ImageList(), 0
    lines_of_one: dict[int, int] = {}
    pairs: dict[tuple[int, int], int] = {}
    for line, text in read_lines(path, "list of images"):
        cells = text.replace(",", " ").split()
        unknown = [cell for cell in cells if cell not in rows]
        if unknown or not 1 <= len(cells) <= 2:
            wrong = f"the set has no image {unknown[0][:60]!r}" if unknown else f"got {len(cells)} names"
            chosen.faults.append(Fault(path, f"expected an image or two of them: {wrong}", line))
            continue
        found = list(dict.fromkeys(rows[cell] for cell in cells))
        if OUTSIDE_SPLIT in found:
            left_out += 1
        elif len(found) == 1:
            lines_of_one.setdefault(found[0], line)
        else:
            pairs.setdefault((found[0], found[1]), line)
    if pairs:
        wrong = "expected two images, as on other lines of this list, got one"
        chosen.faults += [Fault(path, wrong, line) for line in lines_of_one.values()]
    if left_out:
        chosen.notes.append(f"{path}: {left_out:,} lines name images that are not of the split; left out")
    if not lines_of_one and not pairs and not chosen.faults:
        raise DataError(f"{path} names no image of the split; choose another split or list")
    chosen.faults = shorten(chosen.faults)
    chosen.rows, chosen.pairs = ([], list(pairs)) if pairs else (list(lines_of_one), None)
    return chosen


def find_table(root: Path, names: Sequence[str], what: str) -> Path:
    """A table of pairs, which lies in the folder of a set, beside that folder, or in its ``image_pairs``.

    Raises:
        DataError: none of the names is there.
    """
    for folder in (root, root / "image_pairs", root.parent, root.parent / "image_pairs"):
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise DataError(f"no {what} in {root}: expected {' or '.join(names)} there, beside it or in image_pairs/")


def read_table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV table of pairs with their lines; a first line that names no image is its header.

    Raises:
        DataError: the file is missing or not text.
    """
    is_first = True
    for number, text in read_lines(path, "table of pairs"):
        try:
            cells = [cell.strip() for row in csv.reader([text]) for cell in row]
        except csv.Error as error:
            raise DataError(f"{path}:{number}: expected cells separated by commas ({error})") from error
        if not is_first or cells[0].lower().endswith(IMAGE_SUFFIXES):
            yield number, cells
        is_first = False
