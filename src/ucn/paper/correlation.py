"""The correlation pyramid of DeepMatching, from the bottom up (Revaud et al. 2016, sections 3.2 and 3.3).

Image 0 is cut into atomic patches of A × A cells. Level 0 holds the similarity of each to image 1 at every
cell. A patch of the next level consists of four patches of the level below, its quarters, each of which may
move: its similarity is the mean of theirs, each the maximum of 3 × 3 positions around the expected one, at
every second position, and raised to a power that favours patches whose quarters all match. Patches of all
levels lie on the grid of the atomic ones, so that they overlap; quarters outside image 0 do not count.

Position k on level l is cell ``2^l k`` of image 1 plus a constant, so that a patch at k has its quarters
around positions ``2 (k + shift)`` of the level below, with the shifts of `quarter_shifts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK_VALUES = 2**24
_QUARTERS = ((0, 0), (0, 1), (1, 0), (1, 1))


@dataclass(frozen=True, eq=False)
class Atoms:
    """Patches of A × A cells: those of image 0 side by side, those of image 1 at every cell.

    Attributes:
        patches0: (n0, m0, E) concatenated unit descriptors divided by A², E = D * A * A.
        patches1: (E, h1 * w1), zero outside the image.
        grid1_hw: (h1, w1).
        cells: A, even.
        power: of the rectification.
    """

    patches0: Tensor
    patches1: Tensor
    grid1_hw: tuple[int, int]
    cells: int
    power: float

    def correlate(self) -> Tensor:
        """(n0, m0, ceil(h1 / 2), ceil(w1 / 2)) level 0, rectified and pooled in chunks to save memory."""
        h1, w1 = self.grid1_hw
        flat = self.patches0.flatten(0, 1)
        pooled = flat.new_empty(len(flat), (h1 + 1) // 2, (w1 + 1) // 2)
        chunk = max(1, _CHUNK_VALUES // (h1 * w1))
        for first in range(0, len(flat), chunk):
            part = slice(first, first + chunk)
            pooled[part] = self.rectify(pool((flat[part] @ self.patches1).view(-1, h1, w1)))
        return pooled.view(*self.patches0.shape[:2], *pooled.shape[1:])

    def look_up(self, positions: Tensor) -> Tensor:
        """Level 0 at given positions.

        Args:
            positions: (n0, m0, K) int64, ``row * w1 + column``.

        Returns:
            (n0, m0, K).
        """
        flat, indices = self.patches0.flatten(0, 1), positions.flatten(0, 1)
        columns = self.patches1.t().contiguous()
        found = flat.new_empty(indices.shape)
        chunk = max(1, _CHUNK_VALUES // max(1, indices.shape[1] * columns.shape[1]))
        for first in range(0, len(flat), chunk):
            part = slice(first, first + chunk)
            found[part] = torch.einsum("pe,pke->pk", flat[part], columns[indices[part]])
        return self.rectify(found).view(positions.shape)

    def rectify(self, similarities: Tensor) -> Tensor:
        """Similarities in [-1, 1], clamped to 0 and raised to the power."""
        return similarities.clamp_min(0).pow_(self.power)


def cut_atoms(features0: Tensor, features1: Tensor, cells: int, power: float) -> Atoms:
    """Cuts two maps (D, h, w) of unit descriptors into patches; incomplete ones are dropped."""
    n0, m0 = features0.shape[-2] // cells, features0.shape[-1] // cells
    used = features0[:, : n0 * cells, : m0 * cells]
    patches0 = used.reshape(-1, n0, cells, m0, cells).permute(1, 3, 0, 2, 4).flatten(2) / cells**2
    framed = F.pad(features1, (0, cells - 1, 0, cells - 1))
    patches1 = F.unfold(framed[None], cells)[0]
    return Atoms(patches0.contiguous(), patches1, (features1.shape[-2], features1.shape[-1]), cells, power)


def build_levels(atoms: Atoms) -> list[Tensor]:
    """Levels 1 and up: (n, m, h, w) similarities of n × m patches at h × w positions; n = n0 - 1, m = m0 - 1.

    Patch (i, j) of each level is centred on the corner between atomic patches (i, j) and (i + 1, j + 1).
    Levels are added until patches are larger than image 0.
    """
    below = atoms.correlate()
    n, m = below.shape[0] - 1, below.shape[1] - 1
    shifts = quarter_shifts(atoms.cells, 1)
    total = below.new_zeros(n, m, *below.shape[2:])
    for down, right in _QUARTERS:
        total += shift_maps(below[down : down + n, right : right + m], shifts[down], shifts[right])
    levels = [total.div_(4).pow_(atoms.power)]
    while 2 * child_step(len(levels) + 1) <= min(n, m):
        levels.append(_aggregate(pool(levels[-1]), len(levels) + 1, atoms))
    return levels


def _aggregate(below: Tensor, level: int, atoms: Atoms) -> Tensor:
    """Level 2 or higher from the pooled level below."""
    n, m = below.shape[:2]
    shifts, step = quarter_shifts(atoms.cells, level), child_step(level)
    total, count = torch.zeros_like(below), below.new_zeros(n, m, 1, 1)
    for down, right in _QUARTERS:
        parents_y, children_y = pair_up(n, (2 * down - 1) * step)
        parents_x, children_x = pair_up(m, (2 * right - 1) * step)
        total[parents_y, parents_x] += shift_maps(below[children_y, children_x], shifts[down], shifts[right])
        count[parents_y, parents_x] += 1
    return total.div_(count).pow_(atoms.power)


def child_step(level: int) -> int:
    """Atomic patches from the centre of a patch to the centres of its quarters, on level 2 or higher."""
    return int(2 ** (level - 2))


def pair_up(count: int, step: int) -> tuple[slice, slice]:
    """Slices of the patches, of `count`, that have a patch `step` further, and of those patches."""
    if step >= 0:
        return slice(0, max(0, count - step)), slice(min(step, count), count)
    return slice(min(-step, count), count), slice(0, max(0, count + step))


def quarter_shifts(cells: int, level: int) -> tuple[int, int]:
    """Shifts of the quarters before and after a patch's centre, in positions of the pooled level below.

    Quarters are half a patch apart. Where that is an odd number of positions, the centre lies between two; it
    is rounded down and up on alternate levels, so that levels do not drift.
    """
    first = -(cells // 4) if cells % 4 == 0 else (0 if level % 2 else -(cells // 2))
    return first, first + cells // 2


def pool(maps: Tensor) -> Tensor:
    """Maps (..., h, w): the maximum of 3 × 3 positions, at every second position."""
    h, w = maps.shape[-2:]
    pooled = F.max_pool2d(maps.reshape(-1, 1, h, w), 3, stride=2, padding=1)
    return pooled.view(*maps.shape[:-2], *pooled.shape[-2:])


def shift_maps(maps: Tensor, down: int, right: int) -> Tensor:
    """Maps (..., h, w) read at ``(y + down, x + right)``; 0 outside."""
    h, w = maps.shape[-2:]
    framed = F.pad(maps, (max(-right, 0), max(right, 0), max(-down, 0), max(down, 0)))
    top, left = max(down, 0), max(right, 0)
    return framed[..., top : top + h, left : left + w]
