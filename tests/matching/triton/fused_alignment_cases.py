"""Fused alignment against the plain one in float64; run by `test_triton_alignment`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.alignment_cases import SHIFT, TURN, render
from ucn.geometry.neighbours import nearest_points
from ucn.matching import alignment
from ucn.matching.alignment import align_patches, estimate_local_affine
from ucn.matching.triton.alignment import align_patches_fused, fit_local_affine_fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw_pair() -> tuple[Tensor, Tensor]:
    """Two images of odd sizes; what is at p in the first is at TURN p + SHIFT in the second."""
    back = torch.linalg.inv(TURN)
    return render((torch.eye(2), torch.zeros(2)), (91, 117)), render((back, -back @ SHIFT), (103, 129))


def scatter(count: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Points all over the first image, matches about a pixel off, and local affine maps a little off."""
    generator = torch.Generator().manual_seed(count)
    points0 = torch.rand(count, 2, generator=generator) * torch.tensor([120.0, 94.0]) - 2
    points1 = points0 @ TURN.t() + SHIFT + spread * torch.randn(count, 2, generator=generator)
    return points0, points1, TURN + 0.05 * torch.randn(count, 2, 2, generator=generator)


def search(*inputs: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = align_patches_fused(
        *(each.to(DEVICE) for each in inputs),
        radius=alignment._RADIUS,
        spread=alignment._SPREAD,
        steps=alignment._STEPS,
        translation_steps=alignment._TRANSLATION_STEPS,
        max_step=alignment._MAX_STEP,
        damping=alignment._DAMPING,
        min_contrast=alignment._MIN_CONTRAST,
    )
    return tuple(each.cpu() for each in found)


@pytest.mark.parametrize("count", [1, 6] if DEVICE == "cpu" else [1, 2, 33])
def test_positions_and_correlations(count: int) -> None:
    grey0, grey1 = draw_pair()
    points0, points1, linear = scatter(count)
    found = search(grey0, grey1, points0, points1, linear)
    expected = alignment._search_reference(*(x.double() for x in (grey0, grey1, points0, points1, linear)))
    assert [each.shape for each in found] == [each.shape for each in expected]
    # Where patches agree, rounding dies out; elsewhere steps may lead anywhere.
    is_settled = expected[2] > 0.7
    assert is_settled.any()
    torch.testing.assert_close(found[0][is_settled].double(), expected[0][is_settled], rtol=0, atol=1e-3)
    torch.testing.assert_close(found[2][is_settled].double(), expected[2][is_settled], rtol=0, atol=1e-4)
    for row in (1, 3):
        torch.testing.assert_close(found[row].double(), expected[row], rtol=0, atol=2e-5)


def test_matches_far_off_and_blank_patches() -> None:
    grey0, grey1 = draw_pair()
    grey0[:40, :40] = 0.5
    points0, points1, linear = scatter(8, spread=20.0)
    points0[:4] = torch.tensor([[20.0, 20.0], [0.0, 0.0], [-30.0, -30.0], [500.0, 700.0]])
    points1[4:6] = torch.tensor([[-500.0, 40.0], [1e9, -1e9]])
    linear[6] = 0
    found = search(grey0, grey1, points0, points1, linear)
    expected = alignment._search_reference(*(x.double() for x in (grey0, grey1, points0, points1, linear)))
    assert (found[3][:3] < 1e-4).all()
    torch.testing.assert_close(found[3].double(), expected[3], rtol=0, atol=2e-5)
    # A patch that lies on one place of image 1 has no contrast, and what is left of it is rounding.
    assert found[1][6].abs() < 0.05
    others = torch.arange(8) != 6
    torch.testing.assert_close(found[1][others].double(), expected[1][others], rtol=0, atol=2e-5)


def test_tiny_images() -> None:
    for size_hw in ((1, 1), (1, 9), (5, 1)):
        grey = torch.rand(size_hw, generator=torch.Generator().manual_seed(3))
        inputs = (grey, grey, torch.zeros(2, 2), torch.full((2, 2), 0.25), torch.eye(2).expand(2, 2, 2))
        found = search(*inputs)
        expected = alignment._search_reference(*(x.double() for x in inputs))
        for row in (1, 3):
            torch.testing.assert_close(found[row].double(), expected[row], rtol=0, atol=2e-5)


@pytest.mark.parametrize(("count", "known"), [(1, 4), (7, 5), (20, 12), (9, 40)])
def test_linear_parts(count: int, known: int) -> None:
    known0, known1, _ = scatter(known, spread=0.5)
    known1[::4] += 30  # contradict the others
    known0[-1], known1[-1] = known0[0], known1[0]  # as near, and as far off
    points0 = scatter(count)[0]
    neighbours = min(12, known)
    rows = nearest_points(points0, known0, neighbours)[1]
    found = fit_local_affine_fused(
        known0.to(DEVICE), known1.to(DEVICE), rows.to(DEVICE), steps=4, ridge=1.0, min_scale=0.5,
        min_neighbours=4,
    )  # fmt: skip
    expected = estimate_local_affine(points0.double(), known0.double(), known1.double())
    torch.testing.assert_close(found.cpu().double(), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("span", [10.0, 1000.0, 8000.0])
def test_neighbours_on_a_line(span: float) -> None:
    # Across it nothing is known, and the ridge keeps the map there.
    places = torch.rand(9, 1, generator=torch.Generator().manual_seed(4)) * span
    known0 = places * torch.tensor([0.6, 0.8])
    known1 = known0 @ TURN.t() + SHIFT
    rows = torch.arange(9).expand(2, 9)
    found = fit_local_affine_fused(
        known0.to(DEVICE), known1.to(DEVICE), rows.to(DEVICE), steps=4, ridge=1.0, min_scale=0.5,
        min_neighbours=4,
    )  # fmt: skip
    expected = estimate_local_affine(known0[:2], known0, known1)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4)
    along, across = torch.tensor([0.6, 0.8]), torch.tensor([-0.8, 0.6])
    if span > 100:
        torch.testing.assert_close(expected[0] @ along, TURN @ along, rtol=0, atol=1e-3)
        torch.testing.assert_close(expected[0] @ across, across, rtol=0, atol=1e-2)


def test_missing_neighbours() -> None:
    known0, known1, _ = scatter(20, spread=0.5)
    rows = torch.arange(12).repeat(3, 1)
    rows[1, 7:], rows[2, 3:] = -1, -1  # the last has too few
    found = fit_local_affine_fused(
        known0.to(DEVICE), known1.to(DEVICE), rows.to(DEVICE), steps=4, ridge=1.0, min_scale=0.5,
        min_neighbours=4,
    ).cpu()  # fmt: skip
    fewer = fit_local_affine_fused(
        known0.to(DEVICE), known1.to(DEVICE), rows[1:2, :7].to(DEVICE), steps=4, ridge=1.0, min_scale=0.5,
        min_neighbours=4,
    ).cpu()  # fmt: skip
    torch.testing.assert_close(found[1:2], fewer)
    assert torch.equal(found[2], torch.eye(2))
    assert not torch.equal(found[0], found[1])


def test_shapes_that_are_no_numbers() -> None:
    grey0, grey1 = draw_pair()
    points0, points1, linear = scatter(6)
    expected = search(grey0, grey1, points0, points1, linear)
    linear[1], linear[2, 0, 0], linear[3, 1, 1] = torch.nan, torch.inf, -torch.inf
    found = search(grey0, grey1, points0, points1, linear)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours[[0, 4, 5]], theirs[[0, 4, 5]])


def test_faint_image() -> None:
    grey0, grey1 = draw_pair()
    points0, points1, linear = scatter(4)
    inputs = (grey0, 1e-3 * grey1 + 0.3, points0, points1, linear)
    expected = alignment._search_reference(*(x.double() for x in inputs))
    torch.testing.assert_close(search(*inputs)[1].double(), expected[1], rtol=0, atol=1e-2)


def test_nothing_is_read_beyond_a_image() -> None:
    # Rows of a larger buffer, in which all that follows is no number.
    whole = torch.full((40, 20), torch.nan)
    whole[:20] = torch.rand(20, 20, generator=torch.Generator().manual_seed(2))
    corners = torch.tensor([[19.0, 19.0], [0.0, 19.0], [19.0, 0.0], [25.0, 30.0]])
    found = search(whole[:20], whole[:20], corners, corners, torch.eye(2).expand(4, 2, 2))
    assert found[1].isfinite().all()
    assert found[3].isfinite().all()


@pytest.mark.skipif(DEVICE == "cpu", reason="it chooses the programs for CUDA devices alone")
@pytest.mark.parametrize("count", [0, 1, 300])
def test_points_on_a_gpu_are_aligned_as_on_a_cpu(count: int) -> None:
    grey0, grey1 = draw_pair()
    points0, points1, linear = scatter(count)
    points1[::7] = torch.nan
    expected = align_patches(grey0, grey1, points0, points1, linear)
    found = align_patches(*(each.to(DEVICE) for each in (grey0, grey1, points0, points1, linear)))
    is_alike = found.is_aligned.cpu() == expected.is_aligned
    assert is_alike.float().mean() >= 0.99 or not count
    torch.testing.assert_close(
        found.points1.cpu()[is_alike], expected.points1[is_alike], rtol=0, atol=2e-3, equal_nan=True
    )
    wide = align_patches(*(each.to(DEVICE).double() for each in (grey0, grey1, points0, points1, linear)))
    assert wide.points1.dtype == torch.float64
