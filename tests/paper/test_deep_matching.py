"""DeepMatching: descent against all paths, peaks and conflicts by hand, known shifts."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.flow_cases import deform_texture, find_errors
from ucn.features.classical import DenseSift
from ucn.features.pair_matcher import NearestNeighbours
from ucn.paper.correlation import Atoms, build_levels, child_step, cut_atoms, quarter_shifts
from ucn.paper.deep_matching import AtomicMatches, DeepMatching, descend, drop_repeated, find_peaks
from ucn.paper.deep_pixels import DeepPixels
from ucn.types import FeatureMap

Best = dict[tuple[int, int], dict[tuple[int, int], float]]
"""By patch and position: the best sum of similarities of any path from the top to there."""


def make_atoms(seed: int, cells: int) -> Atoms:
    """A small pair of random maps, cut up."""
    generator = torch.Generator().manual_seed(seed)
    features0, features1 = (
        F.normalize(torch.rand(4, *size, generator=generator) ** 3, dim=0)
        for size in ((5 * cells, 4 * cells), (9, 11))
    )
    return cut_atoms(features0, features1, cells, 1.4)


def slow_descent(atoms: Atoms, levels: list[Tensor]) -> Best:
    """Traces every position of every patch down, one by one."""
    n0, m0 = atoms.patches0.shape[:2]
    h1, w1 = atoms.grid1_hw
    everywhere = torch.arange(h1 * w1).expand(n0, m0, h1 * w1)
    maps = [atoms.look_up(everywhere).view(n0, m0, h1, w1), *levels]
    top = len(levels)
    best: Best = {}
    for i, j, y, x in product(*map(range, maps[top].shape)):
        best.setdefault((i, j), {})[y, x] = float(maps[top][i, j, y, x])
    for level in range(top, 0, -1):
        best = _follow(best, maps[level - 1], level, atoms.cells)
    return best


def _follow(best: Best, below: Tensor, level: int, cells: int) -> Best:
    """From the patches of a level to their quarters."""
    n, m, h, w = below.shape
    shifts, found = quarter_shifts(cells, level), Best()
    for (i, j), places in best.items():
        for down, right in product(range(2), range(2)):
            step = child_step(level) if level > 1 else 0
            k = i + (down if level == 1 else (2 * down - 1) * step)
            other = j + (right if level == 1 else (2 * right - 1) * step)
            if not (0 <= k < n and 0 <= other < m):
                continue
            for (y, x), score in places.items():
                v, u = 2 * (y + shifts[down]), 2 * (x + shifts[right])
                if not (0 <= v < h and 0 <= u < w):
                    continue
                near = product(range(v - 1, v + 2), range(u - 1, u + 2))
                place = max(
                    ((a, b) for a, b in near if 0 <= a < h and 0 <= b < w),
                    key=lambda spot: float(below[k, other, spot[0], spot[1]]),
                )
                total = score + float(below[k, other, place[0], place[1]])
                heard = found.setdefault((k, other), {})
                heard[place] = max(total, heard.get(place, -1.0))
    return found


@pytest.mark.parametrize("cells", [2, 4])
def test_descent_against_all_paths(cells: int) -> None:
    atoms = make_atoms(0, cells)
    levels = build_levels(atoms)
    assert len(levels) == 2
    found = descend(atoms, levels, kept=99)
    wanted = slow_descent(atoms, levels)
    for i, j in product(range(5), range(4)):
        place, score = max(wanted[i, j].items(), key=lambda item: item[1])
        assert (int(found.rows[i, j]), int(found.columns[i, j])) == place
        assert float(found.scores[i, j]) == pytest.approx(score, rel=1e-5)


def test_few_positions_suffice() -> None:
    atoms = make_atoms(1, 2)
    levels = build_levels(atoms)
    few, many = descend(atoms, levels, kept=4), descend(atoms, levels, kept=99)
    assert (few.scores <= many.scores + 1e-6).all()
    assert float(few.scores.mean()) > 0.95 * float(many.scores.mean())


@pytest.mark.parametrize("extractor", [DeepPixels(1), DeepPixels(2), DenseSift()])
def test_a_shift(extractor: DeepPixels | DenseSift) -> None:
    views = deform_texture((96, 128), (24.0, -8.0))
    matcher = DeepMatching(atom_cells=2 if isinstance(extractor, DenseSift) else 4)
    errors = find_errors(extractor, matcher, views, use_refinement=False)
    assert errors.quantile(0.9) < 0.01
    assert find_errors(extractor, matcher, views, use_refinement=True).quantile(0.9) < 1


def test_waves_are_followed() -> None:
    views = deform_texture((96, 112), (9.0, 5.0), waves=3.0)
    errors = find_errors(DeepPixels(1), DeepMatching(), views)
    assert errors.quantile(0.9) < 2
    assert errors.mean() < 0.2 * find_errors(DeepPixels(1), NearestNeighbours(), views).mean()


def test_it_is_deterministic() -> None:
    views = deform_texture((64, 72), (5.0, 3.0), waves=2.0)
    first, second = (find_errors(DeepPixels(1), DeepMatching(), views) for _ in range(2))
    assert torch.equal(first, second)


def test_of_two_matches_of_a_square_the_better_one_is_kept() -> None:
    rows, columns = torch.tensor([[0, 1, 5]]), torch.tensor([[7, 6, 7]])
    matches = AtomicMatches(rows, columns, torch.tensor([[1.0, 2.0, 0.5]]))
    assert matches.is_best_in_square(4).tolist() == [[False, True, True]]  # the first two lie in one square
    lost = AtomicMatches(rows, columns, torch.tensor([[1.0, -torch.inf, 0.5]]))
    assert lost.is_best_in_square(4).tolist() == [[True, False, True]]


def test_repeated_positions_count_once() -> None:
    places = torch.tensor([[3, 5, 3, 5, 3]])
    scores = torch.tensor([[1.0, 2.0, 4.0, 2.0, 4.0]])
    infinite = torch.inf
    assert drop_repeated(places, scores).tolist() == [[-infinite, 2, 4, -infinite, -infinite]]


def test_peaks_by_hand() -> None:
    # One number a patch: similarities of the middle row are 0, 0.5, 1, 0.9, those above and below less.
    row = torch.tensor([0.0, 0.5, 1.0, 0.9])
    similarities = torch.stack([0.5 * row, row, 0.7 * row])
    atoms = Atoms(torch.ones(1, 1, 1), similarities.view(1, -1), (3, 4), 2, 1.0)
    found = find_peaks(atoms, torch.tensor([[1]]), torch.tensor([[2]]))
    assert found[0, 0].tolist() == pytest.approx([0.2 / 0.6, 0.1 / 0.8], rel=1e-4)
    border = find_peaks(atoms, torch.tensor([[0]]), torch.tensor([[3]]))
    assert border.tolist() == [[[0, 0]]]


def test_padding_is_not_matched() -> None:
    views = deform_texture((64, 80), (6.0, 0.0))
    map0, map1 = (DeepPixels(1).extract(image).map for image in (views.image0, views.image1))
    is_allowed = torch.zeros(map1.grid_hw, dtype=torch.bool)
    is_allowed[:, 30:] = True
    found = DeepMatching().align(map0, map1, is_allowed.flatten()).find(views.points0, use_refinement=False)
    is_there = views.points1[:, 0] > 45
    assert (found - views.points1)[is_there].norm(dim=-1).quantile(0.9) < 1
    nothing = DeepMatching().align(map0, map1, torch.zeros_like(is_allowed).flatten())
    assert torch.isnan(nothing.find(views.points0[:3], use_refinement=True)).all()


def test_small_maps_and_no_points() -> None:
    generator = torch.Generator().manual_seed(0)
    cells = FeatureMap(F.normalize(torch.rand(1, 8, 4, 5, generator=generator), dim=1), 8, 3.5, (32, 40))
    alignment = DeepMatching().align(cells, cells)
    points = torch.tensor([[3.5, 3.5], [19.5, 11.5]])
    assert torch.allclose(alignment.find(points, use_refinement=False), points)
    assert alignment.find(points[:0], use_refinement=True).shape == (0, 2)
    strip = FeatureMap(cells.features[:, :, :1], 8, 3.5, (8, 40))
    found = DeepMatching().align(strip, strip).find(points[:1], use_refinement=False)
    assert torch.equal(found, points[:1])
