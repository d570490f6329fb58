"""Which weights the rows of published reports were measured with, and which of them are shipped now.

python benchmarks/result_weights.py [docs/results] [--all]

One line a report: its rows of weights that are no longer shipped, each with the start of its SHA-256; with
--all also those of shipped weights. Weights whose scores alone were fitted anew have another SHA-256, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import make_parser

from ucn.weights.table import SHIPPED

_SHOWN = 8  # letters of a hash


def find_rows(folder: Path) -> dict[str, list[tuple[str, str, bool]]]:
    """By report: name of each row of weights, their SHA-256, and whether they are shipped."""
    shipped = {info.sha256 for info in SHIPPED.values()}
    found = {}
    for path in sorted(folder.glob("*.json")):
        methods = json.loads(path.read_text(encoding="utf-8")).get("methods") or []
        rows = [(method["name"], sha256) for method in methods for sha256 in _find_hashes(method["key"])]
        if rows:
            found[path.stem] = [(name, sha256, sha256 in shipped) for name, sha256 in rows]
    return found


def _find_hashes(key: Any) -> Iterator[str]:
    """Hashes of weights in a key, however deep."""
    if isinstance(key, dict):
        if isinstance(key.get("ucn"), str):
            yield key["ucn"]
        for value in key.values():
            yield from _find_hashes(value)


def main() -> None:
    """Prints the table."""
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/results"))
    parser.add_argument("--all", action="store_true", help="also rows of shipped weights")
    chosen = parser.parse_args()
    for report, rows in find_rows(chosen.folder).items():
        shown = [
            f"{name} {sha256[:_SHOWN]}{' (shipped)' if is_shipped else ''}"
            for name, sha256, is_shipped in rows
            if chosen.all or not is_shipped
        ]
        if shown:
            print(f"{report}: {', '.join(shown)}")


if __name__ == "__main__":
    main()
