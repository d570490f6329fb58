"""Which benchmarks there are: their pairs, how images are shown, what is asked, and what counts as right."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ucn.data.catalogue import Option, find_info, open_data
from ucn.data.pairs import PairData
from ucn.data.sets.layout import find_root
from ucn.errors import ConfigError, DataError
from ucn.evaluate.bundled import Motorcycle, SelfPairs, find_self_images
from ucn.evaluate.metrics import Average
from ucn.evaluate.pair_lists import CUB_PAIRS, draw_rows
from ucn.evaluate.preparation import AS_THEY_ARE, Preparation

Unit = Literal["px", "alpha"]
"""What a limit is: pixels, or a share alpha of the length L of each pair."""


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


@dataclass(frozen=True)
class Benchmark:
    """A benchmark and its protocol.

    Attributes:
        name: how the command line calls it.
        title: its data.
        truth: what is asked for and counts as truth.
        open: from the user's folder to its pairs; bundled ones ignore the folder.
        needs_folder: whether the user must give one.
        preparation: how images are shown.
        points: how many of a pair's correspondences are drawn; None asks for all.
        limits: within which a point counts as found.
        curve_limits: limits of the curve that is drawn.
        unit: of all limits.
        length: what L is, where the unit is alpha.
        headline: the average that tables show.
    """

    name: str
    title: str
    truth: str
    open: Callable[[Path], list[Entry]]
    limits: tuple[float, ...]
    curve_limits: tuple[float, ...]
    needs_folder: bool = True
    preparation: Preparation = AS_THEY_ARE
    points: int | None = None
    unit: Unit = "px"
    length: str = ""
    headline: Average = "point"

    def to_dict(self, seed: int) -> dict[str, Any]:
        """What its predictions depend on, beside the data and the method."""
        shown = self.preparation.to_dict()
        return {"benchmark": self.name, "preparation": shown, "points": self.points, "seed": seed}


def _enter(
    data: PairData,
    group: Callable[[str], str],
    category: Callable[[str], str],
    prefix: str = "",
    rows: list[int] | None = None,
) -> list[Entry]:
    """Entries of a set's pairs, or of some rows of them, grouped by their names."""
    if data.faults:
        raise DataError(f"{data.faults[0]} (`ucn data check` lists all {len(data.faults)} faults)")
    entries = []
    for index in range(len(data)) if rows is None else rows:
        name = data.pair_name(index)
        entries.append(Entry(data, index, prefix + name, group(name), category(name)))
    return entries


def _open_hpatches(folder: Path) -> list[Entry]:
    entries = _enter(
        open_data("hpatches", folder),
        group=lambda name: "viewpoint" if name.startswith("v_") else "illumination",
        category=lambda name: name.split("/")[0],
    )
    return sorted(entries, key=lambda entry: entry.group, reverse=True)  # viewpoint first, as in papers


# Column, reader and options of each set with dense truth.
_FLOW_SETS: dict[str, tuple[str, Mapping[str, Option]]] = {
    "Middlebury flow": ("middlebury-flow", {}),
    "Middlebury stereo": ("middlebury-stereo", {}),
    "Sintel clean": ("sintel", {"render_pass": "clean"}),
    "Sintel final": ("sintel", {"render_pass": "final"}),
    "KITTI flow": ("kitti-flow", {}),
}


def _open_flow_set(reader: str) -> Callable[[Path], list[Entry]]:
    """Opens one data set, in all its columns."""

    def open_set(folder: Path) -> list[Entry]:
        entries = []
        for column, (name, options) in _FLOW_SETS.items():
            if name == reader:
                entries += _enter_flow(column, open_data(name, folder, options=options))
        return entries

    return open_set


def _enter_flow(column: str, data: PairData) -> list[Entry]:
    return _enter(data, lambda _: column, lambda _: column, prefix=f"{column}/")


def _open_motorcycle(_: Path) -> list[Entry]:
    return _enter_flow("motorcycle", Motorcycle())


def _open_flow(folder: Path) -> list[Entry]:
    """Every flow set whose folder is the given one or lies in it, and the shipped pair."""
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: expected one that holds the folders of flow sets")
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    entries = _open_motorcycle(folder)
    for column, (name, options) in _FLOW_SETS.items():
        found = next((place for place in places if _is_root(place, name)), None)
        if found is not None:
            entries += _enter_flow(column, open_data(name, found, options=options))
    if len(entries) == 1:
        names = ", ".join(dict.fromkeys(name for name, _ in _FLOW_SETS.values()))
        raise DataError(f"no flow set in {folder}: expected it to hold folders of {names}")
    return entries


def _is_root(folder: Path, name: str) -> bool:
    info = find_info(name)
    try:
        find_root(folder, info.markers, info.inside)
    except DataError:
        return False
    return True


def _open_cub(folder: Path) -> list[Entry]:
    data = open_data("cub", folder, "test", {"list_file": str(CUB_PAIRS)})
    return _enter(data, lambda _: "birds", lambda name: name.split("/")[0])


def _open_faces(folder: Path) -> list[Entry]:
    data = open_data("faces", folder, "test")
    rows = draw_rows(len(data), 1000)
    return _enter(data, lambda _: "faces", lambda _: "face", rows=rows)


def _open_willow(folder: Path) -> list[Entry]:
    data = open_data("pf-willow", folder, "all")
    return _enter(data, lambda name: name.split("/")[0], lambda name: name.split("/")[0])


def _open_self(_: Path) -> list[Entry]:
    data = SelfPairs(find_self_images())
    entries = []
    for index in range(len(data)):
        change, name = data.change(index), data.pair_name(index)
        group = f"{change.kind} {change}"
        image = name.split("/")[0]
        entries.append(Entry(data, index, name, group, image, change.kind, change.value))
    return entries


_PIXELS = (3.0, 5.0, 10.0)
_PIXEL_CURVE = tuple(float(limit) for limit in range(1, 31))
_ALPHAS = (0.025, 0.05, 0.1)
_ALPHA_CURVE = tuple(round(0.005 * step, 3) for step in range(1, 41))
_VISIBLE = "pixels of image 0 whose partner in image 1 is known and seen"
_CANVAS = Preparation(canvas_hw=(480, 640))


def _flow_benchmark(name: str, title: str, opener: Callable[[Path], list[Entry]]) -> Benchmark:
    return Benchmark(
        name=name,
        title=title,
        truth=_VISIBLE,
        open=opener,
        needs_folder=name != "motorcycle",
        points=2000,
        limits=_PIXELS,
        curve_limits=_PIXEL_CURVE,
    )


_LIST = (
    Benchmark(
        name="hpatches",
        title="HPatches sequences, image 1 against each of images 2 to 6",
        truth="pixels of image 1 that the homography takes onto the other image",
        open=_open_hpatches,
        preparation=_CANVAS,
        points=1000,
        limits=_PIXELS,
        curve_limits=_PIXEL_CURVE,
    ),
    _flow_benchmark(
        "flow", "every flow and stereo set found in the folder, and the shipped pair", _open_flow
    ),
    *(
        _flow_benchmark(name, find_info(name).title, _open_flow_set(name))
        for name in dict.fromkeys(name for name, _ in _FLOW_SETS.values())
    ),
    _flow_benchmark("motorcycle", "the shipped stereo pair (Middlebury 2014)", _open_motorcycle),
    Benchmark(
        name="cub",
        title="Caltech-UCSD Birds-200-2011, test images, listed pairs of one class",
        truth="parts visible in both images",
        open=_open_cub,
        preparation=Preparation(max_side=160),
        limits=_ALPHAS,
        curve_limits=_ALPHA_CURVE,
        unit="alpha",
        length="the diagonal of image 1",
    ),
    Benchmark(
        name="faces",
        title="faces with 68 points (300-W scheme), the last fifth by name, 1,000 pairs drawn by seed 0",
        truth="68 points of the face",
        open=_open_faces,
        preparation=Preparation(max_side=256),
        limits=_ALPHAS,
        curve_limits=_ALPHA_CURVE,
        unit="alpha",
        length="the distance of the outer corners of the eyes in image 1",
    ),
    Benchmark(
        name="pf-willow",
        title="PF-WILLOW, all pairs of each sub-class, one way",
        truth="10 points of the object",
        open=_open_willow,
        limits=(0.05, 0.1, 0.15),
        curve_limits=_ALPHA_CURVE,
        unit="alpha",
        length="the longer side of the box round the points of image 1",
    ),
    Benchmark(
        name="self",
        title="single images of 640 × 480 against themselves, turned or enlarged about their centre",
        truth="pixels of the image that are seen in its changed copy",
        open=_open_self,
        needs_folder=False,
        points=1000,
        limits=(5.0,),
        curve_limits=(),
    ),
)

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _LIST}
"""Every benchmark by name."""


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of a name; raises `ConfigError`, naming all, where there is none."""
    if name not in BENCHMARKS:
        close = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"no benchmark '{name[:80]}'{hint} (there are {', '.join(BENCHMARKS)})")
    return BENCHMARKS[name]
