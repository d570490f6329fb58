"""Kinds of synthetic pairs: each is what it claims, a mixture keeps its shares, and strength scales all."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.photo_cases import write_photos
from ucn.config import SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs, views
from ucn.errors import ConfigError
from ucn.geometry.warp import homography_from_points, warp_points
from ucn.types import PairBatch

PLAIN = SyntheticConfig(side=64, points=200, photometric=0.0)
MIXED = replace(PLAIN, affine_share=0.25, spline_share=0.25, parallax_share=0.25)


@pytest.fixture
def bank(tmp_path: Path) -> ImageBank:
    return ImageBank(write_photos(tmp_path / "photos", [(130, 150), (190, 150), (120, 120)]), 192, "cpu")


def draw(
    bank: ImageBank, config: SyntheticConfig, batch: int = 8, seed: int = 0, strength: float = 1.0
) -> PairBatch:
    return make_pairs(bank, batch, config, torch.Generator().manual_seed(seed), strength)


def valid_points(pair: PairBatch) -> tuple[Tensor, Tensor]:
    keep = pair.is_valid[0]
    return pair.points0[0][keep].double(), pair.points1[0][keep].double()


def fit_affine(points0: Tensor, points1: Tensor) -> tuple[Tensor, float]:
    """The affine map (3, 2) of points (N, 2) by least squares, and its largest miss in pixels."""
    rows = torch.cat([points0, torch.ones(len(points0), 1).double()], dim=1)
    solution = torch.linalg.lstsq(rows, points1).solution
    return solution, (rows @ solution - points1).norm(dim=-1).max().item()


def miss_of_one_homography(pair: PairBatch) -> float:
    points0, points1 = valid_points(pair)
    H = homography_from_points(points0, points1)
    misses = (warp_points(points0[None], H[None])[0] - points1).norm(dim=-1)
    return float(misses.max())


def test_defaults_sample_the_pairs_they_always_drew(bank: ImageBank) -> None:
    # Places are those of the first release, which knew homographies only: recipes must not change under their
    # users. From afar, colours are those of smaller copies of a photograph.
    batch = draw(bank, SyntheticConfig(side=64, points=100), batch=3, seed=7)
    assert batch.names == ("00.png", "01.png", "01.png")
    assert batch.is_valid.sum(dim=1).tolist() == [100, 100, 100]
    torch.testing.assert_close(
        batch.points0[:, 5],
        torch.tensor([[35.023, 40.208], [18.664, 41.848], [1.303, 54.781]]),
        atol=1e-3,
        rtol=0,
    )
    torch.testing.assert_close(
        batch.points1[:, 5],
        torch.tensor([[30.575, 30.589], [13.443, 34.511], [8.585, 42.096]]),
        atol=1e-2,
        rtol=0,
    )
    torch.testing.assert_close(
        batch.image0.mean(dim=(1, 2, 3)), torch.tensor([0.61256, 0.4113, 0.51284]), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        batch.image1[:, 1, 40, 9], torch.tensor([0.2335, 0.5548, 0.9835]), atol=1e-3, rtol=0
    )


def test_affine_pairs_follow_affine_maps(bank: ImageBank) -> None:
    config = replace(PLAIN, affine_share=1.0, stretch=1.8, max_scale=1.5)
    ratios = []
    for pair in draw(bank, config, batch=64):
        solution, miss = fit_affine(*valid_points(pair))
        assert miss < 1e-2
        stretch = torch.linalg.svdvals(solution[:2])
        ratios.append((stretch[0] / stretch[1]).item())
        assert 1 / 1.51 < (stretch[0] * stretch[1]).sqrt().item() < 1.51
    assert 1 <= min(ratios) < 1.1 and 1.6 < max(ratios) <= 1.801


def test_an_affine_map_by_hand(bank: ImageBank, monkeypatch: pytest.MonkeyPatch) -> None:
    # View 1 sees twice as much from left to right and half as much from top to bottom.
    stretch = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
    monkeypatch.setattr(views, "_sample_stretches", lambda batch, *_: stretch.expand(batch, 2, 2))
    config = replace(PLAIN, affine_share=1.0, upright_share=1.0, upright_degrees=0.0, max_scale=1.0)
    for pair in draw(bank, config, batch=3):
        points0, points1 = valid_points(pair)
        steps0, steps1 = points0[1:] - points0[:1], points1[1:] - points1[:1]
        torch.testing.assert_close(steps1, steps0 * torch.tensor([0.5, 2.0]).double(), atol=1e-3, rtol=0)


def test_stretches_by_hand() -> None:
    stretches = views._sample_stretches(500, 3.0, 1.0, torch.Generator().manual_seed(0))
    torch.testing.assert_close(stretches, stretches.mT)
    torch.testing.assert_close(torch.linalg.det(stretches), torch.ones(500), atol=1e-4, rtol=0)
    values, vectors = torch.linalg.eigh(stretches)
    ratios = values[:, 1] / values[:, 0]
    assert 1 <= ratios.min() < 1.02 and 2.95 < ratios.max() < 3.001
    angles = torch.atan2(vectors[:, 1, 1], vectors[:, 0, 1]) % torch.pi
    assert torch.histc(angles, 4, 0, torch.pi).min() > 80


def test_deformed_pairs_follow_no_homography_but_one_without_strength(bank: ImageBank) -> None:
    config = replace(PLAIN, spline_share=1.0, spline=0.19)
    for pair in draw(bank, config, batch=8):
        assert miss_of_one_homography(pair) > 0.5
    for pair in draw(bank, replace(config, spline=0.0), batch=8):
        assert miss_of_one_homography(pair) < 1e-2


def test_a_mixture_keeps_its_shares(bank: ImageBank) -> None:
    batch = draw(bank, replace(MIXED, perspective=0.3, parallax=0.4, spline=0.19), batch=32)
    assert sum(" + " in name for name in batch.names) == 8
    flat = [pair for pair in batch if " + " not in pair.names[0]]
    is_affine = [fit_affine(*valid_points(pair))[1] < 1e-2 for pair in flat]
    is_homography = [miss_of_one_homography(pair) < 2e-2 for pair in flat]
    assert sum(is_affine) == 8
    assert sum(is_homography) == 16  # affine maps are homographies
    # The kinds stand in random order.
    kinds = [" + " in name for name in batch.names]
    assert kinds != sorted(kinds) and kinds != sorted(kinds, reverse=True)


def test_odd_shares_are_kept_over_many_batches(bank: ImageBank) -> None:
    generator = torch.Generator().manual_seed(0)
    config = replace(PLAIN, points=10, spline_share=0.35, parallax_share=0.3)
    names = [name for _ in range(60) for name in make_pairs(bank, 1, config, generator).names]
    assert sum(" + " in name for name in names) / 60 == pytest.approx(0.3, abs=0.15)


@pytest.mark.parametrize("config", [PLAIN, MIXED, replace(MIXED, photometric=1.0)])
def test_strength_zero_gives_equal_views(bank: ImageBank, config: SyntheticConfig) -> None:
    batch = draw(bank, config, strength=0.0)
    torch.testing.assert_close(batch.image0, batch.image1, atol=1e-3, rtol=0)
    torch.testing.assert_close(
        batch.points0[batch.is_valid], batch.points1[batch.is_valid], atol=1e-3, rtol=0
    )
    assert batch.is_valid.double().mean() > 0.9


@pytest.mark.parametrize("config", [PLAIN, MIXED, replace(MIXED, photometric=1.0)])
def test_full_strength_is_the_default(bank: ImageBank, config: SyntheticConfig) -> None:
    expected = make_pairs(bank, 4, config, torch.Generator().manual_seed(0))
    batch = draw(bank, config, batch=4)
    assert torch.equal(batch.image1, expected.image1)
    torch.testing.assert_close(batch.points1, expected.points1, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", [{}, {"affine_share": 1.0}, {"spline_share": 1.0}, {"parallax_share": 1.0}])
def test_more_strength_moves_points_further(bank: ImageBank, kind: dict[str, Any]) -> None:
    moves = []
    for strength in (0.0, 0.2, 0.5, 1.0):
        batch = draw(bank, replace(PLAIN, **kind), batch=32, strength=strength)
        moves.append((batch.points1 - batch.points0)[batch.is_valid].norm(dim=-1).mean().item())
    assert moves[0] < 1e-3
    assert moves[1] > 0.5
    assert moves[1] < moves[2] < moves[3]


@pytest.mark.parametrize("strength", [-0.01, 1.01, float("nan")])
def test_strength_out_of_range(bank: ImageBank, strength: float) -> None:
    with pytest.raises(ValueError, match=r"strength must be in \[0, 1\], got"):
        draw(bank, PLAIN, strength=strength)


@pytest.mark.parametrize("kind", [{}, {"affine_share": 1.0}, {"spline_share": 1.0}, {"parallax_share": 1.0}])
def test_pairs_without_candidates(tmp_path: Path, kind: dict[str, Any]) -> None:
    # No place lies between the pixel centres of a photograph of one pixel, but by a rare chance on it.
    bank = ImageBank(write_photos(tmp_path / "photos", [(1, 1)]), 32, "cpu")
    batch = draw(bank, replace(PLAIN, **kind), batch=2)
    assert not batch.is_valid.any()
    assert batch.points0.shape == batch.points1.shape == (2, 200, 2)
    assert batch.image0.isfinite().all() and batch.image1.isfinite().all()


def test_shares_sum_to_at_most_one() -> None:
    with pytest.raises(ConfigError, match=r"^parallax_share must leave the sum .* at most 1, got 1\.2"):
        SyntheticConfig(affine_share=0.4, spline_share=0.4, parallax_share=0.4)
    SyntheticConfig(affine_share=0.1, spline_share=0.2, parallax_share=0.7)


@pytest.mark.gpu
def test_a_seed_fixes_the_pairs_on_a_gpu(tmp_path: Path) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [(130, 150), (190, 150), (120, 120)]), 192, "cuda")
    config = replace(MIXED, photometric=1.0)
    first, again = (make_pairs(bank, 8, config, torch.Generator("cuda").manual_seed(0)) for _ in range(2))
    assert first.names == again.names
    assert torch.equal(first.image1, again.image1)
    torch.testing.assert_close(first.points1, again.points1, rtol=0, atol=0, equal_nan=True)
