"""The pairs of a benchmark: which they are, how they are grouped, and how their images are prepared."""

from __future__ import annotations

import bisect
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ucn.data.catalogue import find_info
from ucn.data.checking import spread
from ucn.data.pairs import PairData
from ucn.data.sets.layout import find_root
from ucn.data.transforms import pad, resize_by, resize_to_fit
from ucn.errors import DataError
from ucn.evaluate.core.cache import digest_data
from ucn.types import PairSample

ALL = "all"
"""The group of all pairs."""

CUB_PAIRS = Path(__file__).with_name("lists") / "cub_test_pairs.csv"
"""2,000 pairs of one class among 1,000 of CUB's test images, two names a line; made by `sample_pair_list`."""

Rectangle = tuple[int, int, int, int]
"""Pixels (left, top, right, bottom), ends excluded."""


@dataclass(frozen=True)
class BenchmarkPair:
    """A pair of a benchmark.

    Attributes:
        data: the data set it belongs to.
        index: its index there.
        name: unique in the benchmark.
        group: the column of the table that it counts in.
        category: its class, for the mean over classes.
        axis: what `value` is, where groups form a curve (rotation, scale); else empty.
        value: the position of its group on that axis.
        part: of which data set it is, as in `ucn.features.trained_on`; empty where nothing is trained on it.
    """

    data: PairData
    index: int
    name: str
    group: str
    category: str
    axis: str = ""
    value: float = 0.0
    part: str = ""

    def read(self) -> PairSample:
        """Reads its images and correspondences."""
        return self.data.read(self.index)

    def image_paths(self) -> tuple[Path, Path]:
        """The files of both images."""
        return self.data.image_paths(self.index)


def find_gap(name: str) -> int:
    """The number of frames between the images of a pair whose name ends in ``FIRST-SECOND``."""
    match = re.search(r"([0-9]+)-([0-9]+)$", name)
    if match is None:
        raise ValueError(f"the name of a pair of frames must end in FIRST-SECOND, got '{name}'")
    return int(match[2]) - int(match[1])


def group_pairs(
    data: PairData,
    group: Callable[[str], str],
    category: Callable[[str], str],
    prefix: str = "",
    rows: Sequence[int] | None = None,
    part: str = "",
) -> list[BenchmarkPair]:
    """The pairs of a data set, grouped by their names.

    Args:
        data: the data set.
        group: from the name of a pair to its group.
        category: from the name of a pair to its class.
        prefix: of the names in the benchmark.
        rows: which pairs; None takes all.
        part: the part of a data set that the pairs are, as in `ucn.features.trained_on`.

    Raises:
        DataError: the set has problems; a benchmark of a part of it would not be the same benchmark.
    """
    refuse_problems(data)
    pairs = []
    for index in range(len(data)) if rows is None else rows:
        name = data.pair_name(index)
        pair = BenchmarkPair(data, index, prefix + name, group(name), category(name), part=part)
        pairs.append(pair)
    return pairs


def refuse_problems(data: PairData) -> None:
    """Raises `DataError` with the first problem of a data set, if it has any."""
    if data.problems:
        raise DataError(f"{data.problems[0]} (`ucn data check` lists all {len(data.problems)} problems)")


def digest_pairs(pairs: Sequence[BenchmarkPair]) -> str:
    """A digest of the names of pairs, and of the names and sizes of their files."""
    return digest_data((pair.name, pair.data.pair_files(pair.index)) for pair in pairs)


def choose_rows(count: int, limit: int | None) -> list[int]:
    """At most `limit` of the rows below `count`, evenly spaced; None takes all."""
    return list(range(count)) if limit is None else spread(count, limit)


def list_groups(pairs: Sequence[BenchmarkPair]) -> dict[str, list[int]]:
    """Rows of the pairs of each group, in the order of their first pairs."""
    groups: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        groups.setdefault(pair.group, []).append(row)
    return groups


def count_pairs(count: int, total: int) -> str:
    """How many pairs were evaluated, for a protocol."""
    text = "1 pair" if count == 1 else f"{count:,} pairs"
    return text if count == total else f"{text} of {total:,}, evenly spread (--limit)"


def is_root(folder: Path, name: str) -> bool:
    """Whether a folder has the layout of a data set."""
    info = find_info(name)
    try:
        find_root(folder, info.markers, info.inside)
    except DataError:
        return False
    return True


def sample_rows(total: int, count: int, seed: int = 0) -> list[int]:
    """`count` of the numbers below `total`, sampled without replacement by a seed, in rising order."""
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:count].tolist())


def sample_rows_by_class(data: PairData, count: int) -> list[int]:
    """`count` pairs of each class, or all where it has fewer, sampled by seed 0, in rising order.

    Each class has a seed of its own, so that a missing class does not change the others.

    Args:
        data: pairs of a class are contiguous, as where any two images of a class are a pair.
        count: of each class.
    """
    rows: list[int] = []
    start = 0
    while start < len(data):
        category = data.pair_class(start)
        # There may be millions of pairs: the end of a class is found by bisection.
        size = bisect.bisect(range(start, len(data)), False, key=lambda row: data.pair_class(row) != category)
        own_seed = int.from_bytes(hashlib.sha256(f"0/{category}".encode()).digest()[:7], "big")
        rows += [start + row for row in sample_rows(size, count, own_seed)]
        start += size
    return rows


def sample_pair_list(data: PairData, count: int, seed: int = 0) -> str:
    """Lines of two names for a semantic data set; pairs and their directions are sampled by a seed.

    Args:
        data: its pairs are named ``NAME0--NAME1``.
        count: how many pairs.
        seed: of the sampling.
    """
    is_swapped = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.5
    lines = []
    for row, swap in zip(sample_rows(len(data), count, seed), is_swapped.tolist(), strict=True):
        name0, name1 = data.pair_name(row).split("--")
        lines.append(f"{name1},{name0}\n" if swap else f"{name0},{name1}\n")
    return "".join(lines)


@dataclass(frozen=True)
class PreparedPair:
    """A pair as all methods get it.

    Attributes:
        sample: images and points.
        content0: image 0 without its padding.
        content1: image 1 without its padding; matches are searched in it only.
    """

    sample: PairSample
    content0: Rectangle
    content1: Rectangle


@dataclass(frozen=True)
class Preparation:
    """How images are resized and padded, the same for each method.

    Attributes:
        canvas_hw: (H, W) that each image is scaled to fit into, centred; None uses none.
        max_side: longest side in pixels to which larger images are reduced; None keeps them.
        use_enlarging: enlarge smaller images to that side too.
        min_side: shortest side in pixels to which narrower images are padded; None pads none.
    """

    canvas_hw: tuple[int, int] | None = None
    max_side: int | None = None
    use_enlarging: bool = False
    min_side: int | None = None

    def describe(self) -> str:
        """What happens, in a sentence."""
        if self.canvas_hw is not None:
            height, width = self.canvas_hw
            return (
                f"every image is scaled to fit into {width} × {height} and padded to it, for all methods; "
                "matches are searched in the image, not in the padding; pixels are those of that canvas"
            )
        if self.max_side is None:
            scaled = "images at their own size"
        elif self.use_enlarging:
            scaled = f"images are scaled to a longest side of {self.max_side} px"
        else:
            scaled = f"images with a longer side than {self.max_side} px are reduced to it"
        if self.min_side is None:
            return scaled
        return f"{scaled}; sides under {self.min_side} px are padded to it, and padding is not searched"

    def to_dict(self) -> dict[str, Any]:
        """What a prediction depends on."""
        canvas = None if self.canvas_hw is None else list(self.canvas_hw)
        key: dict[str, Any] = {"canvas_hw": canvas, "max_side": self.max_side}
        # Left out where they change nothing, so that older predictions keep their keys.
        if self.use_enlarging:
            key["use_enlarging"] = True
        if self.min_side is not None:
            key["min_side"] = self.min_side
        return key

    def apply(self, sample: PairSample) -> PreparedPair:
        """Resizes and pads a pair; its points move along."""
        if self.max_side is not None:
            largest = float("inf") if self.use_enlarging else 1.0
            scales = [
                min(largest, self.max_side / max(image.shape[-2:]))
                for image in (sample.image0, sample.image1)
            ]
            sample = resize_by(sample, scales[0], scales[1])
        if self.canvas_hw is not None:
            return _put_on_canvas(resize_to_fit(sample, self.canvas_hw), self.canvas_hw)
        sides = [*sample.image0.shape[-2:], *sample.image1.shape[-2:]]
        if self.min_side is None or min(sides) >= self.min_side:
            return PreparedPair(sample, _whole(sample.image0), _whole(sample.image1))
        height, width = (max(self.min_side, *sides[axis::2]) for axis in (0, 1))
        return _put_on_canvas(sample, (height, width))


ORIGINAL_SIZE = Preparation()
"""Images at their own size."""


def is_inside_content(points: Tensor, content: Rectangle) -> Tensor:
    """Bool (N,): which points (N, 2) lie in an image without its padding."""
    left, top, right, bottom = content
    low, high = points.new_tensor([left, top]) - 0.5, points.new_tensor([right, bottom]) - 0.5
    return ((points >= low) & (points <= high)).all(dim=1)


def _put_on_canvas(sample: PairSample, canvas_hw: tuple[int, int]) -> PreparedPair:
    content0, content1 = (_centre(image, canvas_hw) for image in (sample.image0, sample.image1))
    return PreparedPair(pad(sample, canvas_hw), content0, content1)


def _whole(image: Tensor) -> Rectangle:
    return 0, 0, image.shape[-1], image.shape[-2]


def _centre(image: Tensor, canvas_hw: tuple[int, int]) -> Rectangle:
    """Where `pad` puts an image."""
    height, width = image.shape[-2:]
    left, top = -((width - canvas_hw[1]) // 2), -((height - canvas_hw[0]) // 2)
    return left, top, left + width, top + height
