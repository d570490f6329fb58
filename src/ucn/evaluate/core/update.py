"""Updates a report: rows of methods that are not evaluated again are taken from the JSON of its page.

Rows of two runs are comparable where data and protocol are the same. Both hashes are in the JSON; of pages
that are older than the hashes, the other values that both runs have are compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from ucn.errors import DataError
from ucn.evaluate.core.report import Report, from_plain, list_versions, summarise, to_plain
from ucn.features.method import MethodInfo
from ucn.files.reading import read_binary

R = TypeVar("R")  # a dataclass with the name of a method in `method`

_MAX_BYTES = 64 * 2**20
_OF_METHOD = ("images", "errors")  # lists whose length depends on the method
_TYPES = {"command": str, "device": str, "versions": dict, "skipped": dict, "methods": list, "figures": list}


@dataclass(frozen=True, eq=False)
class Page:
    """The JSON of a report, and the methods in it."""

    path: Path
    values: dict[str, Any]
    methods: dict[str, MethodInfo]

    def check(self, **now: object) -> None:
        """Raises `DataError` where a value that the page has differs from that of this run."""
        for name, value in now.items():
            self._compare(name, self.values.get(name, to_plain(value)), to_plain(value))

    def _compare(self, what: str, then: object, now: object) -> None:
        if then != now:
            raise DataError(
                f"{self.path} is of another run: {what} was {summarise(then)}, now it is {summarise(now)}; "
                "use the same data and settings, or evaluate all methods into another folder",
                path=self.path,
            )

    def merge(self, rows: Sequence[R], kept: Any, where: str, names: Iterable[str] = ()) -> tuple[R, ...]:
        """The rows of this run and those of the page's other methods; methods in the order of the page.

        Args:
            rows: of this run, those of each method together.
            kept: a list of such rows in the JSON.
            where: its place in the JSON, for errors.
            names: methods that must have such rows.
        """
        if not rows:
            return ()
        listed = enumerate(kept if isinstance(kept, list) else [kept])
        found = _group(self._read(row, rows[0], f"{where}[{number}]") for number, row in listed)
        measured = _group(rows)
        expected = [_identify(row) for row in next(iter(measured.values()))]
        for name in {*found, *names} - {*measured}:
            self._compare(f"'{where}' of '{name}'", [*map(_identify, found.get(name, []))], expected)
        return tuple(row for own in (found | measured).values() for row in own)

    def _read(self, row: Any, example: R, where: str) -> R:
        try:
            names = [field.name for field in fields(example)]  # type: ignore[arg-type]
            values = {name: from_plain(row[name], getattr(example, name)) for name in names}
            self.methods[values["method"]]
            return type(example)(**values)
        except (KeyError, TypeError, OverflowError) as error:
            raise self.refuse(f"{where} is {summarise(row)} (wrong: {error})") from error

    def merge_methods(self, measured: Sequence[MethodInfo], rows: Iterable[Any]) -> tuple[MethodInfo, ...]:
        """The methods of merged rows, in their order."""
        found = self.methods | {method.name: method for method in measured}
        return tuple(found[name] for name in dict.fromkeys(row.method for row in rows))

    def refuse(self, reason: str) -> DataError:
        """The error of a page that is damaged, or that an older version wrote."""
        message = f"{self.path} cannot be updated: {reason}; evaluate all methods again"
        return DataError(message, path=self.path)


def read_page(path: Path, name: str) -> Page:
    """Reads the JSON of a report; raises `DataError` where it is not one of the named evaluation."""
    page = Page(path, {}, {})
    if not path.exists():
        raise DataError(f"there is no {path} to update; evaluate all methods first", path=path)
    try:
        values = json.loads(read_binary(path, "report", _MAX_BYTES))
    except (ValueError, RecursionError) as error:
        is_known = isinstance(error, DataError)
        raise error if is_known else page.refuse(f"it is not JSON ({str(error)[:80]})") from error
    if not isinstance(values, dict) or values.get("benchmark") != name:
        raise page.refuse(f"it is not a report of '{name}'")
    for key, kind in _TYPES.items():
        if not isinstance(values.get(key), kind):
            raise page.refuse(f"'{key}' is {summarise(values.get(key))}")
    try:
        for run in values.get("earlier_runs", []):
            _ = run["methods"], run["versions"], run["device"], run["jobs"]
        return Page(path, values, {row["name"]: MethodInfo(**row) for row in values["methods"]})
    except (KeyError, TypeError) as error:
        raise page.refuse(f"'methods' or 'earlier_runs' is damaged ({error})") from error


def update_report(report: Report, page: Page) -> Report:
    """Completes a report with merged rows: commands of both runs, skipped methods, origin of kept rows."""
    names = [method.name for method in report.methods]
    kept = [method.name for method in report.methods if page.methods.get(method.name) is method]
    now = {"versions": dict(report.versions), "device": report.device, "jobs": report.values.get("jobs", 1)}
    runs = []  # that differ in versions, device or jobs
    for run in (*page.values.get("earlier_runs", []), {"jobs": 1, **page.values, "methods": kept}):
        own = [name for name in kept if name in run["methods"]]
        kept = [name for name in kept if name not in own]
        if own and any(run[key] != value for key, value in now.items()):
            runs.append({"methods": own, **{key: run[key] for key in now}})
    notes = [
        f"{', '.join(run['methods'])}: from an earlier run with "
        f"{list_versions(run['versions'])} on {run['device']}, jobs {run['jobs']}"
        for run in runs
    ]
    skipped = {**page.values["skipped"], **report.skipped}
    return replace(
        report,
        command="\n".join(dict.fromkeys([*page.values["command"].splitlines(), report.command])),
        skipped={name: reason for name, reason in skipped.items() if name not in names},
        notes=(*report.notes, *notes),
        values={**report.values, "earlier_runs": runs} if runs else report.values,
    )


def _group(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Rows by method."""
    groups = dict[str, list[Any]]()
    for row in rows:
        groups.setdefault(row.method, []).append(row)
    return groups


def _identify(row: Any) -> list[object]:
    """What rows of all methods have in common: groups, variants, limits, lengths of lists."""
    values = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "method"}
    common = [to_plain(v) for k, v in values.items() if isinstance(v, (str, bool)) or k in ("value", "limit")]
    return common + [len(v) for k, v in values.items() if isinstance(v, tuple) and k not in _OF_METHOD]
