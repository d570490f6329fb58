"""Lists of pairs of images as hloc has them: two names a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ucn.data.io import write_bytes_atomically
from ucn.errors import DataError
from ucn.formats.hloc import check_pair_names


def has_space(name: str) -> bool:
    """Whether a name would be cut in two in a list of pairs."""
    return any(letter.isspace() for letter in name)


def write_pairs(path: Path, pairs: Sequence[tuple[str, str]], overwrite: bool = False) -> None:
    """Writes pairs, two names a line.

    Raises:
        DataError: a name has a space, or hloc could not tell two images apart.
        OutputError: the file cannot be written, or exists already.
    """
    names = dict.fromkeys(name for pair in pairs for name in pair)
    check_pair_names(names)
    spaced = next((name for name in names if has_space(name)), None)
    if spaced is not None:
        raise DataError(f"image {spaced!r}: hloc's lists of pairs allow no spaces in names; rename the file")
    text = "".join(f"{name0} {name1}\n" for name0, name1 in pairs)
    write_bytes_atomically(path, text.encode(), overwrite)


def read_pairs(path: Path, names: Iterable[str]) -> list[tuple[str, str]]:
    """Reads pairs; each once, whichever way round it comes again.

    Args:
        path: of the list.
        names: of all images there are.

    Raises:
        DataError: with its line, where a pair is not two of those names; or the file is missing.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the list of pairs {path}: {error}; check its path") from error
    known = set(names)
    pairs: dict[frozenset[str], tuple[str, str]] = {}
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if not cells or cells[0].startswith("#"):
            continue
        unknown = [cell for cell in cells if cell not in known]
        if len(cells) != 2 or unknown or cells[0] == cells[1]:
            wrong = f"no image {unknown[0]!r:.80}" if unknown else f"got {line.strip()!r:.80}"
            raise DataError(f"{path}:{number}: expected the names of two images, {wrong}; correct the line")
        pairs.setdefault(frozenset(cells), (cells[0], cells[1]))
    return list(pairs.values())
