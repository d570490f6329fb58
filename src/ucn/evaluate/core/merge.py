"""An earlier report, read again, so that only some of its methods have to be measured anew.

What is read is a stranger's file: its size, its types, and that it is of the same data and protocol are
checked before its figures stand beside new ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

from ucn.data.sets.layout import read_binary
from ucn.errors import DataError
from ucn.evaluate.core.commands import extend_command
from ucn.evaluate.core.method_types import MethodInfo
from ucn.evaluate.core.report import Report, to_plain

_MAX_BYTES = 64 * 2**20
_MAX_NUMBER, _MAX_COUNT = 1e300, 2**63  # JSON has integers of any length, beyond those of floats and arrays
_ORIGINS = "earlier_runs"
_METHOD_LINES = ("matching", "times")  # of a protocol: they name methods, or are of one run alone


class Row(Protocol):
    """A figure, or whatever else a report has of a method."""

    @property
    def method(self) -> str:
        """Whose it is."""


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Origin:
    """A run that measured some of a report's methods.

    Attributes:
        methods: their names.
        versions: of packages.
        device: where networks and matching ran.
        jobs: processes that shared the machine.
    """

    methods: tuple[str, ...]
    versions: dict[str, str]
    device: str
    jobs: int = 1

    def is_like(self, other: Origin) -> bool:
        """Whether both ran in the same way."""
        return (self.versions, self.device, self.jobs) == (other.versions, other.device, other.jobs)

    def describe(self, now: Origin) -> str:
        """A line for people on what differs from the present run."""
        names = dict.fromkeys([*self.versions, *now.versions])
        parts = [
            f"{name} {self.versions.get(name, 'absent')} (now {now.versions.get(name, 'absent')})"
            for name in names
            if self.versions.get(name) != now.versions.get(name)
        ]
        words = [f"with {', '.join(parts)}"] if parts else []
        if self.device != now.device:
            words.append(f"on {self.device} (now {now.device})")
        if self.jobs != now.jobs:
            words.append(f"in {self.jobs} process{'es' if self.jobs > 1 else ''} (now {now.jobs})")
        verb = "was" if len(self.methods) == 1 else "were"
        listed = ", ".join(f"`{name}`" for name in self.methods)
        return f"{listed} {verb} measured in an earlier run, {', '.join(words)}"


@dataclass(frozen=True, eq=False)
class Earlier:
    """A report that was read again.

    Attributes:
        path: its file.
        command: that made it.
        protocol: line by line.
        methods: by name, in order.
        skipped: reasons by name.
        origins: which run measured which of the methods.
        values: all of the file.
    """

    path: Path
    command: str
    protocol: tuple[str, ...]
    methods: dict[str, MethodInfo]
    skipped: dict[str, str]
    origins: tuple[Origin, ...]
    values: Mapping[str, Any]

    def read_rows(self, kind: type[R], rows: object, where: str) -> tuple[R, ...]:
        """Rows of a kind of dataclass; null becomes NaN where a number is expected.

        Args:
            kind: whose fields are text, truth values, numbers, or tuples of these.
            rows: a list of objects, as the file has it; what they have beside the fields is ignored.
            where: they stand in the file, for errors.

        Raises:
            DataError: something is missing, of another type, or of a method that the file does not name.
        """
        if not isinstance(rows, list):
            raise self.refuse(f"'{where}' must be a list, got {_show(rows)}")
        hints = get_type_hints(kind)
        found = []
        for number, row in enumerate(rows):
            place = f"{where}[{number}]"
            if not isinstance(row, dict):
                raise self.refuse(f"{place} must be an object, got {_show(row)}")
            values = {}
            for field in fields(kind):  # type: ignore[arg-type]
                if field.name not in row:
                    raise self.refuse(f"{place} has no '{field.name}'")
                values[field.name] = self._read(row[field.name], hints[field.name], f"{place}.{field.name}")
            if values["method"] not in self.methods:
                raise self.refuse(f"{place} is of '{values['method'][:80]}', which 'methods' does not name")
            found.append(kind(**values))
        return tuple(found)

    def _read(self, value: Any, hint: Any, place: str) -> Any:
        if get_origin(hint) is tuple:
            if not isinstance(value, list):
                raise self.refuse(f"{place} must be a list, got {_show(value)}")
            return tuple(self._read(item, get_args(hint)[0], place) for item in value)
        if hint is float:
            if value is None:
                return math.nan
            if type(value) in (int, float) and abs(value) < _MAX_NUMBER:
                return float(value)
        elif type(value) is hint and (hint is not int or abs(value) < _MAX_COUNT):
            return value
        expected = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}[hint]
        raise self.refuse(f"{place} must be {expected}, got {_show(value)}")

    def get(self, name: str) -> Any:
        """A value of the file; raises `DataError` where it has none of that name."""
        if name not in self.values:
            raise self.refuse(
                f"it has no '{name}', so an older version wrote it or it is damaged; measure all methods "
                "anew, without --update"
            )
        return self.values[name]

    def require(self, **now: object) -> None:
        """Raises `DataError` where a value of the file is not that of the present run."""
        for name, value in now.items():
            self.compare(name, self.get(name), to_plain(value))

    def compare(self, what: str, then: object, now: object) -> None:
        """Raises `DataError` where something was otherwise in the earlier run."""
        if then != now:
            raise DataError(
                f"{self.path} is of another run: {what} was {_show(then)}, and is {_show(now)} now; give the "
                "same data and options as then, or measure all methods, without --update and into another "
                "folder",
                path=self.path,
            )

    def check_protocol(self, lines: Iterable[str]) -> None:
        """Raises `DataError` where a line of the present protocol is not one of the earlier one."""
        for line in lines:
            head = line.partition(":")[0]
            if head not in _METHOD_LINES and line not in self.protocol:
                then = next((own for own in self.protocol if own.partition(":")[0] == head), "not there")
                self.compare(f"the line '{head}' of the protocol", then, line)

    def merge(
        self,
        then: Sequence[R],
        now: Sequence[R],
        place: Callable[[R], tuple[object, ...]],
        what: str,
        names: Iterable[str] | None = None,
    ) -> tuple[R, ...]:
        """Rows of both runs, those of now where both have them: methods as they were, then new ones.

        Args:
            then: rows of the file.
            now: rows of the present run, those of each method together.
            place: what must be the same in the rows of all methods.
            what: they are, for errors.
            names: of the methods that the file must have rows of; None takes those that it has.

        Raises:
            DataError: a method that is kept has other places than those measured now.
        """
        measured = {row.method for row in now}
        expected = [place(row) for row in now if row.method == now[0].method]
        listed = list(dict.fromkeys(row.method for row in then) if names is None else names)
        kept = [row for row in then if row.method not in measured]
        for name in dict.fromkeys([*listed, *(row.method for row in kept)]):
            if name not in measured:
                found = [place(row) for row in kept if row.method == name]
                old, new = _first_difference(found, expected if name in listed else [])
                self.compare(f"{what} of '{name[:80]}'", old, new)
        order = {name: number for number, name in enumerate(listed)}
        return tuple(sorted([*kept, *now], key=lambda row: order.get(row.method, len(order))))

    def merge_methods(self, now: Sequence[MethodInfo], names: Iterable[str]) -> tuple[MethodInfo, ...]:
        """The methods of names, in order: those measured now, and those of the file."""
        measured = {method.name: method for method in now}
        return tuple(measured.get(name) or self.methods[name] for name in names)

    def refuse(self, reason: str) -> DataError:
        """The error of a file that is no report of this kind."""
        return DataError(f"{self.path} cannot be updated: {reason}", path=self.path)


def read_earlier(path: Path, name: str) -> Earlier:
    """Reads the JSON of a report.

    Args:
        path: its file.
        name: of the evaluation.

    Raises:
        DataError: there is none, it is damaged, or it is of another evaluation.
    """
    if not path.exists():
        raise DataError(
            f"no {path}, which --update is to keep; run without --update first, or give its folder with -o",
            path=path,
        )
    empty = Earlier(path, "", (), {}, {}, (), {})
    try:
        values = json.loads(read_binary(path, "report", _MAX_BYTES), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise empty.refuse(f"it is no JSON ({str(error)[:80]})") from error
    if not isinstance(values, dict) or not isinstance(values.get("benchmark"), str):
        raise empty.refuse("it is no report of `ucn evaluate`")
    if values["benchmark"] != name:
        raise empty.refuse(f"it is of '{values['benchmark'][:80]}', expected one of '{name}'")
    texts = {key: _read_text(empty, values, key) for key in ("command", "device")}
    methods = _read_methods(empty, values)
    _check_figures(empty, values, methods)
    jobs = values.get("jobs", 1)
    if type(jobs) is not int:
        raise empty.refuse(f"'jobs' must be a whole number, got {_show(jobs)}")
    own = Origin((), _read_texts(empty, values, "versions"), texts["device"], jobs)
    return replace(
        empty,
        command=texts["command"],
        protocol=_read_list(empty, values, "protocol"),
        methods=methods,
        skipped=_read_texts(empty, values, "skipped"),
        origins=_read_origins(empty, values, methods, own),
        values=values,
    )


def complete_report(report: Report, earlier: Earlier, names: Sequence[str] | None = None) -> Report:
    """What a report that was made of both runs says about that: command, notes, and what was skipped.

    Args:
        report: with figures of both runs.
        earlier: what was taken over.
        names: of the methods, as ``--methods`` takes them; None takes those of the report.

    Raises:
        DataError: the protocols differ.
    """
    earlier.check_protocol(report.protocol)
    known = [method.name for method in report.methods]
    kept = [method.name for method in report.methods if earlier.methods.get(method.name) is method]
    present = Origin((), dict(report.versions), report.device, report.values.get("jobs", 1))
    origins = []
    for origin in earlier.origins:
        own = tuple(name for name in known if name in origin.methods and name in kept)
        if own and not origin.is_like(present):
            origins.append(replace(origin, methods=own))
    failed = [
        f"`{name}` could not be measured anew, so its figures are those of an earlier run: {reason}"
        for name, reason in report.skipped.items()
        if name in kept
    ]
    skipped = {**earlier.skipped, **report.skipped}
    listed = known if names is None else names
    added = [name for name in listed if name not in earlier.methods]
    values = {**report.values, _ORIGINS: [asdict(origin) for origin in origins]}
    return replace(
        report,
        command=extend_command(earlier.command, report.command, listed, added),
        skipped={name: reason for name, reason in skipped.items() if name not in known},
        notes=(*report.notes, *failed, *(origin.describe(present) for origin in origins)),
        values=values if origins else report.values,
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _show(value: object) -> str:
    """A value in few words, for an error."""
    if isinstance(value, tuple):
        text = ", ".join(map(str, value))
    else:
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return f"{text[:160]}…" if len(text) > 160 else text or "empty"


def _first_difference(then: Sequence[object], now: Sequence[object]) -> tuple[object, object]:
    """What differs first; all of both where they are equal."""
    for old, new in zip(then, now, strict=False):
        if old != new:
            return old, new
    if len(then) == len(now):
        return then, now
    return f"{len(then)} rows", f"{len(now)} rows"


def _read_text(earlier: Earlier, values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str):
        raise earlier.refuse(f"'{key}' must be text, got {_show(value)}")
    return value


def _read_texts(earlier: Earlier, values: Mapping[str, Any], key: str) -> dict[str, str]:
    value = values.get(key)
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise earlier.refuse(f"'{key}' must be an object of texts, got {_show(value)}")
    return value


def _read_list(earlier: Earlier, values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise earlier.refuse(f"'{key}' must be a list of texts, got {_show(value)}")
    return tuple(value)


def _read_methods(earlier: Earlier, values: Mapping[str, Any]) -> dict[str, MethodInfo]:
    rows = values.get("methods")
    if not isinstance(rows, list) or not rows:
        raise earlier.refuse(f"'methods' must be a list of objects, got {_show(rows)}")
    methods: dict[str, MethodInfo] = {}
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("key"), dict):
            raise earlier.refuse(f"a method must have 'name', 'title' and 'key', got {_show(row)}")
        name, title = (_read_text(earlier, row, key) for key in ("name", "title"))
        if name in methods:
            raise earlier.refuse(f"'methods' names '{name[:80]}' twice")
        methods[name] = MethodInfo(name, title, row["key"])
    return methods


def _check_figures(earlier: Earlier, values: Mapping[str, Any], methods: Mapping[str, MethodInfo]) -> None:
    """Every method must have figures; whether these are whole, those who read them check."""
    rows = values.get("figures")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise earlier.refuse(f"'figures' must be a list of objects, got {_show(rows)}")
    measured = [row.get("method") for row in rows]
    for name in methods:
        if name not in measured:
            raise earlier.refuse(f"it has no figures of its method '{name[:80]}'")


def _read_origins(
    earlier: Earlier, values: Mapping[str, Any], methods: Mapping[str, MethodInfo], own: Origin
) -> tuple[Origin, ...]:
    """Runs that earlier updates took methods from, then the earlier run itself with the rest."""
    rows = values.get(_ORIGINS, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise earlier.refuse(f"'{_ORIGINS}' must be a list of objects, got {_show(rows)}")
    origins = []
    for row in rows:
        jobs = row.get("jobs")
        if type(jobs) is not int:
            raise earlier.refuse(f"'jobs' of '{_ORIGINS}' must be a whole number, got {_show(jobs)}")
        names = _read_list(earlier, row, "methods")
        versions, device = _read_texts(earlier, row, "versions"), _read_text(earlier, row, "device")
        origins.append(Origin(names, versions, device, jobs))
    taken = {name for origin in origins for name in origin.methods}
    rest = tuple(name for name in methods if name not in taken)
    return (*origins, replace(own, methods=rest))
