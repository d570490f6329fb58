"""Finds annotated images, and reads lists of images and tables of pairs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ucn.data.io import IMAGE_SUFFIXES
from ucn.data.pairs import Problem, limit_problems
from ucn.data.sets.layout import find_image, resolve_inside
from ucn.data.sets.semantic.parts import Example
from ucn.errors import DataError
from ucn.files.reading import read_lines

OUTSIDE_SPLIT = -1
"""Row of an image that belongs to the set, but not to the split."""


@dataclass
class ImageList:
    """The content of a list.

    Attributes:
        rows: rows of single images; empty where the list names pairs.
        pairs: rows of pairs; None where it names single images.
        problems: faulty lines.
        notes: lines excluded since they are not of the split.
    """

    rows: list[int] = field(default_factory=list)
    pairs: list[tuple[int, int]] | None = None
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def choose(self, examples: list[Example]) -> list[Example]:
        """The listed images, in their order in the set; all images where the list names pairs."""
        return examples if self.pairs is not None else [examples[row] for row in sorted(self.rows)]


def find_examples(
    root: Path, pattern: str, image_name: str = "{folder}/{stem}"
) -> tuple[list[Example], list[Problem]]:
    """Finds annotation files ``CLASS/NAME`` and the image of each.

    Args:
        root: the folder of the set.
        pattern: glob pattern of the annotation files; their folder is the class.
        image_name: path of the image relative to `root`, without suffix, from ``folder`` and ``stem`` of the
            annotation file.

    Returns:
        The annotated images, sorted; and a problem for each annotation without an image.
    """
    examples, problems = [], []
    for path in sorted(root.glob(pattern)):
        category = path.parent.name
        name = image_name.format(folder=path.parent.relative_to(root).as_posix(), stem=path.stem)
        image = find_image(root / name)
        if image is None:
            message = f"no image {name}.jpg or .png; copy it there, or remove this file"
            problems.append(Problem(path, message))
        else:
            examples.append(Example(f"{category}/{path.stem}", category, image, path))
    return examples, limit_problems(problems)


def read_image_list(root: Path, name: str, rows: Mapping[str, int]) -> ImageList:
    """Reads a list of images, one name per line, or of pairs, two names per line.

    Two names of one image on a line, such as its id and its file, count as that image.

    Args:
        root: the folder of the set.
        name: path of the list, or relative to `root`.
        rows: the row of each name of an image; `OUTSIDE_SPLIT` for images of other splits.

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
            chosen.problems.append(
                Problem(path, f"expected one or two images: {wrong}; correct the line", line)
            )
            continue
        found = list(dict.fromkeys(rows[cell] for cell in cells))
        if OUTSIDE_SPLIT in found:
            left_out += 1
        elif len(found) == 1:
            lines_of_one.setdefault(found[0], line)
        else:
            pairs.setdefault((found[0], found[1]), line)
    if pairs:
        wrong = "expected two images, as on other lines of this list, got one; correct the line"
        chosen.problems += [Problem(path, wrong, line) for line in lines_of_one.values()]
    if left_out:
        chosen.notes.append(f"{path}: {left_out:,} lines name images that are not of the split; excluded")
    if not lines_of_one and not pairs and not chosen.problems:
        raise DataError(f"{path} names no image of the split; choose another split or list")
    chosen.problems = limit_problems(chosen.problems)
    chosen.rows, chosen.pairs = ([], list(pairs)) if pairs else (list(lines_of_one), None)
    return chosen


def find_table(root: Path, names: Sequence[str], what: str) -> Path:
    """Finds a table of pairs in the folder of a set, beside it, or in ``image_pairs``.

    Raises:
        DataError: there is none of these names.
    """
    for folder in (root, root / "image_pairs", root.parent, root.parent / "image_pairs"):
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise DataError(
        f"no {what}: expected {' or '.join(names)} in {root}, beside it or in image_pairs/; copy it"
    )


def read_table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a CSV table of pairs with their lines, without a header.

    Raises:
        DataError: the file is missing or not text.
    """
    is_first = True
    for number, text in read_lines(path, "table of pairs"):
        try:
            cells = [cell.strip() for row in csv.reader([text]) for cell in row]
        except csv.Error as error:
            raise DataError(
                f"{path}:{number}: expected cells separated by commas ({error}); correct it"
            ) from error
        if not is_first or cells[0].lower().endswith(IMAGE_SUFFIXES):
            yield number, cells
        is_first = False


def read_listed_pairs(
    path: Path, find: Callable[[list[str]], tuple[int, int] | str]
) -> tuple[list[tuple[int, int]], list[Problem], int]:
    """Reads the pairs of a table.

    Args:
        path: the table.
        find: the rows of the two images of a line's cells, or what is wrong with the line.

    Returns:
        The pairs, each once; the faulty lines; and how many lines repeat a pair.
    """
    pairs, problems = list[tuple[int, int]](), list[Problem]()
    for line, cells in read_table(path):
        found = find(cells)
        if isinstance(found, str):
            problems.append(Problem(path, found, line))
        else:
            pairs.append(found)
    unique = list(dict.fromkeys(pairs))
    return unique, limit_problems(problems), len(pairs) - len(unique)
