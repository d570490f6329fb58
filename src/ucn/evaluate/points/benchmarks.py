"""Which benchmarks there are: their pairs, how images are shown, what is asked, and what counts as right."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ucn.data.catalogue import find_info
from ucn.errors import ConfigError
from ucn.evaluate.core import benchmark_pairs as openers
from ucn.evaluate.core.benchmark_pairs import FLOW_SETS
from ucn.evaluate.core.benchmark_pairs import Entry as Entry
from ucn.evaluate.core.metrics import Average
from ucn.evaluate.core.preparation import AS_THEY_ARE, Preparation
from ucn.nn import MIN_SIDE

Unit = Literal["px", "alpha"]
"""What a limit is: pixels, or a share alpha of the length L of each pair."""


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
        shown_limit: the limit at which tables of very many groups show them; None shows the last.
        adapt: what the protocol becomes for certain pairs; None leaves it as it is.
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
    shown_limit: float | None = None
    adapt: Callable[[Benchmark, Sequence[Entry]], Benchmark] | None = None

    @property
    def main_limit(self) -> float:
        """The limit that stands for all where there is room for one."""
        return self.limits[-1] if self.shown_limit is None else self.shown_limit

    def to_dict(self, seed: int) -> dict[str, Any]:
        """What its predictions depend on, beside the data and the method."""
        shown = self.preparation.to_dict()
        return {"benchmark": self.name, "preparation": shown, "points": self.points, "seed": seed}


_PIXELS = (3.0, 5.0, 10.0)
_PIXEL_CURVE = tuple(float(limit) for limit in range(1, 31))
_ALPHAS = (0.025, 0.05, 0.1)
_ALPHA_CURVE = tuple(round(0.005 * step, 3) for step in range(1, 41))
_VISIBLE = "pixels of image 0 whose partner in image 1 is known and seen"
_LONGEST = "the longest side of image 1, max(w, h)"
# Objects cut out of photographs, some of them tiny.
_OBJECTS = Preparation(max_side=160, use_enlarging=True, min_side=MIN_SIDE)
_CANVAS = Preparation(canvas_hw=(480, 640))


def _adapt_own(benchmark: Benchmark, entries: Sequence[Entry]) -> Benchmark:
    """Limits relative to lengths where the user gives lengths; the first pair tells."""
    sample = entries[0].data.read(entries[0].index)
    if sample.pck_length is None:
        return benchmark
    return replace(
        benchmark,
        unit="alpha",
        limits=_ALPHAS,
        curve_limits=_ALPHA_CURVE,
        length="the pck_length of each pair",
    )


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
        open=openers.open_hpatches,
        preparation=_CANVAS,
        points=1000,
        limits=_PIXELS,
        curve_limits=_PIXEL_CURVE,
    ),
    _flow_benchmark(
        "flow", "every flow and stereo set found in the folder, and the shipped pair", openers.open_flow
    ),
    *(
        _flow_benchmark(name, find_info(name).title, partial(openers.open_flow_set, name))
        for name in dict.fromkeys(name for name, _ in FLOW_SETS.values())
    ),
    _flow_benchmark(
        "middlebury", "Middlebury's flow and stereo sets found in the folder", openers.open_middlebury
    ),
    _flow_benchmark("motorcycle", "the shipped stereo pair (Middlebury 2014)", openers.open_motorcycle),
    Benchmark(
        name="cub",
        title="Caltech-UCSD Birds-200-2011, test images, listed pairs of one class",
        truth="parts visible in both images",
        open=openers.open_cub,
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
        open=openers.open_faces,
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
        open=openers.open_willow,
        limits=(0.05, 0.1, 0.15),
        curve_limits=_ALPHA_CURVE,
        unit="alpha",
        length="the longer side of the box round the points of image 1",
    ),
    Benchmark(
        name="pf-pascal",
        title="PF-PASCAL, the pairs of test_pairs.csv",
        truth="points of the object seen in both images",
        open=openers.open_pf_pascal,
        preparation=Preparation(max_side=256, min_side=MIN_SIDE),
        limits=(0.05, 0.1, 0.15),
        curve_limits=_ALPHA_CURVE,
        unit="alpha",
        length="the longest side of image 1",
        headline="pair",
        shown_limit=0.1,
    ),
    Benchmark(
        name="spair",
        title="SPair-71k, its test pairs",
        truth="points of the object seen in both images",
        open=openers.open_spair,
        preparation=Preparation(max_side=256, min_side=MIN_SIDE),
        limits=(0.05, 0.1, 0.15),
        curve_limits=_ALPHA_CURVE,
        unit="alpha",
        length="the longer side of the object's box in image 1",
        headline="pair",
        shown_limit=0.1,
    ),
    Benchmark(
        name="pascal-berkeley",
        title="PASCAL VOC 2011 with Berkeley's keypoints, 20 classes, objects cut out, a fifth of the "
        "images, 100 pairs of each class drawn by seed 0",
        truth="parts of the object seen in both images",
        open=openers.open_berkeley,
        preparation=_OBJECTS,
        limits=_ALPHAS,
        curve_limits=_ALPHA_CURVE,
        unit="alpha",
        length=_LONGEST,
    ),
    Benchmark(
        name="flowweb",
        title="FlowWeb's 12 rigid PASCAL classes, the last fifth of each set by name",
        truth="parts of the object seen in both images",
        open=openers.open_flowweb,
        preparation=_OBJECTS,
        limits=_ALPHAS,
        curve_limits=_ALPHA_CURVE,
        unit="alpha",
        length=_LONGEST,
        shown_limit=0.05,
    ),
    Benchmark(
        name="own",
        title="your own pairs: those of split test where the list has such, else all",
        truth="your points",
        open=openers.open_own,
        preparation=Preparation(min_side=MIN_SIDE),
        limits=_PIXELS,
        curve_limits=_PIXEL_CURVE,
        adapt=_adapt_own,
    ),
    Benchmark(
        name="mini",
        title="what ships with the package: three photographs under homographies and changes of light, and "
        "the stereo pair",
        truth=_VISIBLE,
        open=openers.open_mini,
        needs_folder=False,
        preparation=Preparation(max_side=320),
        points=500,
        limits=_PIXELS,
        curve_limits=_PIXEL_CURVE,
    ),
    Benchmark(
        name="self",
        title="single images of 640 × 480 against themselves, turned or enlarged about their centre",
        truth="pixels of the image that are seen in its changed copy",
        open=openers.open_self,
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
