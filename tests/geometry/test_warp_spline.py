"""Thin-plate splines: controls go where they are told, the plane between them as a direct solve says."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.geometry.warp import ThinPlateSpline, control_grid


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def solve_directly(
    controls: NDArray[np.float64], targets: NDArray[np.float64], points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Bookstein's system, entry by entry, for targets instead of displacements and r² log r for r² log r²."""

    def kernel(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
        r = float(np.hypot(*(a - b)))
        return r * r * np.log(r) if r > 0 else 0.0

    count = len(controls)
    system = np.zeros((count + 3, count + 3))
    for i in range(count):
        for j in range(count):
            system[i, j] = kernel(controls[i], controls[j])
        system[i, count:] = system[count:, i] = [1, *controls[i]]
    solution = np.linalg.solve(system, np.concatenate([targets, np.zeros((3, 2))]))
    rows = [[*(kernel(point, c) for c in controls), 1, *point] for point in points]
    return np.array(rows) @ solution


@pytest.mark.parametrize("B", [1, 2])
def test_control_points_move_to_their_targets(B: int) -> None:
    spline = ThinPlateSpline(control_grid(4, (48, 64)).double())
    displacements = draw(B, 16, 2, scale=5.0)
    moved = spline.warp(spline.controls, displacements)
    assert moved.shape == (B, 16, 2)
    torch.testing.assert_close(moved, spline.controls + displacements, atol=1e-9, rtol=0)


def test_float32_is_good_to_a_thousandth_of_a_pixel() -> None:
    spline = ThinPlateSpline(control_grid(5, (320, 320)))
    displacements, points = draw(3, 25, 2, scale=10.0).float(), torch.rand(500, 2) * 320
    wide = ThinPlateSpline(control_grid(5, (320, 320)).double())
    expected = wide.warp(points.double(), displacements.double())
    torch.testing.assert_close(spline.warp(points, displacements).double(), expected, atol=1e-3, rtol=0)


def test_no_displacement_moves_nothing() -> None:
    spline = ThinPlateSpline(control_grid(3, (20, 20)))
    points = torch.rand(2, 50, 2) * 40 - 10
    assert torch.equal(spline.warp(points, torch.zeros(2, 9, 2)), points)


def test_affine_displacements_are_continued_everywhere() -> None:
    spline = ThinPlateSpline(draw(7, 2, scale=30.0))
    matrix, shift = torch.tensor([[0.2, -0.5], [0.3, 0.1]]).double(), torch.tensor([4.0, -3.0]).double()
    points = draw(1, 100, 2, seed=1, scale=100.0)
    moved = spline.warp(points, (spline.controls @ matrix.T + shift)[None])
    torch.testing.assert_close(moved, points + points @ matrix.T + shift, atol=1e-8, rtol=0)


@pytest.mark.parametrize("count", [3, 9])
def test_agrees_with_a_direct_solve(count: int) -> None:
    controls, displacements, points = draw(count, 2), draw(2, count, 2, seed=1), draw(40, 2, seed=2)
    moved = ThinPlateSpline(controls).warp(points, displacements)
    for b in range(2):
        targets = (controls + displacements[b]).numpy()
        expected = solve_directly(controls.numpy(), targets, points.numpy())
        np.testing.assert_allclose(moved[b].numpy(), expected, atol=1e-9)


def test_own_points_and_shared_points_give_the_same() -> None:
    spline = ThinPlateSpline(control_grid(3, (30, 30)).double())
    displacements, points = draw(3, 9, 2), draw(25, 2, seed=1, scale=20.0)
    shared = spline.warp(points, displacements)
    torch.testing.assert_close(spline.warp(points.expand(3, -1, -1), displacements), shared)
    torch.testing.assert_close(torch.cat([spline.warp(points, d[None]) for d in displacements]), shared)


def test_no_points() -> None:
    spline = ThinPlateSpline(control_grid(3, (30, 30)))
    assert spline.warp(torch.zeros(2, 0, 2), torch.zeros(2, 9, 2)).shape == (2, 0, 2)
    assert spline.warp(torch.zeros(5, 2), torch.zeros(0, 9, 2)).shape == (0, 5, 2)


def test_control_grid_reaches_from_edge_to_edge() -> None:
    expected = [[-0.5, -0.5], [3.5, -0.5], [7.5, -0.5], [-0.5, 1.5], [3.5, 1.5], [7.5, 1.5]]
    grid = control_grid(3, (4, 8))
    assert grid.shape == (9, 2)
    assert grid[:6].tolist() == expected
    assert grid[-1].tolist() == [7.5, 3.5]


def test_controls_that_fix_no_spline() -> None:
    with pytest.raises(ValueError, match=r"controls must be \(K, 2\) with K at least 3, got \(2, 2\)"):
        ThinPlateSpline(torch.zeros(2, 2))
    on_a_line = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [5.0, 5.0]])
    twice = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
    for controls in (on_a_line, twice, torch.zeros(4, 2)):
        with pytest.raises(ValueError, match="different points that do not all lie on one line"):
            ThinPlateSpline(controls)


def test_shapes_that_do_not_fit() -> None:
    spline = ThinPlateSpline(control_grid(3, (30, 30)))
    with pytest.raises(ValueError, match=r"displacements must be \(B, 9, 2\), got \(1, 8, 2\)"):
        spline.warp(torch.zeros(5, 2), torch.zeros(1, 8, 2))
    with pytest.raises(ValueError, match=r"points must be \(N, 2\) or \(2, N, 2\), got \(3, 5, 2\)"):
        spline.warp(torch.zeros(3, 5, 2), torch.zeros(2, 9, 2))
    with pytest.raises(ValueError, match=r"got \(5, 3\)"):
        spline.warp(torch.zeros(5, 3), torch.zeros(2, 9, 2))
