"""Min-sum belief propagation of displacements on a grid, with x and y in two layers, as in SIFT Flow.

Each cell has one variable for its displacement along x and one for that along y. A smoothness term connects
each variable to the same one of the four neighbours; the data term connects the two variables of a cell (Liu
et al. 2011, section 3.1). Messages pass the grid in four sweeps, so that one iteration carries a belief to
all cells of its row and column.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_CONVERGED = 1e-3  # fraction of cells that may still change when iteration stops


@dataclass(frozen=True)
class Smoothness:
    """Truncated linear smoothness, ``min(weight * difference, limit)`` for x and for y.

    Attributes:
        weight: of a difference of one cell.
        limit: largest cost of an edge.
    """

    weight: float
    limit: float


def minimise_on_grid(
    costs: Tensor, own_costs: Tensor, starts: Tensor, smoothness: Smoothness, iterations: int
) -> Tensor:
    """Displacements that approximately minimise data costs plus smoothness.

    Args:
        costs: (h, w, L, L) of each cell for its states of y and x (the last axis).
        own_costs: (2, h, w, L) of the states of x (first) and of y, independent of each other.
        starts: (2, h, w) int64: state 0 of a cell is the displacement ``starts - L // 2`` along x, y.
        smoothness: between neighbours.
        iterations: the most iterations.

    Returns:
        (h, w, 2) int64 states (x, y) in [0, L).
    """
    side = costs.shape[-1]
    rows, columns = _Line(starts, smoothness, 1, side), _Line(starts, smoothness, 2, side)
    between_rows, within_rows = torch.zeros_like(own_costs), torch.zeros_like(own_costs)
    chosen = _choose(costs, own_costs)
    for _ in range(iterations):
        own = own_costs + _exchange(costs, own_costs + between_rows + within_rows)
        within_rows = columns.pass_messages(own + between_rows)
        between_rows = rows.pass_messages(own + within_rows)
        before, chosen = chosen, _choose(costs, own_costs + between_rows + within_rows)
        if int((before != chosen).sum()) <= _CONVERGED * chosen.numel():
            break
    return torch.stack([chosen % side, chosen // side], dim=-1)


def _choose(costs: Tensor, beliefs: Tensor) -> Tensor:
    """(h, w) the best pair of states ``y * L + x`` of each cell, given the beliefs of x and of y."""
    joint = costs + beliefs[0][..., None, :]
    return joint.add_(beliefs[1][..., :, None]).flatten(2).argmin(dim=-1)


def _exchange(costs: Tensor, beliefs: Tensor) -> Tensor:
    """(2, h, w, L) messages between the two variables of a cell: from y to x, and from x to y."""
    to_x = (costs + beliefs[1][..., :, None]).amin(dim=-2)
    to_y = (costs + beliefs[0][..., None, :]).amin(dim=-1)
    messages = torch.stack([to_x, to_y])
    return messages - messages.amin(dim=-1, keepdim=True)


class _Line:
    """Sweeps along one axis of the grid, in both directions."""

    def __init__(self, starts: Tensor, smoothness: Smoothness, axis: int, states: int) -> None:
        self._axis, self._smoothness = axis, smoothness
        lines = starts.movedim(axis, 0)  # (n, 2, m)
        jumps = lines[1:] - lines[:-1]
        self._forward = _Overlap.of(jumps, states, smoothness.weight)
        self._backward = _Overlap.of(-jumps.flip(0), states, smoothness.weight)

    def pass_messages(self, beliefs: Tensor) -> Tensor:
        """(2, h, w, L) the sum of the messages from both neighbours on the axis.

        Args:
            beliefs: (2, h, w, L) of each cell, without messages along this axis.
        """
        lines = beliefs.movedim(self._axis, 0).contiguous()  # (n, 2, m, L)
        forward = self._sweep(lines, self._forward)
        backward = self._sweep(lines.flip(0), self._backward).flip(0)
        return (forward + backward).movedim(0, self._axis)

    def _sweep(self, lines: Tensor, overlap: _Overlap | None) -> Tensor:
        """Messages in one direction: from each cell to the next."""
        messages = torch.zeros_like(lines)
        for cell in range(len(lines) - 1):
            next_overlap = None if overlap is None else overlap[cell]
            beliefs = lines[cell] + messages[cell]
            messages[cell + 1] = compute_message(beliefs, self._smoothness, next_overlap)
        return messages


@dataclass(frozen=True, eq=False)
class _Overlap:
    """The states of the next cell among those of this one, where their windows start at different offsets.

    Attributes:
        states: (..., L) int64, this cell's state that is nearest to each state of the next cell.
        costs: (..., L) smoothness cost of the remaining difference.
    """

    states: Tensor
    costs: Tensor

    @staticmethod
    def of(jumps: Tensor, count: int, weight: float) -> _Overlap | None:
        """From the offsets (...) between the starts of both windows; None where all are 0."""
        if not bool(jumps.any()):
            return None
        shifted = jumps[..., None] + torch.arange(count, device=jumps.device)
        nearest = shifted.clamp(0, count - 1)
        return _Overlap(nearest, weight * (shifted - nearest).abs().to(torch.float32))

    def __getitem__(self, cell: int) -> _Overlap:
        return _Overlap(self.states[cell], self.costs[cell])


def compute_message(beliefs: Tensor, smoothness: Smoothness, overlap: _Overlap | None = None) -> Tensor:
    """The min-sum message to the next cell: for each of its states the lowest cost over this cell's states.

    Args:
        beliefs: (..., L) costs of this cell's states.
        smoothness: cost of differences.
        overlap: the next cell's states among these; None where they are the same.

    Returns:
        (..., L), less the lowest belief.
    """
    spread = spread_along(beliefs, smoothness.weight, -1)
    if overlap is not None:  # costs keep rising beyond the ends of the window
        spread = spread.gather(-1, overlap.states).add_(overlap.costs)
    least = beliefs.amin(dim=-1, keepdim=True)
    return torch.minimum(spread, least + smoothness.limit).sub_(least)


def spread_along(costs: Tensor, weight: float, axis: int) -> Tensor:
    """Distance transform along an axis: the lowest cost plus ``weight`` times the distance to it.

    A forward and a backward pass take linear time (Felzenszwalb and Huttenlocher 2006, section 4.1).
    """
    slope = weight * torch.arange(costs.shape[axis], device=costs.device, dtype=costs.dtype)
    slope = slope.view(-1, *[1] * (-axis - 1))
    forward = torch.cummin(costs - slope, dim=axis).values.add_(slope)
    backward = torch.cummin((costs + slope).flip(axis), dim=axis).values.flip(axis).sub_(slope)
    return torch.minimum(forward, backward)
