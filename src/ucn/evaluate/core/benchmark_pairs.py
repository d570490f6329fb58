"""From a user's folder to the pairs of a benchmark, grouped as its tables show them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ucn.data.catalogue import Option, find_info, guess_data, open_data
from ucn.data.pairs import PairData
from ucn.data.sets.layout import find_root
from ucn.errors import DataError
from ucn.evaluate.core.bundled import Motorcycle, SelfPairs, find_self_images
from ucn.evaluate.core.mini import WarpedPictures
from ucn.evaluate.core.pair_lists import CUB_PAIRS, draw_rows, draw_rows_by_class


@dataclass(frozen=True)
class Entry:
    """A pair of a benchmark.

    Attributes:
        data: the set it belongs to.
        index: its number there.
        name: unique in the benchmark.
        group: the column of the table that it counts in.
        category: its class, for the mean over classes.
        axis: what `value` is, where groups make a curve (rotation, scale); else empty.
        value: where on that axis its group lies.
    """

    data: PairData
    index: int
    name: str
    group: str
    category: str
    axis: str = ""
    value: float = 0.0


def enter(
    data: PairData,
    group: Callable[[str], str],
    category: Callable[[str], str],
    prefix: str = "",
    rows: Sequence[int] | None = None,
) -> list[Entry]:
    """Entries of a set's pairs, or of some rows of them, grouped by their names.

    Raises:
        DataError: the set has faults; a benchmark of a part of it would not be the same benchmark.
    """
    if data.faults:
        raise DataError(f"{data.faults[0]} (`ucn data check` lists all {len(data.faults)} faults)")
    entries = []
    for index in range(len(data)) if rows is None else rows:
        name = data.pair_name(index)
        entries.append(Entry(data, index, prefix + name, group(name), category(name)))
    return entries


def open_hpatches(folder: Path) -> list[Entry]:
    """Sequences of viewpoint, then of illumination, as papers have them."""
    entries = enter(
        open_data("hpatches", folder),
        group=lambda name: "viewpoint" if name.startswith("v_") else "illumination",
        category=lambda name: name.split("/")[0],
    )
    return sorted(entries, key=lambda entry: entry.group, reverse=True)


# Column, reader and options of each set with dense truth.
FLOW_SETS: dict[str, tuple[str, Mapping[str, Option]]] = {
    "Middlebury flow": ("middlebury-flow", {}),
    "Middlebury stereo": ("middlebury-stereo", {}),
    "Sintel clean": ("sintel", {"render_pass": "clean"}),
    "Sintel final": ("sintel", {"render_pass": "final"}),
    "KITTI flow": ("kitti-flow", {}),
}
"""Column of the table to reader and its options, of each set whose truth is dense."""


def open_flow_set(reader: str, folder: Path) -> list[Entry]:
    """One data set, in all its columns."""
    entries = []
    for column, (name, options) in FLOW_SETS.items():
        if name == reader:
            entries += _enter_flow(column, open_data(name, folder, options=options))
    return entries


def _enter_flow(column: str, data: PairData) -> list[Entry]:
    return enter(data, lambda _: column, lambda _: column, prefix=f"{column}/")


def open_motorcycle(_: Path) -> list[Entry]:
    """The shipped pair."""
    return _enter_flow("motorcycle", Motorcycle())


def open_flow(folder: Path) -> list[Entry]:
    """The shipped pair, and every flow set whose folder is the given one or lies in it."""
    return open_motorcycle(folder) + _find_flow_sets(folder, FLOW_SETS)


def open_middlebury(folder: Path) -> list[Entry]:
    """Middlebury's flow and stereo sets, those whose folder is the given one or lies in it."""
    return _find_flow_sets(folder, [column for column in FLOW_SETS if column.startswith("Middlebury")])


def _find_flow_sets(folder: Path, columns: Iterable[str]) -> list[Entry]:
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: expected one that holds the folders of flow sets")
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    entries: list[Entry] = []
    names = []
    for column in columns:
        name, options = FLOW_SETS[column]
        names.append(name)
        found = next((place for place in places if is_root(place, name)), None)
        if found is not None:
            entries += _enter_flow(column, open_data(name, found, options=options))
    if not entries:
        wanted = ", ".join(dict.fromkeys(names))
        likely = [name for name in guess_data(folder) if name not in names]
        hint = f"; it looks like '{likely[0]}'" if likely else ""
        raise DataError(f"no flow set in {folder}: expected it to hold folders of {wanted}{hint}")
    return entries


def is_root(folder: Path, name: str) -> bool:
    """Whether a folder has the layout of a data set."""
    info = find_info(name)
    try:
        find_root(folder, info.markers, info.inside)
    except DataError:
        return False
    return True


def _first_part(name: str) -> str:
    return name.split("/")[0]


def open_cub(folder: Path) -> list[Entry]:
    """The listed pairs of birds."""
    data = open_data("cub", folder, "test", {"list_file": str(CUB_PAIRS)})
    return enter(data, lambda _: "birds", _first_part)


def open_faces(folder: Path) -> list[Entry]:
    """1,000 pairs of faces."""
    data = open_data("faces", folder, "test")
    rows = draw_rows(len(data), 1000)
    return enter(data, lambda _: "faces", lambda _: "face", rows=rows)


def open_willow(folder: Path) -> list[Entry]:
    """All pairs of each sub-class."""
    return enter(open_data("pf-willow", folder, "all"), _first_part, _first_part)


def open_pf_pascal(folder: Path) -> list[Entry]:
    """The pairs of the table that everyone tests on."""
    return enter(open_data("pf-pascal", folder, "test"), _first_part, _first_part)


def open_spair(folder: Path) -> list[Entry]:
    """The listed test pairs; their class stands at the end of their names."""
    data = open_data("spair", folder, "test")
    return enter(data, lambda name: name.rpartition(":")[2], lambda name: name.rpartition(":")[2])


def open_berkeley(folder: Path) -> list[Entry]:
    """100 pairs of each class, or as many as it has."""
    data = open_data("pascal-berkeley", folder, "test")
    return enter(data, _first_part, _first_part, rows=draw_rows_by_class(data, 100))


def open_flowweb(folder: Path) -> list[Entry]:
    """At most 1,000 pairs of each set; several sets may be of one class."""

    def find_class(name: str) -> str:
        return re.sub(r"_set_.*", "", _first_part(name))

    data = open_data("flowweb", folder, "test")
    return enter(data, find_class, find_class, rows=draw_rows_by_class(data, 1000))


def open_own(folder: Path) -> list[Entry]:
    """The user's pairs: those of split test where the list has such, else all; grouped by their classes."""
    data = open_data("own", folder, "all")
    rows = [row for row in range(len(data)) if data.pair_split(row) == "test"] or range(len(data))
    names = {data.pair_name(row): data.pair_class(row) or "pairs" for row in rows}
    return enter(data, names.__getitem__, names.__getitem__, rows=rows)


def open_mini(_: Path) -> list[Entry]:
    """The shipped photographs by kind of change, and the shipped stereo pair."""
    warped = enter(WarpedPictures(), lambda name: name.split("/")[1], _first_part, prefix="mini/")
    return warped + open_motorcycle(Path())


def open_self(_: Path) -> list[Entry]:
    """Single images, turned and enlarged."""
    data = SelfPairs(find_self_images())
    entries = []
    for index in range(len(data)):
        change, name = data.change(index), data.pair_name(index)
        group = f"{change.kind} {change}"
        entries.append(Entry(data, index, name, group, _first_part(name), change.kind, change.value))
    return entries
