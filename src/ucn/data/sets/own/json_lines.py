"""Reads ``pairs.jsonl``: pairs with their points, one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.data.pairs import Problem
from ucn.data.sets.own.files import PairList, PairPoints, Parts, format_value, is_json_number, make_entry
from ucn.errors import DataError
from ucn.files.reading import read_lines
from ucn.files.suggestions import suggest

_KEYS = ("image0", "image1", "points0", "points1", "parts", "pck_length", "class", "split")
_MAX_LINE = 16 * 2**20  # characters; about half a million correspondences


def read_pair_json(path: Path, parts: Parts | None) -> PairList:
    """Reads ``pairs.jsonl``."""
    entries, problems, notes = [], [], []
    has_splits = has_unused_parts = False
    for number, line in read_lines(path, "list of pairs"):
        try:
            values = _parse_object(line)
            points = _read_json_points(values, parts, path, number)
            entries.append(make_entry(number, values, points))
        except DataError as error:
            problems.append(Problem(path, str(error), number, is_excluded=True))
            continue
        has_splits |= "split" in values
        has_unused_parts |= "parts" in values and parts is None
    if has_unused_parts:
        notes.append(f"{path.name}: 'parts' are ignored, since there is no parts.csv")
    return PairList(entries, problems, notes, has_splits)


def _parse_object(line: str) -> dict[str, Any]:
    if len(line) > _MAX_LINE:
        raise DataError(
            f"it has {len(line):,} characters, the limit for a line is {_MAX_LINE:,}; split the points"
        )
    try:
        values = json.loads(line, object_pairs_hook=_to_dict)
    except RecursionError:
        raise DataError("it is nested too deeply; expected lists of points [x, y]") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"expected a JSON object on one line, got an error at column {error.colno}: {error.msg}"
        ) from error
    except DataError:
        raise
    except ValueError as error:  # a whole number of thousands of digits
        raise DataError(f"expected a JSON object, got {str(error)[:80]}") from error
    if not isinstance(values, dict):
        raise DataError(f"expected a JSON object, got {line[:40]!r}")
    for key in values:
        if key not in _KEYS:
            legal = ", ".join(_KEYS)
            raise DataError(f"there is no key {key[:40]!r}{suggest(key, _KEYS)} (there are {legal})")
    return values


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise DataError(f"key {key[:40]!r} is repeated; remove one")
        values[key] = value
    return values


def _read_json_points(values: dict[str, Any], parts: Parts | None, path: Path, number: int) -> PairPoints:
    points0, points1 = (_read_json_list(values, key) for key in ("points0", "points1"))
    if len(points0) != len(points1):
        raise DataError(
            f"points0 and points1 must be of one length, got {len(points0)} and {len(points1)}; "
            "row i of one corresponds to row i of the other"
        )
    names = values.get("parts")
    numbers = None
    if names is not None:
        is_legal = isinstance(names, list) and all(type(name) in (str, int) for name in names)
        if not is_legal or len(names) != len(points0):
            raise DataError(f"parts must be a list of {len(points0)} names or numbers, one for each point")
        if parts is not None:
            numbers = np.array([parts.find(name) for name in names], np.int64)
    return PairPoints(points0, points1, numbers, path, number)


def _read_json_list(values: dict[str, Any], key: str) -> NDArray[np.float64]:
    if key not in values:
        raise DataError(f"key '{key}' is missing; expected {key}: [[x, y], …]")
    rows = values[key]
    if not isinstance(rows, list):
        raise DataError(f"{key} must be a list [[x, y], …], got {format_value(rows)}")
    for place, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 2 or not all(map(is_json_number, row)):
            raise DataError(f"{key}[{place}] must be [x, y], two numbers, got {format_value(row)}")
    return np.array(rows, np.float64).reshape(-1, 2)
