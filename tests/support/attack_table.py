"""Hostile files, read by any version of ucn: how many hang, end in a foreign error, take too much or print.

    PYTHONPATH=src:tests python -m support.attack_table build/attacks
    PYTHONPATH=src:tests python -m support.attack_table build/attacks --source OTHER/src

prints a row of Markdown for each kind of attack, and every fault to stderr. The files are made by the version
on `PYTHONPATH`, and are equal for both; only their readers come from `--source`. A worker that dies counts.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from support.hostile_files import (
    Case,
    make_bombs,
    make_damaged,
    make_largest,
    make_largest_heif,
    make_special,
    place,
)
from support.hostile_worker import Outcome, run_cases

_COLUMNS = ("files", "hangs", "other errors", "dead workers", "over memory", "noise")


def list_faults(case: Case, found: Outcome) -> list[str]:
    """The columns in which a reading counts; none where it ended as promised."""
    faults = {
        "hangs": found.kind == "hang",
        "other errors": found.kind == "foreign",
        "dead workers": found.kind == "died",
        "over memory": found.is_over,
        "noise": bool(found.noise),
    }
    return [name for name, is_wrong in faults.items() if is_wrong]


def _group(cases: Iterable[Case]) -> Iterator[tuple[str, Iterable[Case]]]:
    listed = list(cases)
    images = [case for case in listed if case.reader in ("image", "mask", "exif")]
    recipes = [case for case in listed if case.reader == "recipe"]
    yield "images: sides, scans, tiles, tags, sizes", images
    yield "data files: sizes, layouts, nesting", [each for each in listed if each not in images + recipes]
    yield "recipes: tags, merge keys, aliases, depth", recipes


def _count(name: str, cases: Iterable[Case], folder: Path, source: Path | None) -> None:
    """Reads the files of an attack, some at a time, and prints its row."""
    counts = dict.fromkeys(_COLUMNS, 0)
    remaining = iter(cases)
    # Large files one by one, so that they do not fill the disk.
    while some := list(islice(remaining, 1 if name.startswith("largest") else 200)):
        folder.mkdir(parents=True)
        paths = [(case.reader, place(case, folder, number)) for number, case in enumerate(some)]
        for case, (_, path), found in zip(some, paths, run_cases(paths, source=source), strict=True):
            faults = list_faults(case, found)
            counts["files"] += 1
            for fault in faults:
                counts[fault] += 1
            if name.startswith("largest"):
                memory = f"{found.peak / 1e6:.0f} of {found.allowed / 1e6:.0f} MB"
                print(f"{case.family} {case.suffix}: {found.kind}, {memory}", file=sys.stderr)
            if faults:
                where = f"{case.family} for {case.reader}, {path.name}"
                print(f"{', '.join(faults)}: {where}: {found}", file=sys.stderr)
        shutil.rmtree(folder)
    print(f"| {name} | {' | '.join(f'{counts[column]:,}' for column in _COLUMNS)} |", flush=True)


def main() -> None:
    """Parses the arguments, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="for the files; must not exist, and is removed")
    parser.add_argument(
        "--source", type=Path, help="folder of the package that reads them (default: PYTHONPATH)"
    )
    parser.add_argument("--damaged", type=int, default=1000, metavar="N", help="damaged copies")
    parser.add_argument("--seed", type=int, default=0, help="of the damage")
    parser.add_argument("--skip", default="none", metavar="WORD", help="leave out the attack that begins so")
    arguments = parser.parse_args()
    folder, source = arguments.folder.resolve(), arguments.source and arguments.source.resolve()
    sound = folder.with_name(folder.name + ".sound")
    sound.mkdir(parents=True)
    attacks = [
        *_group(make_bombs()),
        ("largest accepted images, by format", chain(make_largest(), make_largest_heif())),
        ("paths that are not regular files, for 22 readers", make_special()),
        ("damaged copies", make_damaged(arguments.damaged, arguments.seed, sound)),
    ]
    print(f"| attack | {' | '.join(_COLUMNS)} |\n|---|{'--:|' * len(_COLUMNS)}")
    for name, cases in attacks:
        if name.startswith(arguments.skip):
            continue
        _count(name, cases, folder, source)
    shutil.rmtree(sound)


if __name__ == "__main__":
    main()
