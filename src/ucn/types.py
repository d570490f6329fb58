"""The values that packages exchange.

Data sets yield a `PairSample`; `collate` makes a `PairBatch` of several, and losses consume it. A network
turns images into a `FeatureMap`, a `Matcher` wraps it as `Features`, and matching two of these gives
`Matches` or a `Flow`.

Shapes use ``B`` for the batch, ``N`` for points or matches, ``D`` for descriptor dimensions, ``H, W`` for
pixels and ``h, w`` for feature cells. Points are ``(x, y)`` in pixels, with the centre of the top-left pixel
at (0, 0); sizes are ``(height, width)`` and their names end in ``_hw``. `ucn.geometry.coords` implements
these conventions. All classes are frozen: methods return new values.

Methods that estimate, draw, convert, read or write import the module that does so when they are called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # importing torch takes seconds, and the command line checks its input before
    import cv2
    import PIL.Image
    import torch
    from numpy.typing import ArrayLike
    from torch import Tensor

    from ucn.geometry.fundamental import FundamentalEstimate
    from ucn.geometry.homography import HomographyEstimate
    from ucn.geometry.pose import Estimator, PoseEstimate

    ImageLike = str | Path | PIL.Image.Image | NDArray[np.uint8] | Tensor
    ImageReference = Path | weakref.ref[PIL.Image.Image | NDArray[np.uint8] | Tensor]
else:
    ImageLike = ImageReference = Any

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        batch, dim, h, w = self.features.shape
        height, width = self.image_hw
        return f"FeatureMap({batch} × {dim} × {h} × {w}, images {width} × {height})"

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


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        height, width = self.image_hw
        return f"Features(image {width} × {height}, {len(self.keypoints):,} keypoints, map={self.map})"

    @property
    def resized_hw(self) -> tuple[int, int]:
        """(H, W) of the resized image, before any change of view."""
        if self.view is None or self.image is None:
            return self.map.image_hw
        return self.image.shape[-2], self.image.shape[-1]

    def to(self, device: torch.device | str) -> Features:
        """Copies all tensors to a device, except `view`; on a CPU, half precision becomes float32."""
        moved = self.map.features.to(device)
        if moved.device.type == "cpu" and moved.element_size() < 4:  # half types are slow there
            moved = moved.float()
        grey, image = (None if tensor is None else tensor.to(device) for tensor in (self.grey, self.image))
        keypoints = self.keypoints.to(device)
        return replace(
            self, map=replace(self.map, features=moved), keypoints=keypoints, grey=grey, image=image
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes everything to a .safetensors file; see `ucn.formats.features`.

        Raises:
            OutputError: another suffix, or the file cannot be written.
        """
        from ucn.formats.features import write_features

        write_features(path, self, overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Features:
        """Reads a file of `save` to the CPU; raises `DataError` where it is damaged or another file."""
        from ucn.formats.features import read_features

        return read_features(path)


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


class Estimate(Protocol):
    """What `Matches.homography`, `Matches.fundamental` and `Matches.pose` return, in short."""

    @property
    def is_inlier(self) -> BoolArray:
        """(N,) bool, the matches that agree with the estimate."""


def refer_to_image(image: ImageLike | Features) -> ImageReference | None:
    """A reference to an image that keeps no pixels in memory: its path, or a weak one; None for features."""
    if isinstance(image, Features):
        return None
    return Path(image) if isinstance(image, (str, Path)) else weakref.ref(image)


@dataclass(frozen=True, repr=False)
class Matches:
    """Correspondences between two images, in pixels of the caller's images.

    Row i of all arrays describes match i. Matches that the library selects come best first; matches of query
    points come in the order of the queries, one for each. Query points without a match (NaN) are ignored by
    `homography`, `fundamental`, `pose`, `to_opencv` and `draw`.

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
        sources: references to both images, for `draw`; None where unknown.
    """

    points0: FloatArray
    points1: FloatArray
    scores: FloatArray
    is_mutual: BoolArray
    pair_score: float
    image0_hw: tuple[int, int]
    image1_hw: tuple[int, int]
    view_change: ViewChange | None = None
    sources: tuple[ImageReference | None, ImageReference | None] = field(default=(None, None), compare=False)

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        count = f"{len(self):,} match{'' if len(self) == 1 else 'es'}"
        sizes = " and ".join(f"{width} × {height}" for height, width in (self.image0_hw, self.image1_hw))
        return f"Matches({count}, pair score {self.pair_score:.2f}, images {sizes})"

    def __getstate__(self) -> dict[str, Any]:
        """Weak references cannot be copied to other processes; paths can."""
        lasting = tuple(each if isinstance(each, Path) else None for each in self.sources)
        return self.__dict__ | {"sources": lasting}

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

    def homography(
        self, *, threshold: float = 3.0, min_inliers: int = 15, seed: int = 0
    ) -> HomographyEstimate:
        """Estimates a homography; see `ucn.estimate_homography`."""
        from ucn.geometry.homography import estimate_homography

        return estimate_homography(
            self.points0, self.points1, threshold=threshold, min_inliers=min_inliers, seed=seed
        )

    def fundamental(
        self, *, threshold: float = 1.0, min_inliers: int = 15, seed: int = 0
    ) -> FundamentalEstimate:
        """Estimates the fundamental matrix, without intrinsics; see `ucn.estimate_fundamental`."""
        from ucn.geometry.fundamental import estimate_fundamental

        return estimate_fundamental(
            self.points0, self.points1, threshold=threshold, min_inliers=min_inliers, seed=seed
        )

    def pose(
        self,
        K0: ArrayLike,
        K1: ArrayLike | None = None,
        *,
        estimator: Estimator = "poselib",
        threshold: float = 1.0,
        seed: int = 0,
    ) -> PoseEstimate:
        """Estimates the relative pose from both cameras' intrinsics; see `ucn.estimate_pose`."""
        from ucn.geometry.pose import estimate_pose

        return estimate_pose(
            self.points0, self.points1, K0, K1, estimator=estimator, threshold=threshold, seed=seed
        )

    def inliers(self, estimate: Estimate) -> Matches:
        """Selects the inliers of a homography, fundamental matrix or pose; none where it failed.

        Raises:
            ValueError: the estimate is of other matches.
        """
        if estimate.is_inlier.shape != (len(self),):
            raise ValueError(
                f"estimate must be of these {len(self)} matches, got one of {len(estimate.is_inlier)}"
            )
        return self.select(estimate.is_inlier)

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """The arrays points0, points1, scores and is_mutual by name, not copied."""
        names = ("points0", "points1", "scores", "is_mutual")
        return {name: getattr(self, name) for name in names}

    def to_torch(self, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Copies of the arrays of `to_numpy` as tensors."""
        import torch

        return {name: torch.tensor(array, device=device) for name, array in self.to_numpy().items()}

    def to_opencv(self) -> tuple[list[cv2.KeyPoint], list[cv2.KeyPoint], list[cv2.DMatch]]:
        """KeyPoints of both images, and DMatches whose distance is 1 - score; `ucn.formats.opencv`."""
        from ucn.formats.opencv import to_opencv

        return to_opencv(self)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes the matches to .npz, .csv or .h5, by the suffix; see `ucn.data.match_files.write_matches`.

        Raises:
            OutputError: another suffix, or the file cannot be written.
        """
        from ucn.data.match_files import write_matches

        write_matches(path, self, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Matches:
        """Reads a file of `save` or of ``ucn match -o``; see `ucn.data.match_files.read_matches`.

        A .csv holds rounded rows and nothing else: `pair_score` is NaN, and the sizes are (0, 0).

        Raises:
            DataError: the file is missing, damaged, or has another layout.
        """
        from ucn.data.match_files import read_matches

        return read_matches(path)[0]

    def draw(
        self,
        image0: ImageLike | None = None,
        image1: ImageLike | None = None,
        path: str | Path | None = None,
        *,
        overwrite: bool = False,
        **settings: Any,
    ) -> NDArray[np.uint8]:
        """Draws both images side by side with the matches, and writes the drawing if a path is given.

        Args:
            image0: as `Matcher.extract` takes it; None takes the image that was matched, if it was given as a
                path or is still in memory.
            image1: likewise.
            path: .png, .jpg or .webp; None writes nothing.
            overwrite: replace an existing file.
            settings: of `ucn.draw_matches`, such as ``max_lines=50``.

        Returns:
            (H, W, 3) uint8 RGB, which `PIL.Image.fromarray` takes.

        Raises:
            ValueError: an image is not given and not known.
            OutputError: the file cannot be written.
        """
        from ucn.data.io import write_image
        from ucn.viz.matches import draw_matches

        images = (
            self._find_image(0) if image0 is None else image0,
            self._find_image(1) if image1 is None else image1,
        )
        pixels = draw_matches(*images, self, **settings)
        if path is not None:
            write_image(path, pixels, overwrite)
        return pixels

    def _find_image(self, view: int) -> ImageLike:
        """The matched image of a view, where it is still known."""
        reference = self.sources[view]
        image = reference() if isinstance(reference, weakref.ref) else reference
        if image is None:
            raise ValueError(
                f"image{view} must be given: matches keep the paths of images, not their pixels; "
                "call draw(image0, image1)"
            )
        return image


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


@dataclass(frozen=True, repr=False)
class Flow:
    """Dense correspondence from image 0 to image 1.

    Attributes:
        flow_0to1: (H, W, 2) float32 displacement (x, y) in pixels: the pixel at (x, y) of image 0 corresponds
            to ``(x, y) + flow_0to1[y, x]`` in image 1.
        confidence: (H, W) float32 in [0, 1].
    """

    flow_0to1: FloatArray
    confidence: FloatArray

    def __repr__(self) -> str:
        height, width = self.confidence.shape
        return f"Flow({width} × {height}, mean confidence {self.confidence.mean():.2f})"


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
