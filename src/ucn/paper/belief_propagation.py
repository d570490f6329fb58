"""Belief propagation (min-sum) for displacements on a grid, x and y in two layers, as SIFT Flow does it.

Each cell has one variable for its displacement along x and one for that along y. Smoothness ties each to the
same variable of the four neighbours; what the match costs ties the two variables of a cell to each other (Liu
et al. 2011, section 3.1). Messages run through the grid in four sweeps, so that one iteration carries what a
cell knows to all cells of its row and column.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_SETTLED = 1e-3  # share of cells that may still change their minds when iteration stops


@dataclass(frozen=True)
class Smoothness:
    """What it costs that neighbours differ: ``min(weight * difference, limit)`` for x and for y.

    Attributes:
        weight: of a difference of one cell.
        limit: the most that an edge costs.
    """

    weight: float
    limit: float


def minimise_on_grid(
    costs: Tensor, own_costs: Tensor, starts: Tensor, smoothness: Smoothness, iterations: int
) -> Tensor:
    """Displacements that, approximately, minimise data costs plus smoothness.

    Args:
        costs: (h, w, L, L) of each cell for its states of y and x (the last axis).
        own_costs: (2, h, w, L) of the states of x (first) and y alone.
        starts: (2, h, w) int64: state 0 of a cell is the displacement ``starts - L // 2`` along x, y.
        smoothness: ties neighbours.
        iterations: at most so many.

    Returns:
        (h, w, 2) int64 states (x, y) in [0, L).
    """
    side = costs.shape[-1]
    rows, columns = _Line(starts, smoothness, 1, side), _Line(starts, smoothness, 2, side)
    across, along = torch.zeros_like(own_costs), torch.zeros_like(own_costs)
    chosen = _choose(costs, own_costs)
    for _ in range(iterations):
        own = own_costs + _exchange(costs, own_costs + across + along)
        along = columns.pass_messages(own + across)
        across = rows.pass_messages(own + along)
        before, chosen = chosen, _choose(costs, own_costs + across + along)
        if int((before != chosen).sum()) <= _SETTLED * chosen.numel():
            break
    return torch.stack([chosen % side, chosen // side], dim=-1)


def _choose(costs: Tensor, beliefs: Tensor) -> Tensor:
    """(h, w) the best pair of states ``y * L + x`` of each cell, given what is believed of x and of y."""
    joint = costs + beliefs[0][..., None, :]
    return joint.add_(beliefs[1][..., :, None]).flatten(2).argmin(dim=-1)


def _exchange(costs: Tensor, beliefs: Tensor) -> Tensor:
    """(2, h, w, L) what the variable of y tells that of x in the same cell, and the other way."""
    to_x = (costs + beliefs[1][..., :, None]).amin(dim=-2)
    to_y = (costs + beliefs[0][..., None, :]).amin(dim=-1)
    messages = torch.stack([to_x, to_y])
    return messages - messages.amin(dim=-1, keepdim=True)


class _Line:
    """Sweeps along one axis of the grid, both ways."""

    def __init__(self, starts: Tensor, smoothness: Smoothness, axis: int, states: int) -> None:
        self._axis, self._smoothness = axis, smoothness
        lines = starts.movedim(axis, 0)  # (n, 2, m)
        jumps = lines[1:] - lines[:-1]
        self._forth = _Landing.of(jumps, states, smoothness.weight)
        self._back = _Landing.of(-jumps.flip(0), states, smoothness.weight)

    def pass_messages(self, beliefs: Tensor) -> Tensor:
        """(2, h, w, L) what each cell is told by both neighbours on the axis.

        Args:
            beliefs: (2, h, w, L) what cells know from elsewhere.
        """
        lines = beliefs.movedim(self._axis, 0).contiguous()  # (n, 2, m, L)
        forth = self._sweep(lines, self._forth)
        back = self._sweep(lines.flip(0), self._back).flip(0)
        return (forth + back).movedim(0, self._axis)

    def _sweep(self, lines: Tensor, landing: _Landing | None) -> Tensor:
        """Messages one way: each cell tells the next what it knows and what it was just told."""
        told = torch.zeros_like(lines)
        for cell in range(len(lines) - 1):
            there = None if landing is None else landing[cell]
            told[cell + 1] = tell(lines[cell] + told[cell], self._smoothness, there)
        return told


@dataclass(frozen=True, eq=False)
class _Landing:
    """Where the states of the next cell lie among those of this one, for windows that start apart.

    Attributes:
        states: (..., L) int64, this cell's state that is nearest to each state of the next cell.
        costs: (..., L) what the rest of the way costs.
    """

    states: Tensor
    costs: Tensor

    @staticmethod
    def of(jumps: Tensor, count: int, weight: float) -> _Landing | None:
        """From how much later the next window starts (...); None where all start together."""
        if not bool(jumps.any()):
            return None
        wanted = jumps[..., None] + torch.arange(count, device=jumps.device)
        nearest = wanted.clamp(0, count - 1)
        return _Landing(nearest, weight * (wanted - nearest).abs().to(torch.float32))

    def __getitem__(self, cell: int) -> _Landing:
        return _Landing(self.states[cell], self.costs[cell])


def tell(beliefs: Tensor, smoothness: Smoothness, landing: _Landing | None = None) -> Tensor:
    """A message: for each state of the next cell, the least that this one's best state would cost.

    Args:
        beliefs: (..., L) costs of this cell's states.
        smoothness: what differences cost.
        landing: where the next cell's states lie among these; None where they are the same.

    Returns:
        (..., L) with a least of 0 where the next cell can follow.
    """
    spread = spread_along(beliefs, smoothness.weight, -1)
    if landing is not None:  # beyond the ends of the window costs go on rising
        spread = spread.gather(-1, landing.states).add_(landing.costs)
    least = beliefs.amin(dim=-1, keepdim=True)
    return torch.minimum(spread, least + smoothness.limit).sub_(least)


def spread_along(costs: Tensor, weight: float, axis: int) -> Tensor:
    """For each place on an axis the least of all costs on it plus ``weight`` times the distance there.

    Running minima forth and back take linear time (Felzenszwalb and Huttenlocher 2006, section 4.1).
    """
    slope = weight * torch.arange(costs.shape[axis], device=costs.device, dtype=costs.dtype)
    slope = slope.view(-1, *[1] * (-axis - 1))
    forth = torch.cummin(costs - slope, dim=axis).values.add_(slope)
    back = torch.cummin((costs + slope).flip(axis), dim=axis).values.flip(axis).sub_(slope)
    return torch.minimum(forth, back)
