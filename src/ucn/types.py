"""The values that rooms of the house hand to each other.

Points are ``(x, y)`` in pixels with the centre of the top-left pixel at (0, 0); sizes are ``(height, width)``
and end in ``_hw``. `geometry.coords` owns those conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    import PIL.Image

    ImageLike = str | Path | PIL.Image.Image | NDArray[np.uint8] | Tensor
else:
    ImageLike = Any

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class FeatureMap:
    """Unit descriptors on a regular grid of cells.

    Attributes:
        features: (B, D, h, w), of unit length along D.
        stride: pixels between neighbouring cell centres.
        offset: pixel coordinate of the centre of cell 0, so cell c lies at ``stride * c + offset``.
        image_hw: (H, W) of the image that was encoded.
    """

    features: Tensor
    stride: int
    offset: float
    image_hw: tuple[int, int]

    @property
    def grid_hw(self) -> tuple[int, int]:
        """(h, w): how many cells there are."""
        return self.features.shape[-2], self.features.shape[-1]

    def __getitem__(self, index: int) -> FeatureMap:
        """One image of the batch, still with a batch axis of 1; negative indices count from the end."""
        return replace(self, features=self.features[index][None])


@dataclass(frozen=True)
class Features:
    """What `Matcher.extract` found in one image; reusable over many pairs.

    Attributes:
        map: descriptors of the image at the size it was encoded at (batch of 1).
        image_hw: (H, W) of the image the caller gave; it may be larger than ``map.image_hw``.
        keypoints: (K, 2) points worth matching, in pixels of the caller's image, strongest first.
        grey: the encoded image as uint8 (H, W), by whose pixels matches are aligned; None: they are not.
    """

    map: FeatureMap
    image_hw: tuple[int, int]
    keypoints: Tensor
    grey: Tensor | None = None


@dataclass(frozen=True)
class Matches:
    """Corresponding points of two images, in the pixels of the images the caller gave.

    Attributes:
        points0: (N, 2) float32 points in image 0.
        points1: (N, 2) float32 points in image 1; NaN where nothing in image 1 was allowed to match.
        scores: (N,) float32 in [0, 1]: estimated probability that the match is right.
        is_mutual: (N,) bool: matching back from image 1 returned to the point in image 0. True for all that
            the library chose, unless `use_mutual` is off; queries given by the caller are all answered,
            so look here.
        pair_score: estimated probability in [0, 1] that the two images show the same thing at all.
        image0_hw: (H, W) of image 0.
        image1_hw: (H, W) of image 1.
    """

    points0: FloatArray
    points1: FloatArray
    scores: FloatArray
    is_mutual: BoolArray
    pair_score: float
    image0_hw: tuple[int, int]
    image1_hw: tuple[int, int]

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, keep: BoolArray | NDArray[np.int64]) -> Matches:
        """The matches that a boolean mask or an index array keeps, in its order."""
        return replace(
            self,
            points0=self.points0[keep],
            points1=self.points1[keep],
            scores=self.scores[keep],
            is_mutual=self.is_mutual[keep],
        )


@dataclass(frozen=True)
class PairContext:
    """What `Matcher.pair_context` found out about a pair, so that single points of it are answered at once.

    Attributes:
        matches: corners of image 0 with matches that hold, and the score of the pair.
        is_same_surface: the pixels round them agree, so that other matches may be aligned by theirs.
    """

    matches: Matches
    is_same_surface: bool


@dataclass(frozen=True)
class SimilarityMap:
    """How alike a point of image 0 and each place of image 1 are.

    Attributes:
        similarities: (h, w) float32: cosine similarity of each cell of image 1, in [-1, 1].
        first_cell: (x, y) of the centre of the top-left cell, in pixels of the image the caller gave.
        cell_step: (x, y) pixels of that image between the centres of neighbouring cells.
    """

    similarities: FloatArray
    first_cell: tuple[float, float]
    cell_step: tuple[float, float]


@dataclass(frozen=True)
class Flow:
    """Where every pixel of image 0 lies in image 1.

    Attributes:
        flow_0to1: (H, W, 2) float32: add it to (x, y) of image 0 to get the point in image 1.
        confidence: (H, W) float32 in [0, 1].
    """

    flow_0to1: FloatArray
    confidence: FloatArray


@dataclass(frozen=True)
class PairSample:
    """One image pair with its true correspondences; what every data set on disk yields.

    Attributes:
        image0: (3, H0, W0) float RGB in [0, 1].
        image1: (3, H1, W1).
        points0: (N, 2) float32 pixels of image 0, all of them on the image; N may be 0.
        points1: (N, 2) float32 pixels of image 1; row i corresponds to row i of `points0`.
        name: of the pair, for error messages and reports.
        pck_length: the length L in pixels that PCK@alpha multiplies, for semantic sets; else None.
        parts: (N,) int64: which part of the object (left eye, beak) each row is, where parts have names.
        mirror_parts: (P,) int64: what part p is in a mirror (left eye: right eye); None where `parts` is.
    """

    image0: Tensor
    image1: Tensor
    points0: Tensor
    points1: Tensor
    name: str
    pck_length: float | None = None
    parts: Tensor | None = None
    mirror_parts: Tensor | None = None

    def __len__(self) -> int:
        return len(self.points0)

    def select(self, rows: Tensor) -> PairSample:
        """The sample with the correspondences that a boolean mask or an index tensor keeps, in its order."""
        return replace(
            self,
            points0=self.points0[rows],
            points1=self.points1[rows],
            parts=None if self.parts is None else self.parts[rows],
        )


class LateNames(Sequence[str]):
    """Names that are found out only when one is asked for: reading them waits for the device."""

    def __init__(self, count: int, read: Callable[[], Iterable[str]]) -> None:
        """Keeps `read`, which gives all `count` names, until it is needed."""
        self._count, self._read = count, read
        self._names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> LateNames: ...
    def __getitem__(self, index: int | slice) -> str | LateNames:
        if isinstance(index, slice):  # still late: a batch is split without waiting
            return LateNames(len(range(self._count)[index]), lambda: tuple(self)[index])
        if self._names is None:
            self._names = tuple(self._read())
        return self._names[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True)
class PairBatch:
    """Image pairs with their true correspondences; what every data set yields and every loss consumes.

    Attributes:
        image0: (B, 3, H, W) float RGB in [0, 1].
        image1: (B, 3, H, W), the same size.
        points0: (B, N, 2) pixels of image 0.
        points1: (B, N, 2) pixels of image 1; row i corresponds to row i of `points0`.
        is_valid: (B, N) bool; False marks padding.
        names: one name per pair, for error messages.
        pck_length: (B,) the length L that PCK@alpha multiplies, for semantic sets; else None.
    """

    image0: Tensor
    image1: Tensor
    points0: Tensor
    points1: Tensor
    is_valid: Tensor
    names: Sequence[str]
    pck_length: Tensor | None = None

    def to(self, device: torch.device | str) -> PairBatch:
        """The same batch on another device."""
        return self._change(lambda tensor: tensor.to(device, non_blocking=True), self.names)

    def __iter__(self) -> Iterator[PairBatch]:
        """The pairs one by one, each still with a batch axis of 1."""
        yield from self.split(1)

    def split(self, count: int) -> Iterator[PairBatch]:
        """Batches of so many pairs, in order, the last of what is left; tensors are shared, not copied."""
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        for first in range(0, len(self.names), count):
            rows = slice(first, first + count)
            yield self._change(itemgetter(rows), self.names[rows])

    def _change(self, change: Callable[[Tensor], Tensor], names: Sequence[str]) -> PairBatch:
        """The batch with every tensor changed in the same way."""
        return PairBatch(
            image0=change(self.image0),
            image1=change(self.image1),
            points0=change(self.points0),
            points1=change(self.points1),
            is_valid=change(self.is_valid),
            names=names,
            pck_length=None if self.pck_length is None else change(self.pck_length),
        )


Direction = Literal["0to1", "1to0", "both"]
