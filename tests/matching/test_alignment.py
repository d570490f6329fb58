"""Photometric refinement on images that are formulas, so that every position has an exact value."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.alignment_cases import SHIFT, SIZE_HW, TURN, render
from ucn.matching import alignment
from ucn.matching.alignment import (
    align_patches,
    estimate_local_affine,
    passes_same_surface_test,
    refine_photometric,
)


@pytest.fixture(scope="module")
def grey0() -> Tensor:
    return render((torch.eye(2), torch.zeros(2)))


@pytest.fixture(scope="module")
def grey1() -> Tensor:
    """Picture 0, changed by TURN and SHIFT: what is at p in it is at TURN p + SHIFT here."""
    back = torch.linalg.inv(TURN)
    return render((back, -back @ SHIFT), (150, 190))


def scatter(count: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 2, generator=generator) * torch.tensor([110.0, 70.0]) + 25


def disturb(points: Tensor, pixels: float, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    angles = torch.rand(len(points), generator=generator) * 6.2832
    return points + pixels * torch.stack([angles.cos(), angles.sin()], dim=-1)


def find_alike(grey0: Tensor, grey1: Tensor, points0: Tensor, reach: int) -> Tensor:
    """Within so many pixels of the same place, the places of image 1 whose patches correlate best."""
    best, places = torch.full((len(points0),), -2.0), points0.clone()
    for x in range(-reach, reach + 1, 2):
        for y in range(-reach, reach + 1, 2):
            candidates = points0 + torch.tensor([float(x), float(y)])
            for row, (here, there) in enumerate(zip(points0.tolist(), candidates.tolist(), strict=True)):
                patches = [
                    grey[round(v) - 7 : round(v) + 8, round(u) - 7 : round(u) + 8].flatten()
                    for grey, (u, v) in ((grey0, here), (grey1, there))
                ]
                value = torch.corrcoef(torch.stack(patches))[0, 1]
                if value > best[row]:
                    best[row], places[row] = value, candidates[row]
    return places


def test_matches_move_to_where_they_belong(grey0: Tensor, grey1: Tensor) -> None:
    points0 = scatter(60)
    truth = points0 @ TURN.t() + SHIFT
    linear = (TURN + torch.tensor([[0.04, -0.03], [0.02, 0.05]])).expand(60, 2, 2)
    found = align_patches(grey0, grey1, points0, disturb(truth, 1.0), linear)
    assert found.is_aligned.float().mean() > 0.95
    errors = (found.points1 - truth).norm(dim=1)[found.is_aligned]
    assert errors.median() < 0.02
    assert errors.max() < 0.2
    assert found.correlations[found.is_aligned].min() > 0.9


def test_any_number_of_points_at_a_time(
    grey0: Tensor, grey1: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    points0 = scatter(60)
    points1 = disturb(points0 @ TURN.t() + SHIFT, 1.0)
    linear = TURN.expand(60, 2, 2)
    together = align_patches(grey0, grey1, points0, points1, linear)
    monkeypatch.setattr("ucn.matching.alignment._CHUNK", 7)
    apart = align_patches(grey0, grey1, points0, points1, linear)
    assert torch.equal(together.is_aligned, apart.is_aligned)
    torch.testing.assert_close(together.points1, apart.points1, rtol=0, atol=1e-3)
    torch.testing.assert_close(together.correlations, apart.correlations, rtol=0, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_points_do_not_depend_on_how_they_are_shared(
    threads: int, grey0: Tensor, grey1: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    points0 = scatter(37)
    start, linear = disturb(points0 @ TURN.t() + SHIFT, 0.7), TURN.expand(37, 2, 2)
    expected = align_patches(grey0, grey1, points0, start, linear)
    monkeypatch.setattr(alignment, "_CHUNK", 5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = align_patches(grey0, grey1, points0, start, linear)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.points1, expected.points1, atol=1e-3, rtol=0)
    assert torch.equal(found.is_aligned, expected.is_aligned)
    assert found.is_aligned.any()


def test_types_widen_and_gradients_end(grey0: Tensor, grey1: Tensor) -> None:
    points0 = scatter(9)
    start = disturb(points0 @ TURN.t() + SHIFT, 0.7)
    narrow = align_patches(grey0, grey1, points0, start)
    wide = align_patches(grey0.clone().requires_grad_(), grey1, points0, start.double())
    assert narrow.points1.dtype == torch.float32
    assert wide.points1.dtype == wide.correlations.dtype == torch.float64
    assert not wide.points1.requires_grad
    torch.testing.assert_close(wide.points1.float(), narrow.points1, atol=1e-3, rtol=0)


def test_illumination_may_change(grey0: Tensor, grey1: Tensor) -> None:
    points0 = scatter(30)
    truth = points0 @ TURN.t() + SHIFT
    start, linear = disturb(truth, 0.7), TURN.expand(30, 2, 2)
    plain = align_patches(grey0, grey1, points0, start, linear)
    darker = align_patches(grey0, 0.3 * grey1 + 0.1, points0, start, linear)
    torch.testing.assert_close(darker.points1, plain.points1, atol=2e-3, rtol=0)


def test_the_position_is_where_a_slow_search_finds_the_highest_correlation(grey0: Tensor) -> None:
    shift = torch.tensor([3.4, -2.7])
    moved = render((torch.eye(2), -shift))
    point = torch.tensor([[70.0, 55.0]])
    found = align_patches(grey0, moved, point, point + shift + torch.tensor([[0.6, -0.5]]))
    offsets = np.arange(-7, 8)
    distances = offsets[None, :] ** 2 + offsets[:, None] ** 2
    weights = np.exp(-distances / (2 * (7 / 1.5) ** 2))
    patch = grey0.numpy()[48:63, 63:78]
    best, place = -2.0, (0.0, 0.0)
    for y in np.arange(-3.7, -1.7, 0.05):
        for x in np.arange(2.4, 4.4, 0.05):
            rows, columns = 55 + y + offsets, 70 + x + offsets
            top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
            v, u = (rows - top)[:, None], (columns - left)[None]
            pixels = moved.numpy()
            other = (
                (1 - v) * (1 - u) * pixels[np.ix_(top, left)]
                + (1 - v) * u * pixels[np.ix_(top, left + 1)]
                + v * (1 - u) * pixels[np.ix_(top + 1, left)]
                + v * u * pixels[np.ix_(top + 1, left + 1)]
            )
            a = patch - np.average(patch, weights=weights)
            b = other - np.average(other, weights=weights)
            value = (weights * a * b).sum() / np.sqrt((weights * a * a).sum() * (weights * b * b).sum())
            if value > best:
                best, place = float(value), (float(x), float(y))
    assert found.is_aligned.item()
    assert (found.points1[0] - point[0]).tolist() == pytest.approx(place, abs=0.06)
    assert found.correlations.item() == pytest.approx(best, abs=5e-3)


def test_matches_that_cannot_be_aligned_stay(grey0: Tensor) -> None:
    blank = grey0.clone()
    blank[:, :40] = 0.5
    noise = torch.rand(SIZE_HW, generator=torch.Generator().manual_seed(3))
    points0 = torch.tensor([[15.0, 60.0], [90.0, 60.0]])
    start = points0 + 0.5
    found = align_patches(blank, blank, points0, start)
    assert found.is_aligned.tolist() == [False, True]
    assert found.points1[0].tolist() == start[0].tolist()
    assert found.correlations[0] == -1
    other = align_patches(blank, noise, points0, start)
    assert not other.is_aligned.any()
    assert other.points1.equal(start)


def test_a_match_moves_no_farther_than_allowed(grey0: Tensor) -> None:
    points0 = scatter(40)
    start = disturb(points0, 1.0)
    assert align_patches(grey0, grey0, points0, start, max_shift=1.5).is_aligned.float().mean() > 0.9
    near = align_patches(grey0, grey0, points0, start, max_shift=0.5)
    assert not near.is_aligned.any()
    assert near.points1.equal(start)


def test_missing_matches_stay_missing(grey0: Tensor) -> None:
    points0 = scatter(6)
    points1 = points0 + 0.4
    points1[2] = torch.nan
    found = align_patches(grey0, grey0, points0, points1)
    assert found.points1[2].isnan().all()
    assert found.is_aligned.tolist() == [True, True, False, True, True, True]
    assert found.correlations[2] == -1


@pytest.mark.parametrize("count", [0, 1])
def test_none_and_one(grey0: Tensor, count: int) -> None:
    points = scatter(count)
    found = align_patches(grey0, grey0, points, points + 0.3)
    assert found.points1.shape == (count, 2)
    assert found.is_aligned.shape == found.correlations.shape == (count,)
    assert refine_photometric(grey0, grey0, points, points + 0.3).points1.equal(
        points + 0.3
    )  # without guides


def test_together_or_one_by_one(grey0: Tensor, grey1: Tensor) -> None:
    points0 = scatter(5)
    points1 = disturb(points0 @ TURN.t() + SHIFT, 0.8)
    linear = TURN.expand(5, 2, 2)
    together = align_patches(grey0, grey1, points0, points1, linear)
    for row in range(5):
        alone = align_patches(
            grey0, grey1, points0[row : row + 1], points1[row : row + 1], linear[row : row + 1]
        )
        torch.testing.assert_close(alone.points1[0], together.points1[row], atol=1e-4, rtol=0)


def test_more_points_than_fit_at_once(grey0: Tensor) -> None:
    points = scatter(10).repeat(130, 1)  # 1,300
    found = align_patches(grey0, grey0, points, points + 0.4)
    assert found.points1.shape == (1300, 2)
    torch.testing.assert_close(found.points1[:10], found.points1[-10:], atol=1e-4, rtol=0)


def test_shapes_are_checked(grey0: Tensor) -> None:
    with pytest.raises(ValueError, match=r"points1 must be \(3, 2\), got \(2, 2\)"):
        align_patches(grey0, grey0, torch.zeros(3, 2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"linear_0to1 must be \(3, 2, 2\), got \(1, 2, 2\)"):
        align_patches(grey0, grey0, torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(1, 2, 2))


class TestLinearParts:
    def test_an_affine_map_is_found_though_some_matches_are_wrong(self) -> None:
        known0 = scatter(60)
        known1 = known0 @ TURN.t() + SHIFT
        known1[::15] += torch.tensor([40.0, -30.0])
        found = estimate_local_affine(scatter(9, seed=5), known0, known1)
        torch.testing.assert_close(found, TURN.expand(9, 2, 2), atol=0.02, rtol=0)

    def test_it_is_local(self) -> None:
        left, right = scatter(30), scatter(30) + torch.tensor([300.0, 0.0])
        known0 = torch.cat([left, right])
        known1 = torch.cat([left, right @ TURN.t()])
        found = estimate_local_affine(torch.stack([left[0], right[0]]), known0, known1)
        torch.testing.assert_close(found, torch.stack([torch.eye(2), TURN]), atol=0.02, rtol=0)

    @pytest.mark.parametrize("count", [0, 3])
    def test_few_matches_tell_nothing(self, count: int) -> None:
        known = scatter(count)
        found = estimate_local_affine(scatter(2), known, 2 * known)
        assert found.tolist() == [[[1, 0], [0, 1]]] * 2
        assert estimate_local_affine(scatter(0), known, known).shape == (0, 2, 2)

    def test_across_a_line_of_matches_it_is_the_identity(self) -> None:
        known0 = torch.stack([torch.arange(12.0) * 5, torch.zeros(12)], dim=1)
        found = estimate_local_affine(torch.zeros(1, 2), known0, 1.5 * known0)
        torch.testing.assert_close(found[0], torch.tensor([[1.5, 0], [0, 1]]), atol=5e-3, rtol=0)


class TestMatchesOfAPair:
    def test_a_turned_image(self, grey0: Tensor, grey1: Tensor) -> None:
        points0 = scatter(80)
        truth = points0 @ TURN.t() + SHIFT
        found = refine_photometric(grey0, grey1, points0, disturb(truth, 1.0))
        errors = (found.points1 - truth).norm(dim=1)
        assert found.is_aligned.float().mean() > 0.9
        assert errors.median() < 0.02

    def test_guides_tell_how_a_single_point_is_turned(self, grey0: Tensor, grey1: Tensor) -> None:
        turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        quarter = render((turn.t(), -turn.t() @ torch.tensor([119.0, 0.0])), (160, 120))
        guides0 = scatter(50)
        guides1 = guides0 @ turn.t() + torch.tensor([119.0, 0.0])
        point, start = torch.tensor([[80.0, 60.0]]), torch.tensor([[59.6, 80.7]])
        found = refine_photometric(grey0, quarter, point, start, (guides0, disturb(guides1, 0.5)))
        assert found.points1[0].tolist() == pytest.approx([59.0, 80.0], abs=0.02)
        assert found.is_aligned.shape == (1,)
        assert refine_photometric(grey0, quarter, point, start).points1.equal(start)

    def test_images_of_different_things_are_left_alone(self, grey0: Tensor) -> None:
        other = torch.rand(SIZE_HW, generator=torch.Generator().manual_seed(4))
        mixed = torch.where(torch.arange(160)[None] < 36, grey0, other)  # a part agrees by chance
        points0 = scatter(100)
        start = points0 + 0.4
        found = refine_photometric(grey0, mixed, points0, start)
        assert align_patches(grey0, mixed, points0, start).is_aligned.any()
        assert not found.is_aligned.any()
        assert found.points1.equal(start)

    def test_things_that_look_alike_are_left_alone(self) -> None:
        """Two smooth patterns, matched where they are most alike, as two faces are."""
        whole = torch.eye(2), torch.zeros(2)
        grey0, grey1 = (render(whole, seed=seed, detail=0.5) for seed in (0, 1))
        points0 = scatter(100)
        points1 = find_alike(grey0, grey1, points0, reach=8)
        linear = estimate_local_affine(points0, points0, points1)
        aligned = align_patches(grey0, grey1, points0, points1, linear)
        assert (aligned.correlations >= 0.7).float().mean() > 0.5  # most can be aligned, but by chance
        assert not passes_same_surface_test(grey0, grey1, points0, points1)
        assert refine_photometric(grey0, grey1, points0, points1).points1.equal(points1)
        guides = points0, points1
        found = refine_photometric(grey0, grey1, points0[:3], points1[:3], guides)
        assert found.points1.equal(points1[:3]) and not found.is_aligned.any()

    def test_smooth_patterns_of_one_surface_are_refined(self) -> None:
        back = torch.linalg.inv(TURN)
        grey0 = render((torch.eye(2), torch.zeros(2)), seed=1, detail=0.5)
        grey1 = 0.4 * render((back, -back @ SHIFT), (150, 190), seed=1, detail=0.5) + 0.2
        points0 = scatter(100)
        truth = points0 @ TURN.t() + SHIFT
        assert passes_same_surface_test(grey0, grey1, points0, disturb(truth, 1.0))
        found = refine_photometric(grey0, grey1, points0, disturb(truth, 1.0))
        assert (found.points1 - truth).norm(dim=1).median() < 0.05

    def test_a_surface_that_a_third_of_the_matches_share_is_refined(self, grey0: Tensor) -> None:
        other = torch.rand(SIZE_HW, generator=torch.Generator().manual_seed(4))
        mixed = torch.where(torch.arange(160)[None] < 60, grey0, other)
        points0 = scatter(100)
        found = refine_photometric(grey0, mixed, points0, points0 + 0.4)
        is_shared = points0[:, 0] < 45  # patches far from the border of the surface
        assert (found.points1 - points0)[is_shared].norm(dim=1).max() < 0.05
        assert not found.is_aligned[points0[:, 0] > 80].any()

    def test_many_matches_are_tested_by_the_first(self, grey0: Tensor, grey1: Tensor) -> None:
        points0 = scatter(1000)
        truth = points0 @ TURN.t() + SHIFT
        calls: list[int] = []

        def count(first: Tensor, second: Tensor, points: Tensor, *rest: Any, **options: Any) -> Any:
            calls.append(len(points))
            return align_patches(first, second, points, *rest, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(alignment, "align_patches", count)
            assert passes_same_surface_test(grey0, grey1, points0, disturb(truth, 0.5))
            assert not passes_same_surface_test(grey0, torch.rand(150, 190), points0, truth)
        assert calls == [1000, 256, 1000]  # the first, and none where too few correlate

    def test_exact_matches_and_few_matches_pass(self, grey0: Tensor) -> None:
        points0 = scatter(4)
        assert passes_same_surface_test(grey0, grey0, points0, points0)  # nothing is left to improve
        assert not passes_same_surface_test(grey0, grey0, points0[:3], points0[:3])

    def test_maps_without_an_inverse_are_no_surface(self, grey0: Tensor) -> None:
        points0 = scatter(40) * 100
        assert not passes_same_surface_test(grey0, grey0, scatter(40), torch.full((40, 2), 60.0))
        assert not passes_same_surface_test(grey0, grey0, points0, torch.full((40, 2), 60.0))

    def test_what_is_known_of_the_guides_is_not_found_out_again(self, grey0: Tensor, grey1: Tensor) -> None:
        guides0 = scatter(50)
        guides = (guides0, guides0 @ TURN.t() + SHIFT)
        points0 = scatter(3) + 1
        start = disturb(points0 @ TURN.t() + SHIFT, 0.5)
        assert passes_same_surface_test(grey0, grey1, *guides)
        assert not passes_same_surface_test(grey0, torch.rand(SIZE_HW), *guides)
        assert not passes_same_surface_test(grey0, grey1, guides[0][:3], guides[1][:3])
        plain = refine_photometric(grey0, grey1, points0, start, guides)
        known = refine_photometric(grey0, grey1, points0, start, guides, is_same_surface=True)
        assert known.points1.equal(plain.points1)
        assert refine_photometric(grey0, grey1, points0, start, guides, is_same_surface=False).points1.equal(
            start
        )


@pytest.mark.parametrize("span", [1000.0, 8000.0])
def test_matches_on_a_line_say_nothing_across_it(span: float) -> None:
    along, across = torch.tensor([0.6, 0.8]), torch.tensor([-0.8, 0.6])
    known0 = torch.rand(9, 1, generator=torch.Generator().manual_seed(4)) * span * along
    linear = estimate_local_affine(known0[:1], known0, known0 @ TURN.t() + SHIFT)[0]
    assert linear.dtype == torch.float32
    torch.testing.assert_close(linear @ along, TURN @ along, rtol=0, atol=1e-3)
    torch.testing.assert_close(linear @ across, across, rtol=0, atol=1e-2)
