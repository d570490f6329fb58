"""Results of a long measurement in one JSON file, written after each part: a later call goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ucn.data.io import write_bytes_atomically


def open_results(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What a file holds so far, its runs under "runs"; results of other settings are never mixed with these.

    Args:
        path: the file; where it is not there yet, results begin.
        settings: everything that results depend on, as JSON can hold it.
    """
    settings = json.loads(json.dumps(settings))  # as a file gives them back
    if not path.exists():
        return {"settings": settings, "runs": []}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    differing = [key for key in settings if found["settings"].get(key) != settings[key]]
    if differing:
        raise SystemExit(f"{path} holds results of another {', '.join(differing)}; give another -o")
    return found


def save_results(path: Path, results: dict[str, Any]) -> None:
    """Writes beside the file, then renames, so that a kill leaves the file of before."""
    write_bytes_atomically(path, (json.dumps(results, indent=1) + "\n").encode(), overwrite=True)
