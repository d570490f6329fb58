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

_PENALTY_BYTES = 64 * 2**20
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
        numbers = torch.arange(states, device=starts.device)
        self._gaps = (numbers[None, :] - numbers[:, None]).to(torch.float32)  # [to, from]
        lines = starts.movedim(axis, 0)  # (n, 2, m)
        # From each cell to the next: their states are apart by so much more than their numbers say.
        self._jumps = (lines[:-1] - lines[1:]).to(torch.float32)
        self._is_even = bool((self._jumps == 0).all())

    def pass_messages(self, beliefs: Tensor) -> Tensor:
        """(2, h, w, L) what each cell is told by both neighbours on the axis.

        Args:
            beliefs: (2, h, w, L) what cells know from elsewhere.
        """
        lines = beliefs.movedim(self._axis, 0).contiguous()  # (n, 2, m, L)
        forth = self._sweep(lines, self._jumps)
        back = self._sweep(lines.flip(0), -self._jumps.flip(0)).flip(0)
        return (forth + back).movedim(0, self._axis)

    def _sweep(self, lines: Tensor, jumps: Tensor) -> Tensor:
        """Messages one way: each cell tells the next what it knows and what it was just told."""
        told = torch.zeros_like(lines)
        if self._is_even:  # one price for all
            jumps = jumps[:1, :1, :1].expand(len(lines) - 1, 1, 1)
        block = max(1, _PENALTY_BYTES // (4 * lines[0].numel() * lines.shape[-1]))
        for first in range(0, len(lines) - 1, block):
            penalties = self._price(jumps[first : first + block])
            for cell, penalty in enumerate(penalties, start=first):
                told[cell + 1] = tell(lines[cell] + told[cell], penalty, self._smoothness.limit)
        return told

    def _price(self, jumps: Tensor) -> Tensor:
        """(..., L, L) what states of two neighbours cost together, [to, from], given jumps (...)."""
        return (jumps[..., None, None] + self._gaps).abs_().mul_(self._smoothness.weight)


def tell(beliefs: Tensor, penalty: Tensor, limit: float) -> Tensor:
    """A message: for each state of the next cell, the least that this one's best state would cost.

    Args:
        beliefs: (..., L) costs of this cell's states.
        penalty: (..., L, L) of [the next cell's state, this cell's state].
        limit: the most that a penalty counts.

    Returns:
        (..., L) with a least of 0.
    """
    least = beliefs.amin(dim=-1, keepdim=True)
    return torch.minimum((beliefs[..., None, :] + penalty).amin(dim=-1), least + limit).sub_(least)
