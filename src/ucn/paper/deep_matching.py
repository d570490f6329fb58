"""DeepMatching (Revaud, Weinzaepfel, Harchaoui and Schmid 2016): large patches first, then their quarters.

`correlation` builds the pyramid from the bottom up. From its top each patch's best places are followed down
to those of its quarters, adding up similarities on the way, until each atomic patch has its best place. Where
two of them claim the same place in image 1, the better one keeps it. All points move with the nearest match.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.geometry.coords import pixels_to_cells
from ucn.paper.correlation import (
    Atoms,
    build_levels,
    child_step,
    cut_atoms,
    pair_up,
    quarter_shifts,
)
from ucn.paper.pair_matcher import Alignment, NearestNeighbours, thin_out, thin_out_mask
from ucn.types import FeatureMap

_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class DeepMatching:
    """Correlation pyramid over the cells of any features.

    Attributes:
        atom_cells: side of the smallest patches in cells, even: 4 for descriptors of single pixels; 2 for
            those that see their surroundings anyway.
        finest_pixels: cells that lie closer are averaged first, since the pyramid grows with their square.
        power: λ of the rectification.
        kept: so many places of each patch are followed down from each level; the paper follows all.
    """

    atom_cells: int = 4
    finest_pixels: int = 2
    power: float = 1.4
    kept: int = 8

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Finds the matches of all atomic patches."""
        is_allowed1 = thin_out_mask(is_allowed1, map1, self.finest_pixels)
        map0, map1 = thin_out(map0, self.finest_pixels), thin_out(map1, self.finest_pixels)
        # A map of fewer than two atomic patches a side has no pyramid, so it gets smaller ones, or none.
        cells = self.atom_cells if min(map0.grid_hw) >= 2 * self.atom_cells else 2
        if min(map0.grid_hw) < 2 * cells:
            return NearestNeighbours().align(map0, map1, is_allowed1)
        features0, features1 = map0.features[0].float(), map1.features[0].float()
        if is_allowed1 is not None:
            features1 = features1 * is_allowed1.view(map1.grid_hw)
        atoms = cut_atoms(features0, features1, cells, self.power)
        found = descend(atoms, build_levels(atoms), self.kept)
        is_kept = found.is_best_claim(cells)
        if is_allowed1 is not None:
            is_kept &= is_allowed1.view(map1.grid_hw)[found.rows, found.columns]
        return found.to_matches(atoms, map0, is_kept)


@dataclass(frozen=True, eq=False)
class AtomicMatches:
    """The best place in image 1 of each atomic patch.

    Attributes:
        rows: (n0, m0) int64 cells of image 1 that the patches' first cells match.
        columns: (n0, m0) int64.
        scores: (n0, m0) similarities added up from the top of the pyramid; -inf where there is no place.
    """

    rows: Tensor
    columns: Tensor
    scores: Tensor

    def is_best_claim(self, cells: int) -> Tensor:
        """(n0, m0) bool: no other patch with a higher score lies in the same square of image 1."""
        width = int(self.columns.max()) // cells + 1
        square = self.rows // cells * width + self.columns // cells
        best = self.scores.new_full((int(square.max()) + 1,), -torch.inf)
        best.scatter_reduce_(0, square.flatten(), self.scores.flatten(), "amax")
        return torch.isfinite(self.scores) & (self.scores >= best[square])

    def to_matches(self, atoms: Atoms, map0: FeatureMap, is_kept: Tensor) -> _Matches:
        """The kept ones as displacements, on cells and at the peaks of their similarity."""
        row0, column0 = is_kept.nonzero().t()
        middle = (atoms.cells - 1) / 2
        centres0 = torch.stack([column0, row0], dim=-1) * atoms.cells + middle
        column1, row1 = self.columns[is_kept], self.rows[is_kept]
        moved = torch.stack([column1 - column0 * atoms.cells, row1 - row0 * atoms.cells], dim=-1).float()
        peaks = find_peaks(atoms, self.rows, self.columns)[is_kept]
        return _Matches(map0, centres0, moved, moved + peaks)


@dataclass(frozen=True, eq=False)
class _Matches:
    """Quasi-dense matches.

    Attributes:
        map0: where the cells of image 0 lie.
        centres0: (M, 2) middles of patches of image 0, in cells.
        moved: (M, 2) their displacements in whole cells.
        refined: (M, 2) their displacements between cells.
    """

    map0: FeatureMap
    centres0: Tensor
    moved: Tensor
    refined: Tensor

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """A point moves with the nearest match."""
        if len(self.centres0) == 0:
            return torch.full_like(points0, torch.nan)
        cells0 = pixels_to_cells(points0, self.map0.stride, self.map0.offset)
        chunk = max(1, _CHUNK_BYTES // (4 * len(self.centres0)))
        nearest = [
            torch.cdist(cells0[first : first + chunk], self.centres0).argmin(dim=1)
            for first in range(0, len(cells0), chunk)
        ]
        if not nearest:
            return points0
        moved = self.refined if use_refinement else self.moved
        return points0 + self.map0.stride * moved[torch.cat(nearest)]


def descend(atoms: Atoms, levels: list[Tensor], kept: int) -> AtomicMatches:
    """Follows the best places from the top of the pyramid to its atomic patches.

    Args:
        atoms: level 0.
        levels: of `build_levels`.
        kept: places of each patch that are followed from each level.
    """
    top = levels[-1].flatten(2)
    scores, places = top.topk(min(kept, top.shape[-1]), dim=-1)  # (n, m, K)
    rows, columns = places // levels[-1].shape[-1], places % levels[-1].shape[-1]
    for level in range(len(levels), 0, -1):
        below_hw = (
            atoms.grid1_hw if level == 1 else (levels[level - 2].shape[-2], levels[level - 2].shape[-1])
        )
        rows, columns, scores = _tell_quarters(atoms, level, rows, columns, scores)
        places, is_inside = _look_round(rows, columns, below_hw)
        similarities = (
            atoms.look_up(places.flatten(2))
            if level == 1
            else levels[level - 2].flatten(2).gather(2, places.flatten(2))
        )
        similarities = similarities.view(places.shape).masked_fill(~is_inside, -torch.inf)
        best, which = similarities.max(dim=-1)
        places = places.gather(-1, which[..., None])[..., 0]
        scores = drop_repetitions(places, scores + best)
        scores, order = scores.topk(min(kept if level > 1 else 1, scores.shape[-1]), dim=-1)
        places = places.gather(-1, order)
        rows, columns = places // below_hw[1], places % below_hw[1]
    return AtomicMatches(rows[..., 0], columns[..., 0], scores[..., 0])


def _tell_quarters(
    atoms: Atoms, level: int, rows: Tensor, columns: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What each patch of the level below hears from the up to four patches that it is a quarter of.

    Args:
        atoms: level 0.
        level: of the patches that tell.
        rows: (n, m, K) their places.
        columns: (n, m, K).
        scores: (n, m, K).

    Returns:
        Rows and columns (n', m', 4 K) of the level below, round which to look, and scores so far; -inf where
        nobody tells anything.
    """
    n, m, kept = rows.shape
    below = atoms.patches0.shape[:2] if level == 1 else (n, m)
    shifts = quarter_shifts(atoms.cells, level)
    heard_rows, heard_columns = (rows.new_zeros(*below, 4, kept) for _ in range(2))
    heard_scores = scores.new_full((*below, 4, kept), -torch.inf)
    for quarter in range(4):
        down, right = quarter // 2, quarter % 2
        parents_y, children_y = _pair_levels(n, level, down)
        parents_x, children_x = _pair_levels(m, level, right)
        heard_rows[children_y, children_x, quarter] = 2 * (rows[parents_y, parents_x] + shifts[down])
        heard_columns[children_y, children_x, quarter] = 2 * (columns[parents_y, parents_x] + shifts[right])
        heard_scores[children_y, children_x, quarter] = scores[parents_y, parents_x]
    return heard_rows.flatten(2), heard_columns.flatten(2), heard_scores.flatten(2)


def _pair_levels(count: int, level: int, side: int) -> tuple[slice, slice]:
    """Which of `count` patches of a level have a quarter on a side (0 before, 1 after), and those."""
    if level == 1:
        return slice(0, count), slice(side, side + count)
    return pair_up(count, (2 * side - 1) * child_step(level))


def _look_round(rows: Tensor, columns: Tensor, grid_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The 3 × 3 places (..., 9) round given ones as ``row * w + column``, and which of them exist.

    The middle one must exist, as it does where pooling has put it.
    """
    h, w = grid_hw
    steps = torch.arange(-1, 2, device=rows.device)
    near_rows = rows[..., None] + steps.repeat_interleave(3)
    near_columns = columns[..., None] + steps.repeat(3)
    is_inside = (near_rows >= 0) & (near_rows < h) & (near_columns >= 0) & (near_columns < w)
    has_middle = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
    places = near_rows.clamp(0, h - 1) * w + near_columns.clamp(0, w - 1)
    return places, is_inside & has_middle[..., None]


def drop_repetitions(places: Tensor, scores: Tensor) -> Tensor:
    """Scores (..., K) with -inf for all but the best, of equal ones the first, at each place (..., K)."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    ordered = places.gather(-1, order)
    is_same = ordered[..., :, None] == ordered[..., None, :]  # [this, earlier]
    is_repeated = is_same.tril(diagonal=-1).any(dim=-1)
    cleaned = scores.gather(-1, order).masked_fill(is_repeated, -torch.inf)
    return torch.empty_like(scores).scatter_(-1, order, cleaned)


def find_peaks(atoms: Atoms, rows: Tensor, columns: Tensor) -> Tensor:
    """(n0, m0, 2) how far (x, y) from a cell similarity is highest, by parabolas; at most half a cell."""
    h, w = atoms.grid1_hw
    places, is_inside = _look_round(rows[..., None], columns[..., None], (h, w))
    near, exists = atoms.look_up(places[..., 0, :]), is_inside[..., 0, :]
    peaks = []
    for low, high in ((3, 5), (1, 7)):  # left and right, above and below the middle, which is 4
        curvature = near[..., low] - 2 * near[..., 4] + near[..., high]
        is_peak = exists[..., low] & exists[..., high] & (curvature < 0)
        top = 0.5 * (near[..., low] - near[..., high]) / torch.where(is_peak, curvature, -1.0)
        peaks.append(torch.where(is_peak, top, 0.0).clamp(-0.5, 0.5))
    return torch.stack(peaks, dim=-1)
