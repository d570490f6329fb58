"""Belief propagation on grids: exact on chains, close to the minimum where there are loops."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from ucn.paper.belief_propagation import Smoothness, compute_message, minimise_on_grid

Problem = tuple[Tensor, Tensor, Tensor]
"""Costs, costs of single variables, and where windows start."""


def grid_energy(problem: Problem, smoothness: Smoothness, states: Sequence[tuple[int, int]]) -> float:
    """The energy of the states (x, y) of all cells, row by row, added up term by term."""
    costs, own_costs, starts = (part.tolist() for part in problem)
    h, w = problem[0].shape[:2]
    total = 0.0
    for row, column in product(range(h), range(w)):
        x, y = states[row * w + column]
        total += costs[row][column][y][x] + own_costs[0][row][column][x] + own_costs[1][row][column][y]
        for next_row, next_column in ((row + 1, column), (row, column + 1)):
            if next_row == h or next_column == w:
                continue
            for axis in range(2):
                here = states[row * w + column][axis] + starts[axis][row][column]
                there = states[next_row * w + next_column][axis] + starts[axis][next_row][next_column]
                total += min(smoothness.weight * abs(here - there), smoothness.limit)
    return total


def least_energy(problem: Problem, smoothness: Smoothness) -> float:
    """The minimum over all assignments of states."""
    h, w, side = problem[0].shape[:3]
    pairs = [(x, y) for x in range(side) for y in range(side)]
    return min(grid_energy(problem, smoothness, states) for states in product(pairs, repeat=h * w))


def found_energy(problem: Problem, smoothness: Smoothness, iterations: int) -> float:
    """The energy that belief propagation reaches."""
    found = minimise_on_grid(*problem, smoothness, iterations)
    return grid_energy(problem, smoothness, [(x, y) for x, y in found.flatten(0, 1).tolist()])


def make_problem(seed: int, h: int, w: int, side: int, jump: int = 2) -> Problem:
    """Random values."""
    generator = torch.Generator().manual_seed(seed)
    costs = torch.rand(h, w, side, side, generator=generator) * 4
    own_costs = torch.rand(2, h, w, side, generator=generator)
    starts = torch.randint(-jump, jump + 1, (2, h, w), generator=generator)
    return costs, own_costs, starts


def test_a_message_by_hand() -> None:
    beliefs = torch.tensor([4.0, 1.0, 9.0, 9.0])
    # From state 1, at cost 1: 3, 1, 3, 5; no state costs more than the limit above the least.
    assert compute_message(beliefs, Smoothness(2.0, 10.0)).tolist() == [2, 0, 2, 4]
    assert compute_message(beliefs, Smoothness(2.0, 3.0)).tolist() == [2, 0, 2, 3]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(1, 4), (4, 1)])
@pytest.mark.parametrize("limit", [1.5, 100.0])
def test_chains_are_solved_exactly(seed: int, shape: tuple[int, int], limit: float) -> None:
    # With costs of x alone the two layers are two chains, and chains have no loops.
    costs, own_costs, starts = make_problem(seed, *shape, side=2)
    problem = (costs[..., :1, :].expand(-1, -1, 2, -1).contiguous(), own_costs, starts)
    smoothness = Smoothness(0.7, limit)
    least = least_energy(problem, smoothness)
    assert found_energy(problem, smoothness, 10) == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_grids_with_loops_come_close_to_the_minimum(seed: int) -> None:
    problem = make_problem(seed, 2, 3, side=2, jump=1)
    smoothness = Smoothness(0.5, 1.2)
    energy = found_energy(problem, smoothness, 30)
    alone = problem[0].flatten().view(6, 4).argmin(dim=-1).tolist()
    assert energy <= 1.02 * least_energy(problem, smoothness)
    assert energy < grid_energy(problem, smoothness, [(state % 2, state // 2) for state in alone])


def test_x_and_y_are_not_swapped() -> None:
    costs = torch.ones(3, 4, 3, 3)
    costs[..., 0, 2] = 0  # y by its first state, x by its last
    own_costs, starts = torch.zeros(2, 3, 4, 3), torch.zeros(2, 3, 4, dtype=torch.int64)
    found = minimise_on_grid(costs, own_costs, starts, Smoothness(1.0, 5.0), 5)
    assert found.shape == (3, 4, 2)
    assert (found == torch.tensor([2, 0])).all()


def test_smoothness_fills_a_textureless_centre() -> None:
    costs = torch.full((1, 9, 3, 3), 1.0)
    costs[0, [0, 1, 7, 8], 1, 2] = 0.0
    own_costs, starts = torch.zeros(2, 1, 9, 3), torch.zeros(2, 1, 9, dtype=torch.int64)
    found = minimise_on_grid(costs, own_costs, starts, Smoothness(0.5, 5.0), 5)
    assert (found == torch.tensor([2, 1])).all()


def test_windows_that_start_elsewhere_mean_other_displacements() -> None:
    # Two cells whose windows start 2 apart: their states agree where they show the same displacement.
    costs = torch.zeros(1, 2, 3, 3)
    costs[0, 0, :, :] = torch.tensor([5.0, 5.0, 0.0])  # cell 0 prefers its last state, displacement 0 + 2
    own_costs = torch.zeros(2, 1, 2, 3)
    starts = torch.tensor([[[0, 2]], [[0, 0]]])
    found = minimise_on_grid(costs, own_costs, starts, Smoothness(1.0, 9.0), 5)
    assert found[0, :, 0].tolist() == [2, 0]


def test_single_cells_and_single_states() -> None:
    costs, own_costs, starts = make_problem(0, 1, 1, side=3)
    found = minimise_on_grid(costs, own_costs, starts, Smoothness(1.0, 2.0), 3)
    joint = costs[0, 0] + own_costs[0, 0, 0][None, :] + own_costs[1, 0, 0][:, None]
    assert joint[found[0, 0, 1], found[0, 0, 0]] == joint.min()
    one = minimise_on_grid(
        torch.rand(2, 2, 1, 1), torch.zeros(2, 2, 2, 1), starts.expand(2, 2, 2), Smoothness(1, 1), 3
    )
    assert one.tolist() == [[[0, 0], [0, 0]], [[0, 0], [0, 0]]]
