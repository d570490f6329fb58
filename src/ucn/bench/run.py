"""Which parts there are, and the one run over them that gives a result to be kept."""

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
    "knn": "nearest neighbours",
    "transformer": "the convolutional spatial transformer",
    "encode": "images to descriptors",
    "pairs": "pairs of images to matches",
    "growth": "cost against size",
    "startup": "fresh processes",
    "train": "one training step",
}
"""Name to what is measured; each name is a module of this room."""


Failed = Callable[[str, Exception], None]
"""Called with the name of a part that failed, and why."""


def run_parts(names: Sequence[str], settings: Settings, on_failure: Failed | None = None) -> dict[str, Any]:
    """Measures parts, and gives everything as JSON has it; a part that fails does not lose the others.

    Args:
        names: of `PARTS`.
        settings: how to measure.
        on_failure: called at once where a part fails; the result names it, too.
    """
    machine = describe_machine(settings.device)  # before the machine is busy with this
    own = describe_settings(settings)
    found: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    for name in names:
        try:
            found[name] = {**measure_part(name, settings).to_dict(), "settings": own}
        except Exception as error:  # whatever it is, it is of this part
            failures[name] = say_error(error)
            if on_failure is not None:
                on_failure(name, error)
    return {"schema": SCHEMA, "machine": machine, "settings": own, "parts": found, "failures": failures}


def say_error(error: Exception) -> str:
    """One line on what went wrong."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:500]
    if isinstance(error, UcnError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
    is_whole = is_whole and isinstance(result.get("failures", {}), Mapping)
    if not is_whole or not {*result["parts"], *result.get("failures", {})} <= set(PARTS):
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

    Each part keeps the settings it was measured with; those of the result are of the last run. A part that
    failed now stays as it was. What the earlier result warned of is kept as long as one of its parts is.

    Raises:
        DataError: as `check_mergeable`.
    """
    check_mergeable(before, now["machine"], now["settings"]["is_quick"])
    order = list(PARTS)
    # Files of earlier versions have settings of the whole alone.
    kept = {name: {"settings": before["settings"], **part} for name, part in before["parts"].items()}
    parts = {**kept, **now["parts"]}
    failures = {name: why for name, why in before.get("failures", {}).items() if name not in now["parts"]}
    is_kept = any(name not in now["parts"] for name in before["parts"])
    earlier = before["machine"].get("warnings", []) if is_kept else []
    warnings = dict.fromkeys([*earlier, *now["machine"]["warnings"]])
    return {
        **now,
        "machine": {**now["machine"], "warnings": list(warnings)},
        "parts": {name: parts[name] for name in sorted(parts, key=order.index)},
        "failures": {**failures, **now["failures"]},
    }


def say_settings(part: Mapping[str, Any]) -> str:
    """The options of `ucn bench` that a part, as it is kept, was measured with; empty for the defaults."""
    settings = part.get("settings")
    if not isinstance(settings, Mapping):
        return ""
    options = [
        ("is_quick", False, "--quick"),
        ("is_thorough", False, "--thorough"),
        ("weights", "geometric", "--weights {}"),
        ("has_xfeat", False, "--xfeat FILE"),
        ("limit_seconds", 90.0, "--limit-seconds {:g}"),
        ("seed", 0, "--seed {}"),
    ]
    given = [text.format(settings[key]) for key, usual, text in options if settings.get(key, usual) != usual]
    return " ".join(given)
