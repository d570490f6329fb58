"""Neighbourhood consensus: a match is supported where the matches around it move alike.

Neighbours of a point should land near its match, displaced by one local affine map. `measure_consensus`
compares all coarse cells of two images and sums, for each pair of cells (p, q), the similarity of the pairs
(p + d, q + A d) around it, for shifts d and a few hypotheses A of the local map: scales, and rotations. The
best hypothesis gives the support of (p, q). Nothing is learned. `ucn.matching.cells` adds the support to the
similarity of descriptors where these alone do not decide.

The sum is separable, for any A: one pass along (e_x, A e_x), one along (e_y, A e_y).
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import pixels_to_cells
from ucn.knn.search import DEFAULT_MEMORY_BYTES
from ucn.matching.local_affine import LocalAffine
from ucn.runtime.kernels import use_fused
from ucn.runtime.threads import share
from ucn.types import FeatureMap

# All constants were chosen on validation data (docs/development/experiments.md, "Neighbourhood consensus").
CELL_PIXELS = 16
"""Side of a coarse cell in pixels of the encoded image; larger where the volume would exceed the memory."""
SHIFTS = (-6, -4, -2, 0, 2, 4, 6)
"""Shifts d along each axis, in coarse cells."""
SPREAD = 4.0
"""Standard deviation of the Gaussian weights of the shifts, in coarse cells."""
POWER = 3
"""Cosine similarities of coarse cells are raised to this power, so that weak ones count little."""
_MAX_ENTRIES = 2**22  # of the volume; bounds the time as well
_MAX_THREADS = 4  # each holds two volumes
_COPIES = 2 + 2 * _MAX_THREADS  # volumes that are held at once, at most

LinearMap = tuple[tuple[float, float], tuple[float, float]]
"""Rows of a 2 × 2 matrix that maps a step (x, y) in image 0 to one in image 1."""


def _make_similarity(scale: float, degrees: float) -> LinearMap:
    cosine, sine = (scale * function(math.radians(degrees)) for function in (math.cos, math.sin))
    return (cosine, -sine), (sine, cosine)


HYPOTHESES: tuple[LinearMap, ...] = (
    *(_make_similarity(scale, 0) for scale in (1.0, 0.5, 0.7, 1.4, 2.0)),
    *(_make_similarity(1.0, degrees) for degrees in (22, -22, 45, -45, 90, -90, 180)),
)
"""Local maps from image 0 to image 1 that are tried."""


@dataclass(frozen=True)
class Consensus:
    """How much the surroundings of each pair of coarse cells support it.

    Attributes:
        support: (h0, w0, h1, w1) in [0, 1]; 1 where both cells support each other more than any other.
        cells: feature cells along each axis of a coarse cell.
        stride: of the feature maps, in pixels.
        offset: of the feature maps, in pixels.
        cosines: (2,) of the maps, as `measure_cosines`; None where not measured.
        priors: local affine maps from image 0 to image 1 and back, which guide the search as well, as
            `ucn.matching.cells.add_prior` finds them; None without.
        mutual_share: share of the anchors of these priors that are cycle-consistent; 0 without priors.
    """

    support: Tensor
    cells: int
    stride: int
    offset: float
    cosines: Tensor | None = None
    priors: tuple[LocalAffine, LocalAffine] | None = None
    mutual_share: float | Tensor = 0.0

    def swap(self) -> Consensus:
        """The same for the images in the other order."""
        priors = None if self.priors is None else (self.priors[1], self.priors[0])
        return replace(self, support=self.support.permute(2, 3, 0, 1), priors=priors)

    def read_rows(self, points0: Tensor) -> Tensor:
        """Support (N, h1, w1) of all coarse cells of image 1 for points (N, 2) of image 0, in pixels."""
        h0, w0, h1, w1 = self.support.shape
        rows, weights = self.find_rows(points0)
        corners = self.support.reshape(h0 * w0, h1 * w1)[rows]  # (N, 4, h1 * w1)
        return (weights[:, None] @ corners)[:, 0].reshape(-1, h1, w1)

    def find_rows(self, points0: Tensor) -> tuple[Tensor, Tensor]:
        """The four coarse cells (N, 4) of image 0 around points (N, 2), and their weights (N, 4)."""
        h0, w0 = self.support.shape[:2]
        return _bilinear_corners(self.to_coarse(points0), (h0, w0))

    def read_pairs(self, points0: Tensor, points1: Tensor) -> Tensor:
        """Support (N,) of pairs of points (N, 2) in pixels, interpolated; 0 where one of them is NaN."""
        corners, weights0, weights1 = self._read_corners(points0, points1)
        return (weights0[:, None] @ corners @ weights1[:, :, None])[:, 0, 0]

    def read_best(self, points0: Tensor, points1: Tensor) -> Tensor:
        """Largest support (N,) of the pairs of coarse cells around pairs of points; as `read_pairs`."""
        return self._read_corners(points0, points1)[0].flatten(1).amax(dim=1)

    def _read_corners(self, points0: Tensor, points1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Support (N, 4, 4) of the cells around pairs of points, and the weights (N, 4) in both images."""
        h0, w0, h1, w1 = self.support.shape
        rows, weights0 = _bilinear_corners(self.to_coarse(points0.nan_to_num(0.0)), (h0, w0))
        columns, weights1 = _bilinear_corners(self.to_coarse(points1.nan_to_num(0.0)), (h1, w1))
        corners = self.support.reshape(h0 * w0, h1 * w1)[rows[:, :, None], columns[:, None]]
        is_missing = points0.isnan().any(dim=1) | points1.isnan().any(dim=1)
        return corners.masked_fill(is_missing[:, None, None], 0.0), weights0, weights1

    def expand_rows(self, rows: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """Interpolates rows (N, h1, w1) to all feature cells (N, h * w) of image 1."""
        up_y, up_x = (
            _interpolation_matrix(fine, coarse, self.cells, rows)
            for fine, coarse in zip(grid_hw, self.support.shape[2:], strict=True)
        )
        return (up_y @ rows @ up_x.t()).flatten(1)

    def to_coarse(self, points: Tensor) -> Tensor:
        """Coordinates (N, 2) in coarse cells, whose centres are at whole numbers."""
        return (pixels_to_cells(points, self.stride, self.offset) + 0.5) / self.cells - 0.5


@torch.no_grad()
def measure_consensus(
    map0: FeatureMap,
    map1: FeatureMap,
    *,
    is_allowed0: Tensor | None = None,
    is_allowed1: Tensor | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Consensus:
    """Measures the consensus of a pair.

    Args:
        map0: descriptors of image 0 (batch of 1).
        map1: descriptors of image 1 (batch of 1), of the same network.
        is_allowed0: (h * w,) bool, the cells of image 0 that count; None counts all.
        is_allowed1: (h * w,) bool, the cells of image 1 that count; None counts all.
        memory_bytes: budget of the volume and its temporaries; coarse cells grow until they fit.
    """
    cells = choose_cells(map0, map1, memory_bytes)
    coarse0, coarse1 = pool_cells(map0, cells, is_allowed0), pool_cells(map1, cells, is_allowed1)
    support, cosines = measure_support(coarse0, coarse1), measure_cosines(map0, map1)
    return Consensus(support, cells, map0.stride, map0.offset, cosines)


def measure_cosines(map0: FeatureMap, map1: FeatureMap) -> Tensor:
    """Mean and standard deviation (2,) of all cosines between descriptors within the emptier of two images.

    The emptier image is the one with the larger `rate_uniformity`.
    """
    both = torch.stack([_measure_cosines(map0), _measure_cosines(map1)])
    # Not by an index, which a GPU would wait for.
    return both.index_select(0, rate_uniformity(both).argmax()[None])[0]


def rate_uniformity(cosines: Tensor) -> Tensor:
    """How alike all descriptors of an image are: mean less 1.5 standard deviations, of cosines (..., 2).

    Photographs stay below 0.1, with few exceptions; blank images, gradients, noise and fine patterns, which
    have no places to tell apart, lie above 0.2.
    """
    return cosines[..., 0] - 1.5 * cosines[..., 1]


def _measure_cosines(feature_map: FeatureMap) -> Tensor:
    descriptors = feature_map.features[0].flatten(1).float()  # (D, h * w)
    mean = descriptors.mean(dim=1).square().sum()
    # The mean square of all cosines is the squared Frobenius norm of the second moments.
    square = (descriptors @ descriptors.t() / descriptors.shape[1]).square().sum()
    return torch.stack([mean, (square - mean.square()).clamp_min(0).sqrt()])


def choose_cells(map0: FeatureMap, map1: FeatureMap, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> int:
    """Feature cells along each axis of a coarse cell: `CELL_PIXELS`, or more for large images."""
    limit = min(_MAX_ENTRIES, memory_bytes // (4 * _COPIES))
    cells = max(1, round(CELL_PIXELS / map0.stride))
    while math.prod(-(-side // cells) for side in (*map0.grid_hw, *map1.grid_hw)) > limit and cells < max(
        *map0.grid_hw, *map1.grid_hw
    ):
        cells += 1
    return cells


def pool_cells(feature_map: FeatureMap, cells: int, is_allowed: Tensor | None = None) -> Tensor:
    """Unit descriptors (D, h, w) of coarse cells: the normalised mean of `cells` × `cells` feature cells.

    Feature cells that `is_allowed` (h * w,) excludes do not count; a coarse cell without any is 0.
    """
    features = feature_map.features.float()
    if is_allowed is not None:
        features = features * is_allowed.view(1, 1, *feature_map.grid_hw)
    h, w = feature_map.grid_hw
    padded = F.pad(features, (0, -w % cells, 0, -h % cells))
    return F.normalize(F.avg_pool2d(padded, cells), dim=1)[0]


def measure_support(coarse0: Tensor, coarse1: Tensor) -> Tensor:
    """Support (h0, w0, h1, w1) in [0, 1] of all pairs of coarse cells with descriptors (D, h, w)."""
    shape = (*coarse0.shape[1:], *coarse1.shape[1:])
    similarity = (coarse0.flatten(1).t() @ coarse1.flatten(1)).clamp_min(0).pow(POWER)
    # Soft mutual nearest neighbours: how far a pair is the best of both of its cells.
    similarity = similarity * _relative_to_best(similarity, 1) * _relative_to_best(similarity, 0)
    found = _sum_around(similarity.view(shape)).view_as(similarity)
    return (_relative_to_best(found, 1) * _relative_to_best(found, 0)).view(shape)


def _relative_to_best(values: Tensor, dim: int) -> Tensor:
    return values / values.amax(dim=dim, keepdim=True).clamp_min(1e-12)


def _sum_around(similarity: Tensor) -> Tensor:
    """Weighted sums (h0, w0, h1, w1) of the pairs around each pair, of the best hypothesis."""
    if use_fused(similarity):
        from ucn.matching.triton.consensus import sum_around_fused  # needs Triton

        return sum_around_fused(similarity, HYPOTHESES, SHIFTS, SPREAD)
    best = torch.zeros_like(similarity)
    lock = threading.Lock()

    def add(linear: LinearMap) -> None:
        along_x = _sum_along(similarity, 0, linear)
        found = _sum_along(along_x, 1, linear)
        with lock:
            torch.maximum(best, found, out=best)

    if similarity.device.type == "cpu":
        share(add, HYPOTHESES, most=_MAX_THREADS)
    else:
        for linear in HYPOTHESES:
            add(linear)
    return best


def _sum_along(volume: Tensor, axis: int, linear: LinearMap) -> Tensor:
    """Weighted sum of a volume over shifts along x (axis 0) or y (axis 1); outside, it counts as 0."""
    total = torch.zeros_like(volume)
    for shift in SHIFTS:
        shift0 = (0, shift) if axis == 0 else (shift, 0)  # rows, columns
        shift1 = (round(linear[1][axis] * shift), round(linear[0][axis] * shift))
        pairs = [
            (slice(max(0, -step), min(size, size - step)), slice(max(0, step), min(size, size + step)))
            for size, step in zip(volume.shape, (*shift0, *shift1), strict=True)
        ]
        if all(target.start < target.stop for target, _ in pairs):
            here, there = (tuple(pair[side] for pair in pairs) for side in (0, 1))
            total[here].add_(volume[there], alpha=_weigh(shift))
    return total


def _weigh(shift: int) -> float:
    return math.exp(-0.5 * (shift / SPREAD) ** 2)


def _bilinear_corners(coordinates: Tensor, grid_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Rows (N, 4) of the cells around coordinates (N, 2), clamped to the grid, and their weights (N, 4)."""
    h, w = grid_hw
    (x, y), (last_x, last_y) = coordinates.unbind(1), (w - 1, h - 1)
    x, y = x.clamp(0, last_x), y.clamp(0, last_y)
    x0, y0 = x.floor().long(), y.floor().long()
    x1, y1 = (x0 + 1).clamp_max(last_x), (y0 + 1).clamp_max(last_y)
    right, down = x - x0, y - y0
    rows = torch.stack([y0 * w + x0, y0 * w + x1, y1 * w + x0, y1 * w + x1], dim=1)
    left, up = 1 - right, 1 - down
    return rows, torch.stack([up * left, up * right, down * left, down * right], dim=1)


def _interpolation_matrix(fine: int, coarse: int, cells: int, like: Tensor) -> Tensor:
    """Linear interpolation (fine, coarse) from the centres of coarse cells to those of feature cells."""
    centres = (torch.arange(fine, device=like.device, dtype=like.dtype) + 0.5) / cells - 0.5
    distances = centres.clamp(0, coarse - 1)[:, None] - torch.arange(coarse, device=like.device)
    return (1 - distances.abs()).clamp_min(0)
