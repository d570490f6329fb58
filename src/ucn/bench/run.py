"""The parts of the benchmark, and the run over them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ucn.bench.machine import describe_machine
from ucn.bench.report import Part, read_part
from ucn.bench.settings import Settings
from ucn.errors import DataError, UcnError

SCHEMA = "ucn-bench-1"
PARTS: dict[str, str] = {
    "knn": "nearest-neighbour search",
    "transformer": "the convolutional spatial transformer",
    "encode": "images to descriptors",
    "match": "image pairs to matches",
    "growth": "cost against input size",
    "startup": "fresh processes",
    "train": "one training step",
}
"""Name to what it measures; each name is a module of this package with a function `measure`."""

FailureCallback = Callable[[str, Exception], None]
"""Called with the name of a part and the error that ended it."""


def run_parts(
    names: Sequence[str], settings: Settings, on_failure: FailureCallback | None = None
) -> dict[str, Any]:
    """Measures parts and returns a result for JSON; a part that fails does not end the run.

    Args:
        names: of `PARTS`.
        settings: how to measure.
        on_failure: called as soon as a part fails; the result also lists the failures.
    """
    machine = describe_machine(settings.device)  # before the benchmark itself loads the machine
    own = describe_settings(settings)
    parts: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    for name in names:
        try:
            parts[name] = {**measure_part(name, settings).to_dict(), "settings": own}
        except Exception as error:  # any error belongs to this part only
            failures[name] = format_error(error)
            if on_failure is not None:
                on_failure(name, error)
    return {"schema": SCHEMA, "machine": machine, "settings": own, "parts": parts, "failures": failures}


def format_error(error: Exception) -> str:
    """An error in one line."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:500]
    if isinstance(error, UcnError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_settings(settings: Settings) -> dict[str, Any]:
    """The settings that results depend on."""
    names = ("seed", "is_quick", "is_thorough", "weights", "limit_seconds")
    values = {name: getattr(settings, name) for name in names}
    return {"device": settings.device.type, **values, "has_xfeat": settings.xfeat is not None}


def measure_part(name: str, settings: Settings) -> Part:
    """Measures one part."""
    measure: Callable[[Settings], Part] = importlib.import_module(f"ucn.bench.{name}").measure
    started = time.perf_counter()
    part = measure(settings)
    return Part(part.tables, round(time.perf_counter() - started, 1))


def read_parts(result: Any, name: str = "the file") -> dict[str, Part]:
    """Reads the parts of a result from JSON.

    Raises:
        DataError: the values are not a result of `run_parts`.
    """
    keys = ("machine", "settings", "parts")
    is_result = isinstance(result, Mapping) and result.get("schema") == SCHEMA
    is_whole = is_result and all(isinstance(result.get(key), Mapping) for key in keys)
    is_whole = is_whole and isinstance(result.get("failures", {}), Mapping)
    if not is_whole or not {*result["parts"], *result.get("failures", {})} <= set(PARTS):
        raise DataError(
            f"{name} is no result of `ucn bench`: expected the schema '{SCHEMA}'; write one with "
            "`ucn bench -o FILE`"
        )
    return {part: read_part(values) for part, values in result["parts"].items()}


def check_mergeable(before: Mapping[str, Any], machine: Mapping[str, Any], is_quick: bool) -> None:
    """Checks, before anything is measured, that new parts can be merged into an earlier result.

    Args:
        before: the earlier result.
        machine: the current machine, from `describe_machine`.
        is_quick: whether the current run is quick.

    Raises:
        DataError: the earlier result is invalid, from another machine, or from the other kind of run.
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
    """Replaces the parts of an earlier result by those measured now.

    Each part keeps its own settings. A part that failed now keeps its earlier tables. Warnings about the
    machine are kept while a part of that run is.

    Raises:
        DataError: as `check_mergeable`.
    """
    check_mergeable(before, now["machine"], now["settings"]["is_quick"])
    # Older files have one entry of settings for all parts.
    kept = {name: {"settings": before["settings"], **part} for name, part in before["parts"].items()}
    parts = {**kept, **now["parts"]}
    failures = {name: why for name, why in before.get("failures", {}).items() if name not in now["parts"]}
    is_kept = any(name not in now["parts"] for name in before["parts"])
    earlier = before["machine"].get("warnings", []) if is_kept else []
    return {
        **now,
        "machine": {
            **now["machine"],
            "warnings": list(dict.fromkeys([*earlier, *now["machine"]["warnings"]])),
        },
        "parts": {name: parts[name] for name in PARTS if name in parts},
        "failures": {**failures, **now["failures"]},
    }
