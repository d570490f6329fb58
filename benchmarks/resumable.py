"""Results of a long benchmark in one JSON file, written after each run, so that a later call resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ucn.files.writing import write_bytes_atomically


def open_results(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Reads the results so far, with the finished runs under "runs"; exits where their settings differ.

    Args:
        path: the file, which may be missing.
        settings: everything that results depend on, as JSON values.
    """
    settings = json.loads(json.dumps(settings))  # as read from a file
    if not path.exists():
        return {"settings": settings, "runs": []}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    differing = [key for key in settings if found["settings"].get(key) != settings[key]]
    if differing:
        raise SystemExit(f"{path} holds results of another {', '.join(differing)}; give another -o")
    return found


def save_results(path: Path, results: dict[str, Any]) -> None:
    """Replaces the file atomically."""
    write_bytes_atomically(path, (json.dumps(results, indent=1) + "\n").encode(), overwrite=True)
