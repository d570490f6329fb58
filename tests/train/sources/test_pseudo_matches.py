"""Matches without annotation: exact on a copy of a view, robust to outliers, none where nothing is usable."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import pixel_grid
from ucn.matching.consensus import Consensus, measure_support
from ucn.train.sources import pseudo_matches
from ucn.train.sources.pseudo_matches import _expand_support, _smooth, match_cells

H, W = 13, 16


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_features(h: int = H, w: int = W, seed: int = 0, B: int = 1) -> Tensor:
    """Unit descriptors (B, 16, h, w), no two of which are alike."""
    return F.normalize(torch.randn(B, 16, h, w, generator=seeded(seed)), dim=1)


def all_cells(B: int = 1, h: int = H, w: int = W) -> Tensor:
    return torch.ones(B, h * w, dtype=torch.bool)


def grid(h: int = H, w: int = W) -> Tensor:
    return pixel_grid((h, w), torch.device("cpu")).reshape(-1, 2).float()


def test_a_view_matches_itself() -> None:
    features = make_features(B=2)
    found = match_cells(features, features, all_cells(2), all_cells(2))
    assert found.is_kept.all()
    torch.testing.assert_close(found.targets, grid().expand(2, -1, -1), atol=1e-3, rtol=0)
    assert found.agreement.tolist() == [1.0, 1.0]


def test_a_known_shift_is_found() -> None:
    whole = make_features(H + 2, W + 3)
    view0, view1 = whole[..., :H, :W], whole[..., 2:, 3:]  # cell (x, y) of view 0 is (x - 3, y - 2) of view 1
    found = match_cells(view0, view1, all_cells(), all_cells())
    expected = grid() - torch.tensor([3.0, 2.0])
    is_seen = (expected >= 0).all(dim=-1)
    assert found.is_kept[0, is_seen].float().mean() > 0.95
    is_right = is_seen & found.is_kept[0]
    assert (found.targets[0, is_right] - expected[is_right]).norm(dim=-1).max() < 0.5
    assert found.agreement.item() == pytest.approx(found.is_kept.float().mean().item())


def test_views_are_not_swapped() -> None:
    whole = make_features(H + 2, W + 3)
    view0, view1 = whole[..., :H, :W], whole[..., 2:, 3:]
    centre = (H // 2) * W + W // 2
    forward, backward = (
        match_cells(a, b, all_cells(), all_cells()) for a, b in ((view0, view1), (view1, view0))
    )
    assert ((forward.targets[0, centre] - grid()[centre]).round() == torch.tensor([-3.0, -2.0])).all()
    assert ((backward.targets[0, centre] - grid()[centre]).round() == torch.tensor([3.0, 2.0])).all()


def test_planted_outliers_are_dropped() -> None:
    features0 = make_features()
    features1 = features0.clone()
    # Cells (4, 6) and (12, 5) trade places in view 1: both are consistent, but not with their neighbours.
    features1[..., 6, 4], features1[..., 5, 12] = features0[..., 5, 12], features0[..., 6, 4]
    found = match_cells(features0, features1, all_cells(), all_cells())
    outliers = torch.tensor([6 * W + 4, 5 * W + 12])
    assert not found.is_kept[0, outliers].any()
    others = torch.ones(H * W, dtype=torch.bool).index_fill(0, outliers, False)
    assert found.is_kept[0, others].all()
    # What is left of them in the maps of their neighbours is small, and theirs are the neighbours'.
    assert (found.targets[0] - grid()).norm(dim=-1).max() < 0.3


def test_masks_are_respected() -> None:
    features = make_features(B=2)
    usable0, usable1 = all_cells(2), all_cells(2)
    columns = grid()[:, 0]
    usable0[0], usable1[1] = columns >= 5, columns >= 5
    found = match_cells(features, features, usable0, usable1)
    assert torch.equal(found.is_kept[0], columns >= 5)
    assert found.agreement[0] == 1  # a share of the usable cells alone
    # Of pair 1, cells whose own match is excluded may only match usable cells, three or more away.
    assert found.is_kept[1, columns >= 5].all()
    assert not found.is_kept[1, columns <= 2].any()
    assert found.agreement[1].item() == pytest.approx(found.is_kept[1].float().mean().item())
    alone = match_cells(features[1:], features[1:], usable0[1:], usable1[1:])
    assert torch.equal(alone.is_kept[0], found.is_kept[1])
    torch.testing.assert_close(alone.targets[0], found.targets[1])


@pytest.mark.parametrize("empty", ["view 0", "view 1", "both"])
def test_nothing_usable_gives_nothing(empty: str) -> None:
    features, nothing = make_features(), torch.zeros(1, H * W, dtype=torch.bool)
    usable0 = all_cells() if empty == "view 1" else nothing
    usable1 = all_cells() if empty == "view 0" else nothing
    found = match_cells(features, features, usable0, usable1)
    assert not found.is_kept.any()
    assert found.agreement.tolist() == [0.0]
    assert found.targets.isfinite().all()


def test_inputs_are_left_as_they_are() -> None:
    features = make_features().half()
    before = features.clone()
    match_cells(features, features, all_cells(), all_cells())
    assert torch.equal(features, before)


@pytest.mark.parametrize("size_hw", [(12, 16), (13, 18)])
def test_support_is_that_of_matching(size_hw: tuple[int, int]) -> None:
    """Between cells as `Consensus` interpolates it, for each of the views."""
    features = make_features(*size_hw, seed=1, B=2), make_features(*size_hw, seed=2, B=2)
    found = _expand_support(*features)
    for row in range(2):
        coarse = [
            F.normalize(F.avg_pool2d(f[row], pseudo_matches.CELLS, ceil_mode=True), dim=0) for f in features
        ]
        support = measure_support(coarse[0], coarse[1])
        consensus = Consensus(support, pseudo_matches.CELLS, stride=1, offset=0.0)
        rows = consensus.read_rows(grid(*size_hw))  # (N, h1, w1)
        torch.testing.assert_close(found[row], consensus.expand_rows(rows, size_hw), atol=1e-5, rtol=1e-4)


def smooth_slowly(cells: Tensor, targets: Tensor, is_consistent: Tensor) -> tuple[Tensor, Tensor]:
    """One pair, cell by cell: a weighted affine fit with a ridge that pulls it towards the identity."""
    weights = is_consistent.double()
    predicted = torch.zeros_like(targets)
    for _ in range(pseudo_matches._FITS):
        for row, cell in enumerate(cells):
            near = torch.exp(-(cells - cell).square().sum(dim=1) / (2 * pseudo_matches._SPREAD_CELLS**2))
            own = near * weights
            own = own / own.sum()
            mean0, mean1 = (own[:, None] * cells).sum(dim=0), (own[:, None] * targets).sum(dim=0)
            spread = pseudo_matches._RIDGE_CELLS**2 * torch.eye(2, dtype=cells.dtype)
            cross = spread.clone()
            for weight, x, y in zip(own, cells - mean0, targets - mean1, strict=True):
                spread = spread + weight * torch.outer(x, x)
                cross = cross + weight * torch.outer(x, y)
            predicted[row] = mean1 + (cell - mean0) @ torch.linalg.inv(spread) @ cross
        residuals = (predicted - targets).norm(dim=1)
        weights = is_consistent / (1 + (residuals / pseudo_matches._RESIDUAL_CELLS) ** 2) ** 2
    return predicted, residuals


def test_smoothing_equals_a_slow_reference() -> None:
    h, w = 5, 6
    cells = grid(h, w)
    targets = cells @ torch.tensor([[0.9, 0.2], [-0.1, 1.1]]) + torch.tensor([4.0, -2.0])
    targets = targets + 0.5 * torch.randn(2, h * w, 2, generator=seeded(3))
    targets[0, 7] += 15
    is_consistent = torch.rand(2, h * w, generator=seeded(4)) < 0.7
    predicted, residuals = _smooth(cells, targets, is_consistent)
    for row in range(2):
        expected = smooth_slowly(cells.double(), targets[row].double(), is_consistent[row])
        torch.testing.assert_close(predicted[row].double(), expected[0], atol=2e-3, rtol=0)
        torch.testing.assert_close(residuals[row].double(), expected[1], atol=2e-3, rtol=0)


def test_smoothing_far_from_any_match_stays_finite() -> None:
    cells, is_consistent = grid(3, 200), torch.zeros(1, 600, dtype=torch.bool)
    is_consistent[0, :2] = True
    predicted, residuals = _smooth(cells, cells[None], is_consistent)
    assert predicted.isfinite().all() and residuals.isfinite().all()
    torch.testing.assert_close(predicted[0, :2], cells[:2])
