"""DeepMatching (Revaud, Weinzaepfel, Harchaoui and Schmid 2016): large patches first, then their quarters.

`correlation` builds the pyramid from the bottom up. From its top, each patch's best positions are traced down
to those of its quarters and their similarities added up, until each atomic patch has its best position. Where
several match the same position in image 1, the best one is kept. A point moves with the nearest match.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.features.pair_matcher import Alignment, NearestNeighbours
from ucn.geometry.coords import pixels_to_cells
from ucn.paper.cell_flow import pool_map, pool_mask
from ucn.paper.correlation import (
    Atoms,
    build_levels,
    child_step,
    cut_atoms,
    pair_up,
    quarter_shifts,
)
from ucn.types import FeatureMap

TITLE = "DeepMatching (Revaud et al. 2016), correlation pyramid, densified by the nearest match"

_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class DeepMatching:
    """Correlation pyramid over the cells of any features.

    Attributes:
        atom_cells: side of the smallest patches in cells, even: 4 for descriptors of single pixels, 2 for
            those with a larger receptive field.
        finest_pixels: smallest stride; finer cells are averaged first, since the pyramid grows with the
            square of their number.
        power: λ of the rectification.
        kept: best positions of each patch that are traced down from each level; the paper traces all.
    """

    atom_cells: int = 4
    finest_pixels: int = 2
    power: float = 1.4
    kept: int = 8

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Finds the matches of all atomic patches."""
        is_allowed1 = pool_mask(is_allowed1, map1, self.finest_pixels)
        map0, map1 = pool_map(map0, self.finest_pixels), pool_map(map1, self.finest_pixels)
        # A pyramid needs two atomic patches a side: small maps get smaller patches, or nearest neighbours.
        cells = self.atom_cells if min(map0.grid_hw) >= 2 * self.atom_cells else 2
        if min(map0.grid_hw) < 2 * cells:
            return NearestNeighbours().align(map0, map1, is_allowed1)
        features0, features1 = map0.features[0].float(), map1.features[0].float()
        if is_allowed1 is not None:
            features1 = features1 * is_allowed1.view(map1.grid_hw)
        atoms = cut_atoms(features0, features1, cells, self.power)
        found = descend(atoms, build_levels(atoms), self.kept)
        is_kept = found.is_best_in_square(cells)
        if is_allowed1 is not None:
            is_kept &= is_allowed1.view(map1.grid_hw)[found.rows, found.columns]
        return found.to_matches(atoms, map0, is_kept)


@dataclass(frozen=True, eq=False)
class AtomicMatches:
    """The best position in image 1 of each atomic patch.

    Attributes:
        rows: (n0, m0) int64 cells of image 1 that the patches' first cells match.
        columns: (n0, m0) int64.
        scores: (n0, m0) similarities added up from the top of the pyramid; -inf where there is no match.
    """

    rows: Tensor
    columns: Tensor
    scores: Tensor

    def is_best_in_square(self, cells: int) -> Tensor:
        """(n0, m0) bool: no patch with a higher score matches the same square of image 1."""
        width = int(self.columns.max()) // cells + 1
        square = self.rows // cells * width + self.columns // cells
        best = self.scores.new_full((int(square.max()) + 1,), -torch.inf)
        best.scatter_reduce_(0, square.flatten(), self.scores.flatten(), "amax")
        return torch.isfinite(self.scores) & (self.scores >= best[square])

    def to_matches(self, atoms: Atoms, map0: FeatureMap, is_kept: Tensor) -> _Matches:
        """The kept matches as displacements, in whole cells and with sub-cell refinement."""
        row0, column0 = is_kept.nonzero().t()
        centre = (atoms.cells - 1) / 2
        centres0 = torch.stack([column0, row0], dim=-1) * atoms.cells + centre
        column1, row1 = self.columns[is_kept], self.rows[is_kept]
        moved = torch.stack([column1 - column0 * atoms.cells, row1 - row0 * atoms.cells], dim=-1).float()
        peaks = find_peaks(atoms, self.rows, self.columns)[is_kept]
        return _Matches(map0, centres0, moved, moved + peaks)


@dataclass(frozen=True, eq=False)
class _Matches:
    """Quasi-dense matches.

    Attributes:
        map0: features of image 0.
        centres0: (M, 2) centres of patches of image 0, in cells.
        moved: (M, 2) their displacements in whole cells.
        refined: (M, 2) their displacements with sub-cell refinement.
    """

    map0: FeatureMap
    centres0: Tensor
    moved: Tensor
    refined: Tensor

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """Moves each point by the displacement of the nearest match."""
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
    """Traces the best positions from the top of the pyramid down to its atomic patches.

    Args:
        atoms: level 0.
        levels: of `build_levels`.
        kept: positions of each patch that are traced down from each level.
    """
    top = levels[-1].flatten(2)
    scores, positions = top.topk(min(kept, top.shape[-1]), dim=-1)  # (n, m, K)
    rows, columns = positions // levels[-1].shape[-1], positions % levels[-1].shape[-1]
    for level in range(len(levels), 0, -1):
        below_hw = (
            atoms.grid1_hw if level == 1 else (levels[level - 2].shape[-2], levels[level - 2].shape[-1])
        )
        rows, columns, scores = _pass_to_quarters(atoms, level, rows, columns, scores)
        positions, is_inside = _list_neighbours(rows, columns, below_hw)
        similarities = (
            atoms.look_up(positions.flatten(2))
            if level == 1
            else levels[level - 2].flatten(2).gather(2, positions.flatten(2))
        )
        similarities = similarities.view(positions.shape).masked_fill(~is_inside, -torch.inf)
        best, which = similarities.max(dim=-1)
        positions = positions.gather(-1, which[..., None])[..., 0]
        scores = drop_repeated(positions, scores + best)
        scores, order = scores.topk(min(kept if level > 1 else 1, scores.shape[-1]), dim=-1)
        positions = positions.gather(-1, order)
        rows, columns = positions // below_hw[1], positions % below_hw[1]
    return AtomicMatches(rows[..., 0], columns[..., 0], scores[..., 0])


def _pass_to_quarters(
    atoms: Atoms, level: int, rows: Tensor, columns: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Passes the positions of patches to their quarters; a patch is a quarter of up to four others.

    Args:
        atoms: level 0.
        level: of the patches.
        rows: (n, m, K) their positions.
        columns: (n, m, K).
        scores: (n, m, K).

    Returns:
        Rows and columns (n', m', 4 K) on the level below, around which to search, and scores so far; -inf
        where a patch has no parent.
    """
    n, m, kept = rows.shape
    below = atoms.patches0.shape[:2] if level == 1 else (n, m)
    shifts = quarter_shifts(atoms.cells, level)
    child_rows, child_columns = (rows.new_zeros(*below, 4, kept) for _ in range(2))
    child_scores = scores.new_full((*below, 4, kept), -torch.inf)
    for quarter in range(4):
        down, right = quarter // 2, quarter % 2
        parents_y, children_y = _pair_levels(n, level, down)
        parents_x, children_x = _pair_levels(m, level, right)
        child_rows[children_y, children_x, quarter] = 2 * (rows[parents_y, parents_x] + shifts[down])
        child_columns[children_y, children_x, quarter] = 2 * (columns[parents_y, parents_x] + shifts[right])
        child_scores[children_y, children_x, quarter] = scores[parents_y, parents_x]
    return child_rows.flatten(2), child_columns.flatten(2), child_scores.flatten(2)


def _pair_levels(count: int, level: int, side: int) -> tuple[slice, slice]:
    """Slices of the patches, of `count`, with a quarter on a side (0 before, 1 after), and of those."""
    if level == 1:
        return slice(0, count), slice(side, side + count)
    return pair_up(count, (2 * side - 1) * child_step(level))


def _list_neighbours(rows: Tensor, columns: Tensor, grid_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The 3 × 3 positions (..., 9) around given ones as ``row * w + column``, and which of them are valid.

    All are invalid where the central one lies outside the grid.
    """
    h, w = grid_hw
    steps = torch.arange(-1, 2, device=rows.device)
    near_rows = rows[..., None] + steps.repeat_interleave(3)
    near_columns = columns[..., None] + steps.repeat(3)
    is_inside = (near_rows >= 0) & (near_rows < h) & (near_columns >= 0) & (near_columns < w)
    has_centre = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
    positions = near_rows.clamp(0, h - 1) * w + near_columns.clamp(0, w - 1)
    return positions, is_inside & has_centre[..., None]


def drop_repeated(positions: Tensor, scores: Tensor) -> Tensor:
    """Scores (..., K) with -inf for all but the best (the first of equal ones) at each position (..., K)."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    ordered = positions.gather(-1, order)
    is_same = ordered[..., :, None] == ordered[..., None, :]  # [this, earlier]
    is_repeated = is_same.tril(diagonal=-1).any(dim=-1)
    cleaned = scores.gather(-1, order).masked_fill(is_repeated, -torch.inf)
    return torch.empty_like(scores).scatter_(-1, order, cleaned)


def find_peaks(atoms: Atoms, rows: Tensor, columns: Tensor) -> Tensor:
    """(n0, m0, 2) offset (x, y) from a cell to the peak of similarity, by parabolas; at most half a cell."""
    h, w = atoms.grid1_hw
    positions, is_inside = _list_neighbours(rows[..., None], columns[..., None], (h, w))
    near, exists = atoms.look_up(positions[..., 0, :]), is_inside[..., 0, :]
    peaks = []
    for low, high in ((3, 5), (1, 7)):  # left and right, above and below the centre, which is 4
        curvature = near[..., low] - 2 * near[..., 4] + near[..., high]
        is_peak = exists[..., low] & exists[..., high] & (curvature < 0)
        top = 0.5 * (near[..., low] - near[..., high]) / torch.where(is_peak, curvature, -1.0)
        peaks.append(torch.where(is_peak, top, 0.0).clamp(-0.5, 0.5))
    return torch.stack(peaks, dim=-1)
