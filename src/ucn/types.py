"""The values that packages exchange.

Data sets yield a `PairSample`; `collate` makes a `PairBatch` of several, and losses consume it. A network
turns images into a `FeatureMap`, a `Matcher` wraps it as `Features`, and matching two of these gives
`Matches` or a `Flow`.

Shapes use ``B`` for the batch, ``N`` for points or matches, ``D`` for descriptor dimensions, ``H, W`` for
pixels and ``h, w`` for feature cells. Points are ``(x, y)`` in pixels, with the centre of the top-left pixel
at (0, 0); sizes are ``(height, width)`` and their names end in ``_hw``. `ucn.geometry.coords` implements
these conventions. All classes are frozen: methods return new values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # importing torch takes seconds, and the command line checks its input before
    import PIL.Image
    import torch
    from torch import Tensor

    ImageLike = str | Path | PIL.Image.Image | NDArray[np.uint8] | Tensor
else:
    ImageLike = Any

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class FeatureMap:
    """Dense descriptors: one for each cell of a regular grid over an image.

    The centre of cell ``c`` lies at pixel ``stride * c + offset``, along x and along y.

    Attributes:
        features: (B, D, h, w) float, of unit L2 norm along D.
        stride: pixels between the centres of neighbouring cells.
        offset: pixel coordinate of the centre of cell 0.
        image_hw: (H, W) of the encoded images.
        semantic_dim: how many of the D dimensions, the last ones, are of the semantic level.
    """

    features: Tensor
    stride: int
    offset: float
    image_hw: tuple[int, int]
    semantic_dim: int = 0

    @property
    def grid_hw(self) -> tuple[int, int]:
        """(h, w), the number of cells."""
        return self.features.shape[-2], self.features.shape[-1]

    def __getitem__(self, index: int) -> FeatureMap:
        """One image of the batch, with a batch axis of 1; negative indices count from the end."""
        return replace(self, features=self.features[index][None])

    def without_semantic(self) -> FeatureMap:
        """The descriptors of the fine level alone, of unit norm; the map itself where it has no other."""
        if self.semantic_dim == 0:
            return self
        fine = self.features[:, : -self.semantic_dim]
        # The norm is at least the weight of the fine level, so it is far from 0.
        return replace(self, features=fine / fine.norm(dim=1, keepdim=True), semantic_dim=0)


@dataclass(frozen=True)
class Features:
    """The features of one image, as `Matcher.extract` computes them; reusable over many pairs.

    Attributes:
        map: dense descriptors (batch of 1) of the image at the size at which it was encoded.
        image_hw: (H, W) of the caller's image; may be larger than ``map.image_hw``.
        keypoints: (K, 2) float32 keypoints in pixels of the caller's image, strongest first.
        grey: (H, W) uint8, the encoded image in grey, for photometric refinement; None disables it.
        image: (3, H, W) uint8, the resized image, from which views are encoded; None disables them.
        view: (2, 3), on the CPU, the affine map from pixels of `image` to those of the encoded view; None
            where `image` itself was encoded.
    """

    map: FeatureMap
    image_hw: tuple[int, int]
    keypoints: Tensor
    grey: Tensor | None = None
    image: Tensor | None = None
    view: Tensor | None = None

    @property
    def resized_hw(self) -> tuple[int, int]:
        """(H, W) of the resized image, before any change of view."""
        if self.view is None or self.image is None:
            return self.map.image_hw
        return self.image.shape[-2], self.image.shape[-1]


@dataclass(frozen=True)
class ViewChange:
    """The change of scale and rotation between two images, and what was done about it.

    Attributes:
        scale: pixels of the resized image 1 per pixel of the resized image 0.
        degrees: rotation from image 0 to image 1, from x towards y.
        encodings: how often an image was encoded again.
        is_searched: scales from 1/4 to 4 with four rotations were tried, since the images hardly agree, or
            their sizes differ much.
    """

    scale: float = 1.0
    degrees: float = 0.0
    encodings: int = 0
    is_searched: bool = False


@dataclass(frozen=True)
class Matches:
    """Correspondences between two images, in pixels of the caller's images.

    Row i of all arrays describes match i. Matches that the library selects come best first; matches of query
    points come in the order of the queries, one for each.

    Attributes:
        points0: (N, 2) float32, points in image 0.
        points1: (N, 2) float32, points in image 1; NaN where a mask excludes every candidate.
        scores: (N,) float32 in [0, 1], estimated probability that the match is correct.
        is_mutual: (N,) bool, whether the match passes the forward-backward check: matching `points1` back
            to image 0 returns to `points0`. Always True for matches that the library selects, unless
            `MatchConfig.use_mutual` is off; check it for query points, which are all answered.
        pair_score: estimated probability in [0, 1] that the two images show the same scene or object.
        image0_hw: (H, W) of image 0.
        image1_hw: (H, W) of image 1.
        view_change: the change of scale and rotation that the matches agree on, and what was tried; None
            where it was not looked for.
    """

    points0: FloatArray
    points1: FloatArray
    scores: FloatArray
    is_mutual: BoolArray
    pair_score: float
    image0_hw: tuple[int, int]
    image1_hw: tuple[int, int]
    view_change: ViewChange | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, keep: BoolArray | NDArray[np.int64]) -> Matches:
        """Selects matches.

        Args:
            keep: (N,) bool mask, or int64 indices, whose order the result has.
        """
        return replace(
            self,
            points0=self.points0[keep],
            points1=self.points1[keep],
            scores=self.scores[keep],
            is_mutual=self.is_mutual[keep],
        )


@dataclass(frozen=True)
class SimilarityMap:
    """Similarity of one point of image 0 to every feature cell of image 1.

    The centre of cell (row, column) lies at ``first_cell + (column, row) * cell_step``.

    Attributes:
        similarities: (h, w) float32, cosine similarity in [-1, 1].
        first_cell: (x, y) of the centre of the top-left cell, in pixels of the caller's image.
        cell_step: (x, y) pixels of that image between the centres of neighbouring cells.
    """

    similarities: FloatArray
    first_cell: tuple[float, float]
    cell_step: tuple[float, float]


@dataclass(frozen=True)
class Flow:
    """Dense correspondence from image 0 to image 1.

    Attributes:
        flow_0to1: (H, W, 2) float32 displacement (x, y) in pixels: the pixel at (x, y) of image 0 corresponds
            to ``(x, y) + flow_0to1[y, x]`` in image 1.
        confidence: (H, W) float32 in [0, 1].
    """

    flow_0to1: FloatArray
    confidence: FloatArray


@dataclass(frozen=True)
class PairSample:
    """One image pair with ground-truth correspondences; what every data set yields.

    Row i of `points0` corresponds to row i of `points1`.

    Attributes:
        image0: (3, H0, W0) float32 RGB in [0, 1].
        image1: (3, H1, W1) float32 RGB in [0, 1].
        points0: (N, 2) float32 points in pixels of image 0, all inside the image; N may be 0.
        points1: (N, 2) float32 points in pixels of image 1.
        name: identifies the pair in error messages and reports.
        pck_length: length L in pixels of image 1; PCK@alpha accepts errors up to ``alpha * L``. None where
            the data set defines none.
        parts: (N,) int64 index of the object part (left eye, beak) that each row marks; None where points
            are not named parts.
        mirror_parts: (P,) int64, the part that part p becomes in a mirrored image (left eye: right eye);
            None where `parts` is.
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
        """Selects correspondences.

        Args:
            rows: (N,) bool mask, or int64 indices, whose order the result has.
        """
        return replace(
            self,
            points0=self.points0[rows],
            points1=self.points1[rows],
            parts=None if self.parts is None else self.parts[rows],
        )


class LazyNames(Sequence[str]):
    """Names that are computed when one is first used, since reading them synchronises with the GPU."""

    def __init__(self, count: int, read: Callable[[], Iterable[str]]) -> None:
        """Computes nothing yet.

        Args:
            count: number of names.
            read: computes all names.
        """
        self._count, self._read = count, read
        self._names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> LazyNames: ...
    def __getitem__(self, index: int | slice) -> str | LazyNames:
        if isinstance(index, slice):  # still lazy: splitting a batch must not synchronise
            return LazyNames(len(range(self._count)[index]), lambda: tuple(self)[index])
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
    """A batch of image pairs with ground-truth correspondences; what training and every loss consume.

    Pairs have different numbers of correspondences: rows of points are padded to N, and `is_valid` marks the
    real ones.

    Attributes:
        image0: (B, 3, H, W) float32 RGB in [0, 1].
        image1: (B, 3, H, W), the same size.
        points0: (B, N, 2) float32 points in pixels of image 0.
        points1: (B, N, 2) float32 points in pixels of image 1; row i corresponds to row i of `points0`.
        is_valid: (B, N) bool; False marks padding, whose coordinates may be NaN.
        names: B names, for error messages.
        pck_length: (B,) float32, as `PairSample.pck_length`; None where a pair has none.
    """

    image0: Tensor
    image1: Tensor
    points0: Tensor
    points1: Tensor
    is_valid: Tensor
    names: Sequence[str]
    pck_length: Tensor | None = None

    def to(self, device: torch.device | str) -> PairBatch:
        """Copies all tensors to a device, asynchronously where the memory is pinned."""
        return self._change(lambda tensor: tensor.to(device, non_blocking=True), self.names)

    def __iter__(self) -> Iterator[PairBatch]:
        """Yields the pairs one by one, each with a batch axis of 1."""
        yield from self.split(1)

    def split(self, count: int) -> Iterator[PairBatch]:
        """Yields batches of `count` pairs in order; the last may be smaller. Tensors are views, not copies.

        Raises:
            ValueError: `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        for first in range(0, len(self.names), count):
            rows = slice(first, first + count)
            yield self._change(itemgetter(rows), self.names[rows])

    def _change(self, change: Callable[[Tensor], Tensor], names: Sequence[str]) -> PairBatch:
        """Applies a function to every tensor."""
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
"""Which image's points are matched to the other image."""
