"""Which parts there are, and the one run over them that gives a result to be kept."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ucn.bench.machine import describe_machine
from ucn.bench.report import Part, read_part
from ucn.bench.settings import Settings
from ucn.errors import DataError

SCHEMA = "ucn-bench-1"
PARTS: dict[str, str] = {
    "knn": "nearest neighbours",
    "transformer": "the convolutional spatial transformer",
    "encode": "images to descriptors",
    "pairs": "pairs of images to matches",
    "growth": "cost against size",
    "startup": "fresh processes",
    "train": "one training step",
}
"""Name to what is measured; each name is a module of this room."""


def run_parts(names: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Measures parts, and gives everything as JSON has it.

    Args:
        names: of `PARTS`.
        settings: how to measure.
    """
    machine = describe_machine(settings.device)  # before the machine is busy with this
    found = {name: measure_part(name, settings) for name in names}
    return {
        "schema": SCHEMA,
        "machine": machine,
        "settings": describe_settings(settings),
        "parts": {name: part.to_dict() for name, part in found.items()},
    }


def describe_settings(settings: Settings) -> dict[str, Any]:
    """What the figures depend on besides the machine."""
    return {
        "device": settings.device.type,
        "seed": settings.seed,
        "is_quick": settings.is_quick,
        "is_thorough": settings.is_thorough,
        "weights": settings.weights,
        "limit_seconds": settings.limit_seconds,
        "has_xfeat": settings.xfeat is not None,
    }


def measure_part(name: str, settings: Settings) -> Part:
    """One part, with the time it took."""
    measure: Callable[[Settings], Part] = importlib.import_module(f"ucn.bench.{name}").measure
    begin = time.perf_counter()
    part = measure(settings)
    return Part(part.tables, part.targets, round(time.perf_counter() - begin, 1))


def read_parts(result: Any, name: str = "the file") -> dict[str, Part]:
    """The parts of a result that was kept as JSON.

    Raises:
        DataError: it is no result of `run_parts`.
    """
    keys = ("machine", "settings", "parts")
    is_result = isinstance(result, Mapping) and result.get("schema") == SCHEMA
    is_whole = is_result and all(isinstance(result.get(key), Mapping) for key in keys)
    if not is_whole or not set(result["parts"]) <= set(PARTS):
        raise DataError(
            f"{name} is no result of `ucn bench`: expected the schema '{SCHEMA}'; write one with "
            "`ucn bench -o FILE`"
        )
    return {part: read_part(values) for part, values in result["parts"].items()}


def check_mergeable(before: Mapping[str, Any], machine: Mapping[str, Any], is_quick: bool) -> None:
    """Refuses an earlier result that new ones cannot be added to; to be asked before they are measured.

    Args:
        before: the earlier result.
        machine: the one that is measured now, as `describe_machine` gives it.
        is_quick: whether it is measured quickly.

    Raises:
        DataError: it is of another machine, quick where this one is not, or no result at all.
    """
    read_parts(before)
    for key in ("device", "device_name", "cpu", "cores", "threads"):
        old, new = before["machine"].get(key), machine.get(key)
        if old != new:
            raise DataError(
                f"the earlier result is of another machine ({key}: {old}, now {new}); write to a new file"
            )
    if before["settings"].get("is_quick") != is_quick:
        raise DataError("quick and full results are not mixed in one file; write to a new file")


def merge_results(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """An earlier result of the same machine, with the parts that were measured now in place of its own.

    What it warned of is kept as long as one of its parts is.

    Raises:
        DataError: as `check_mergeable`.
    """
    check_mergeable(before, now["machine"], now["settings"]["is_quick"])
    order = list(PARTS)
    parts = {**before["parts"], **now["parts"]}
    is_kept = any(name not in now["parts"] for name in before["parts"])
    earlier = before["machine"].get("warnings", []) if is_kept else []
    warnings = dict.fromkeys([*earlier, *now["machine"]["warnings"]])
    return {
        **now,
        "machine": {**now["machine"], "warnings": list(warnings)},
        "parts": {name: parts[name] for name in sorted(parts, key=order.index)},
    }
