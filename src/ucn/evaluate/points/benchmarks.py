"""The benchmarks of given points: their pairs, how images are prepared, and the limits of a correct match."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ucn.data.bundled import Motorcycle, SelfPairs, WarpedImages, find_self_images
from ucn.data.catalogue import Option, find_info, guess_data, open_data
from ucn.data.pairs import PairData
from ucn.data.sets.own.images import OwnImages
from ucn.errors import ConfigError, DataError
from ucn.evaluate.core.benchmark_pairs import (
    CUB_PAIRS,
    ORIGINAL_SIZE,
    BenchmarkPair,
    Preparation,
    group_pairs,
    is_root,
    sample_rows,
    sample_rows_by_class,
)
from ucn.evaluate.core.metrics import Average
from ucn.evaluate.points.multiview import MAX_PAIRS, MIN_SHARED, open_multiview
from ucn.files.reading import hash_file
from ucn.files.suggestions import suggest
from ucn.nn import MIN_SIDE

CUB_LIMIT = 2000
"""The most pairs of CUB, of a list of the user's."""
OWN_PAIRS = 1000
"""The most pairs of a class of your own images."""
Unit = Literal["px", "alpha"]
"""The unit of limits: pixels, or a share alpha of the length L of each pair."""
PIXEL_CURVE = tuple(float(limit) for limit in range(1, 31))
"""Limits of curves in pixels."""

_PIXELS = (3.0, 5.0, 10.0)
_ALPHAS = (0.025, 0.05, 0.1)
_ALPHA_CURVE = tuple(round(0.005 * step, 3) for step in range(1, 41))


@dataclass(frozen=True)
class Benchmark:
    """A benchmark and its protocol.

    Attributes:
        name: what the command line calls it.
        title: its data.
        ground_truth: which points are given, and where their correspondences come from.
        open: from the user's folder to its pairs; bundled ones ignore the folder.
        limits: distances within which a point counts as found.
        curve_limits: limits of the curves in plots.
        needs_folder: whether the user must give a folder.
        preparation: how images are resized and padded.
        points: how many of a pair's correspondences are sampled; None takes all.
        unit: of all limits.
        length: what L is, where the unit is alpha.
        headline: the average that tables show.
        shown_limit: the limit at which tables with very many groups show them; None shows the last.
        adapt: adapts the protocol to the pairs; None keeps it.
        open_scenes: as `open`, but only the named scenes of the folder; None where data has no scenes.
        open_subset: as `open`, but the images or pairs of a list file; None where data has none.
        open_split: as `open`, but one split of each set; None where the benchmark has no choice of splits.
    """

    name: str
    title: str
    ground_truth: str
    open: Callable[[Path], list[BenchmarkPair]]
    limits: tuple[float, ...] = _PIXELS
    curve_limits: tuple[float, ...] = PIXEL_CURVE
    needs_folder: bool = True
    preparation: Preparation = ORIGINAL_SIZE
    points: int | None = None
    unit: Unit = "px"
    length: str = ""
    headline: Average = "point"
    shown_limit: float | None = None
    adapt: Callable[[Benchmark, Sequence[BenchmarkPair]], Benchmark] | None = None
    open_scenes: Callable[[Path, Sequence[str]], list[BenchmarkPair]] | None = None
    open_subset: Callable[[Path, Path], list[BenchmarkPair]] | None = None
    open_split: Callable[[Path, str], list[BenchmarkPair]] | None = None

    @property
    def main_limit(self) -> float:
        """The limit that is shown where only one fits."""
        return self.limits[-1] if self.shown_limit is None else self.shown_limit

    def select(self, scenes: Sequence[str]) -> Benchmark:
        """The benchmark on some scenes of its folder.

        Raises:
            ConfigError: its data has no scenes.
        """
        if self.open_scenes is None:
            raise ConfigError(f"{self.name} has no scenes to choose from; leave them out")
        opener = partial(_open_scenes, self.open_scenes, tuple(scenes))
        return replace(self, title=f"{self.title}; only the scenes {', '.join(scenes)}", open=opener)

    def with_subset(self, list_file: Path) -> Benchmark:
        """The benchmark on the images or pairs of a list file.

        Raises:
            ConfigError: it takes no such list.
        """
        if self.open_subset is None:
            raise ConfigError(f"{self.name} takes no list of its images; leave the subset out")
        opener = partial(_open_subset, self.open_subset, list_file)
        digest = hash_file(list_file)[:16] if list_file.is_file() else "missing"
        title = f"{self.title.partition(', listed')[0]}, those of {list_file.name} (sha256 {digest})"
        return replace(self, title=title, open=opener)

    def with_split(self, split: str) -> Benchmark:
        """The benchmark on one split.

        Raises:
            ConfigError: it has no choice, or no such split.
        """
        if self.open_split is None:
            raise ConfigError(f"{self.name} has no choice of splits; leave the split out")
        if split not in FLOW_SPLITS:
            hint = suggest(split, FLOW_SPLITS)
            raise ConfigError(f"no split '{split[:80]}'{hint} (there are {', '.join(FLOW_SPLITS)})")
        return replace(self, open=partial(_open_split, self.open_split, split))

    def to_dict(self, seed: int) -> dict[str, Any]:
        """What its predictions depend on, beside the data and the method."""
        prepared = self.preparation.to_dict()
        return {"benchmark": self.name, "preparation": prepared, "points": self.points, "seed": seed}


def _open_scenes(
    opener: Callable[[Path, Sequence[str]], list[BenchmarkPair]], scenes: Sequence[str], folder: Path
) -> list[BenchmarkPair]:
    return opener(folder, scenes)


def _open_subset(
    opener: Callable[[Path, Path], list[BenchmarkPair]], list_file: Path, folder: Path
) -> list[BenchmarkPair]:
    return opener(folder, list_file)


def _open_split(
    opener: Callable[[Path, str], list[BenchmarkPair]], split: str, folder: Path
) -> list[BenchmarkPair]:
    return opener(folder, split)


def _open_hpatches(folder: Path) -> list[BenchmarkPair]:
    """Viewpoint sequences, then illumination sequences, as in papers."""
    pairs = group_pairs(
        open_data("hpatches", folder),
        group=lambda name: "viewpoint" if name.startswith("v_") else "illumination",
        category=_first_part,
        part="hpatches all",
    )
    return sorted(pairs, key=lambda pair: pair.group, reverse=True)


def _first_part(name: str) -> str:
    return name.split("/")[0]


FLOW_SETS: dict[str, tuple[str, Mapping[str, Option]]] = {
    "Middlebury flow": ("middlebury-flow", {}),
    "Middlebury stereo": ("middlebury-stereo", {}),
    "Sintel clean": ("sintel", {"render_pass": "clean"}),
    "Sintel final": ("sintel", {"render_pass": "final"}),
    "KITTI flow": ("kitti-flow", {}),
}
"""Column of the table to reader and its options, for each data set with dense ground truth."""


FLOW_SPLITS = ("held-out", "val", "train", "training")
"""Splits of KITTI flow and Sintel: val is what recipes do not train on, training is both; held-out is val, or
all pairs of a folder that has none of it."""


def _open_flow_set(reader: str, folder: Path, split: str = FLOW_SPLITS[0]) -> list[BenchmarkPair]:
    """One data set, in all its columns."""
    pairs = []
    for column, (name, options) in FLOW_SETS.items():
        if name == reader:
            pairs += _open_column(column, name, folder, options, split)
    return pairs


def _open_column(
    column: str, name: str, folder: Path, options: Mapping[str, Option], split: str
) -> list[BenchmarkPair]:
    """The pairs of a set in one column; sets without splits have all of them."""
    splits = find_info(name).splits
    if "val" not in splits:
        return _group_flow(column, open_data(name, folder, options=options), f"{name} {splits[0]}")
    if split == FLOW_SPLITS[0]:
        try:
            return _group_flow(column, open_data(name, folder, "val", options), f"{name} val")
        except DataError as error:
            if "is empty" not in str(error):
                raise
            split = "training"
    return _group_flow(column, open_data(name, folder, split, options), f"{name} {split}")


def _group_flow(column: str, data: PairData, part: str = "") -> list[BenchmarkPair]:
    return group_pairs(data, lambda _: column, lambda _: column, prefix=f"{column}/", part=part)


def _open_motorcycle(_: Path) -> list[BenchmarkPair]:
    return _group_flow("motorcycle", Motorcycle())


def _open_flow(folder: Path, split: str = FLOW_SPLITS[0]) -> list[BenchmarkPair]:
    """The shipped pair, and every flow set whose folder is the given one or is in it."""
    return _open_motorcycle(folder) + _find_flow_sets(folder, FLOW_SETS, split)


def _open_middlebury(folder: Path) -> list[BenchmarkPair]:
    columns = [column for column in FLOW_SETS if column.startswith("Middlebury")]
    return _find_flow_sets(folder, columns, FLOW_SPLITS[0])


def _find_flow_sets(folder: Path, columns: Iterable[str], split: str) -> list[BenchmarkPair]:
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: expected one that holds the folders of flow sets")
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    pairs: list[BenchmarkPair] = []
    names = []
    for column in columns:
        name, options = FLOW_SETS[column]
        names.append(name)
        found = next((place for place in places if is_root(place, name)), None)
        if found is not None:
            pairs += _open_column(column, name, found, options, split)
    if not pairs:
        expected = ", ".join(dict.fromkeys(names))
        likely = [name for name in guess_data(folder) if name not in names]
        hint = f"; it looks like '{likely[0]}'" if likely else ""
        raise DataError(f"no flow set in {folder}: expected it to hold folders of {expected}{hint}")
    return pairs


def _open_cub(folder: Path, list_file: Path = CUB_PAIRS) -> list[BenchmarkPair]:
    """Listed pairs; of a list of single images, up to `CUB_LIMIT` pairs of one class."""
    data = open_data("cub", folder, "test", {"list_file": str(list_file.resolve())})
    rows = sample_rows(len(data), CUB_LIMIT) if len(data) > CUB_LIMIT else None
    return group_pairs(data, lambda _: "birds", _first_part, rows=rows, part="cub test")


def _open_faces(folder: Path) -> list[BenchmarkPair]:
    data = open_data("faces", folder, "test")
    rows = sample_rows(len(data), 1000)
    return group_pairs(data, lambda _: "faces", lambda _: "face", rows=rows, part="faces test")


def _open_classes(reader: str, split: str, folder: Path) -> list[BenchmarkPair]:
    """All pairs of a split, grouped by class: the first part of their names."""
    data = open_data(reader, folder, split)
    return group_pairs(data, _first_part, _first_part, part=f"{reader} {split}")


def _open_spair(folder: Path) -> list[BenchmarkPair]:
    """The listed test pairs; the class is at the end of their names."""

    def find_class(name: str) -> str:
        return name.rpartition(":")[2]

    return group_pairs(open_data("spair", folder, "test"), find_class, find_class, part="spair test")


def _open_berkeley(folder: Path) -> list[BenchmarkPair]:
    """100 pairs of each class, or all where it has fewer."""
    data = open_data("pascal-berkeley", folder, "test")
    rows = sample_rows_by_class(data, 100)
    return group_pairs(data, _first_part, _first_part, rows=rows, part="pascal-berkeley test")


def _open_flowweb(folder: Path) -> list[BenchmarkPair]:
    """At most 1,000 pairs of each set; several sets may be of one class."""

    def find_class(name: str) -> str:
        return re.sub(r"_set_.*", "", _first_part(name))

    data = open_data("flowweb", folder, "test")
    rows = sample_rows_by_class(data, 1000)
    return group_pairs(data, find_class, find_class, rows=rows, part="flowweb test")


def _open_own(folder: Path) -> list[BenchmarkPair]:
    """The user's pairs, grouped by class: those of split test if there are any, else all."""
    data = open_data("own", folder, "all")
    rows: Sequence[int]
    if isinstance(data, OwnImages):
        if "test" in data.list_splits():
            data = open_data("own", folder, "test")
        rows = sample_rows_by_class(data, OWN_PAIRS)
    else:
        rows = [row for row in range(len(data)) if data.pair_split(row) == "test"] or range(len(data))
    names = {data.pair_name(row): data.pair_class(row) or "pairs" for row in rows}
    return group_pairs(data, names.__getitem__, names.__getitem__, rows=rows)


def _open_mini(_: Path) -> list[BenchmarkPair]:
    """The shipped photographs by kind of change, and the shipped stereo pair."""
    warped = group_pairs(WarpedImages(), lambda name: name.split("/")[1], _first_part, prefix="mini/")
    return warped + _open_motorcycle(Path())


def _open_self(_: Path) -> list[BenchmarkPair]:
    """Single images, rotated and enlarged."""
    data = SelfPairs(find_self_images())
    pairs = []
    for index in range(len(data)):
        change, name = data.change(index), data.pair_name(index)
        group = f"{change.kind} {change}"
        pairs.append(BenchmarkPair(data, index, name, group, _first_part(name), change.kind, change.value))
    return pairs


_VISIBLE = "pixels of image 0 whose correspondence in image 1 is known and visible"
_LONGEST = "the longest side of image 1, max(w, h)"
# Objects cut out of photographs, some of them tiny.
_OBJECTS = Preparation(max_side=160, use_enlarging=True, min_side=MIN_SIDE)
_CANVAS = Preparation(canvas_hw=(480, 640))


def _adapt_own(benchmark: Benchmark, pairs: Sequence[BenchmarkPair]) -> Benchmark:
    """Limits relative to lengths where the first pair has one."""
    sample = pairs[0].read()
    if sample.pck_length is None:
        return benchmark
    limits: dict[str, Any] = {"unit": "alpha", "limits": _ALPHAS, "curve_limits": _ALPHA_CURVE}
    return replace(benchmark, **limits, length="the pck_length of each pair")


def _flow_benchmark(
    name: str, title: str, opener: Callable[..., list[BenchmarkPair]], *, has_splits: bool = False
) -> Benchmark:
    return Benchmark(
        name=name,
        title=title,
        ground_truth=_VISIBLE,
        open=opener,
        needs_folder=name != "motorcycle",
        points=2000,
        open_split=opener if has_splits else None,
    )


_alpha = partial(Benchmark, unit="alpha", limits=_ALPHAS, curve_limits=_ALPHA_CURVE)
# As in the papers on these data sets.
_COARSE_ALPHAS = (0.05, 0.1, 0.15)

_LIST = (
    Benchmark(
        name="hpatches",
        title="HPatches sequences, image 1 against each of images 2 to 6",
        ground_truth="pixels of image 1 that the homography takes onto the other image",
        open=_open_hpatches,
        preparation=_CANVAS,
        points=1000,
    ),
    Benchmark(
        name="multiview",
        title=f"scenes with COLMAP reconstructions: pairs of images that share at least {MIN_SHARED} 3D "
        f"points, grouped by the median triangulation angle; up to {MAX_PAIRS} pairs a group, spread evenly "
        "over the scenes, sampled by seed 0",
        ground_truth="keypoints of image 0 whose 3D point image 1 observes, too",
        open=open_multiview,
        open_scenes=open_multiview,
        preparation=Preparation(max_side=640, min_side=MIN_SIDE),
        points=500,
    ),
    _flow_benchmark(
        "flow",
        "every flow and stereo set found in the folder, and the bundled pair",
        _open_flow,
        has_splits=True,
    ),
    *(
        _flow_benchmark(
            name,
            find_info(name).title,
            partial(_open_flow_set, name),
            has_splits="val" in find_info(name).splits,
        )
        for name in dict.fromkeys(name for name, _ in FLOW_SETS.values())
    ),
    _flow_benchmark("middlebury", "Middlebury's flow and stereo sets found in the folder", _open_middlebury),
    _flow_benchmark("motorcycle", "the bundled stereo pair (Middlebury 2014)", _open_motorcycle),
    _alpha(
        name="cub",
        title="Caltech-UCSD Birds-200-2011, test images, listed pairs of one class",
        ground_truth="parts visible in both images",
        open=_open_cub,
        open_subset=_open_cub,
        preparation=Preparation(max_side=160),
        length="the diagonal of image 1",
    ),
    _alpha(
        name="faces",
        title="faces with 68 points (300-W scheme), the last fifth by name, 1,000 pairs sampled by seed 0",
        ground_truth="68 points of the face",
        open=_open_faces,
        preparation=Preparation(max_side=256),
        length="the distance of the outer corners of the eyes in image 1",
    ),
    _alpha(
        name="pf-willow",
        title="PF-WILLOW, all pairs of each sub-class, in one direction",
        ground_truth="10 points of the object",
        open=partial(_open_classes, "pf-willow", "all"),
        limits=_COARSE_ALPHAS,
        length="the longer side of the bounding box of the points of image 1",
    ),
    _alpha(
        name="pf-pascal",
        title="PF-PASCAL, the pairs of test_pairs.csv",
        ground_truth="points of the object visible in both images",
        open=partial(_open_classes, "pf-pascal", "test"),
        preparation=Preparation(max_side=256, min_side=MIN_SIDE),
        limits=_COARSE_ALPHAS,
        length="the longest side of image 1",
        headline="pair",
        shown_limit=0.1,
    ),
    _alpha(
        name="spair",
        title="SPair-71k, its test pairs",
        ground_truth="points of the object visible in both images",
        open=_open_spair,
        preparation=Preparation(max_side=256, min_side=MIN_SIDE),
        limits=_COARSE_ALPHAS,
        length="the longer side of the object's box in image 1",
        headline="pair",
        shown_limit=0.1,
    ),
    _alpha(
        name="pascal-berkeley",
        title="PASCAL VOC 2011 with Berkeley's keypoints, 20 classes, objects cut out, a fifth of the "
        "images, 100 pairs of each class sampled by seed 0",
        ground_truth="parts of the object visible in both images",
        open=_open_berkeley,
        preparation=_OBJECTS,
        length=_LONGEST,
    ),
    _alpha(
        name="flowweb",
        title="FlowWeb's 12 rigid PASCAL classes, the last fifth of each set by name",
        ground_truth="parts of the object visible in both images",
        open=_open_flowweb,
        preparation=_OBJECTS,
        length=_LONGEST,
        shown_limit=0.05,
    ),
    Benchmark(
        name="own",
        title="your own pairs: those of split test if the list has any, else all; of images with points, up "
        f"to {OWN_PAIRS:,} pairs of each class, sampled by seed 0",
        ground_truth="your points",
        open=_open_own,
        preparation=Preparation(min_side=MIN_SIDE),
        adapt=_adapt_own,
    ),
    Benchmark(
        name="mini",
        title="shipped with the package: three photographs under homographies and illumination changes, "
        "and the stereo pair",
        ground_truth=_VISIBLE,
        open=_open_mini,
        needs_folder=False,
        preparation=Preparation(max_side=320),
        points=500,
    ),
    Benchmark(
        name="self",
        title="single images of 640 × 480 against themselves, rotated or enlarged about their centre",
        ground_truth="pixels of the image that are visible in its changed copy",
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
        hint = suggest(name, BENCHMARKS)
        raise ConfigError(f"no benchmark '{name[:80]}'{hint} (there are {', '.join(BENCHMARKS)})")
    return BENCHMARKS[name]
