"""hloc's lists of image pairs (pairs.txt): two names per line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ucn.errors import DataError
from ucn.files.reading import read_lines
from ucn.files.writing import write_bytes_atomically
from ucn.formats.hloc import check_pair_names


def has_space(name: str) -> bool:
    """Whether a name contains whitespace, which separates the names of a line."""
    return any(character.isspace() for character in name)


def write_pair_list(path: Path, pairs: Sequence[tuple[str, str]], overwrite: bool = False) -> None:
    """Writes a list of pairs.

    Raises:
        DataError: a name has whitespace, or two names collide in hloc's layout.
        OutputError: the file cannot be written, or exists already.
    """
    names = dict.fromkeys(name for pair in pairs for name in pair)
    check_pair_names(names)
    spaced = next((name for name in names if has_space(name)), None)
    if spaced is not None:
        raise DataError(f"image {spaced!r}: hloc's lists of pairs allow no spaces in names; rename the file")
    text = "".join(f"{name0} {name1}\n" for name0, name1 in pairs)
    write_bytes_atomically(path, text.encode(), overwrite)


def read_pair_list(path: Path, names: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Reads a list of pairs; a pair that comes again, in either order, is read once.

    Args:
        path: the list.
        names: all images; None accepts any names.

    Raises:
        DataError: the file is missing, or a line is not two of those names; the error names the line.
    """
    known = None if names is None else frozenset(names)
    pairs: dict[frozenset[str], tuple[str, str]] = {}
    for number, line in read_lines(path, "the list of pairs"):
        cells = line.split()
        if cells[0].startswith("#"):
            continue
        unknown = [cell for cell in cells if known is not None and cell not in known]
        if len(cells) != 2 or unknown or cells[0] == cells[1]:
            wrong = f"no image {unknown[0]!r:.80}" if unknown else f"got {line!r:.80}"
            raise DataError(f"{path}:{number}: expected the names of two images, {wrong}; correct the line")
        pairs.setdefault(frozenset(cells), (cells[0], cells[1]))
    return list(pairs.values())
