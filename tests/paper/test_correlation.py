"""The correlation pyramid against loops over its definition."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.paper.correlation import (
    Atoms,
    build_levels,
    child_step,
    cut_atoms,
    pair_up,
    pool,
    quarter_shifts,
    shift_maps,
)

POWER = 1.4


def make_maps(
    seed: int, size0: tuple[int, int], size1: tuple[int, int], dim: int = 5
) -> tuple[Tensor, Tensor]:
    """Random unit descriptors, none of them negative."""
    generator = torch.Generator().manual_seed(seed)
    features0, features1 = (torch.rand(5, *size, generator=generator) ** 3 for size in (size0, size1))
    return F.normalize(features0, dim=0), F.normalize(features1, dim=0)


def slow_atoms(features0: Tensor, features1: Tensor, cells: int) -> Tensor:
    """(n0, m0, h1, w1) mean cosine of the cells of each patch with those of image 1, to the power."""
    (h1, w1), (n0, m0) = features1.shape[1:], (side // cells for side in features0.shape[1:])
    found = torch.zeros(n0, m0, h1, w1)
    for i, j, y, x in product(range(n0), range(m0), range(h1), range(w1)):
        total = 0.0
        for v, u in product(range(cells), range(cells)):
            if y + v < h1 and x + u < w1:
                here, there = features0[:, cells * i + v, cells * j + u], features1[:, y + v, x + u]
                total += float(here @ there)
        found[i, j, y, x] = max(total / cells**2, 0.0) ** POWER
    return found


def slow_best(maps: Tensor, y: int, x: int) -> float:
    """The maximum of 3 × 3 positions around (2 y, 2 x) of a map (h, w); 0 outside."""
    h, w = maps.shape
    if not (0 <= 2 * y < h and 0 <= 2 * x < w):
        return 0.0
    near = product(range(2 * y - 1, 2 * y + 2), range(2 * x - 1, 2 * x + 2))
    return max(float(maps[v, u]) for v, u in near if 0 <= v < h and 0 <= u < w)


def slow_level(below: Tensor, level: int, cells: int) -> Tensor:
    """A level from the one below, patch by patch and position by position."""
    n, m = (below.shape[0] - 1, below.shape[1] - 1) if level == 1 else below.shape[:2]
    h, w = ((side + 1) // 2 for side in below.shape[2:])
    shifts = quarter_shifts(cells, level)
    found = torch.zeros(n, m, h, w)
    for i, j, y, x in product(range(n), range(m), range(h), range(w)):
        values = []
        for down, right in product(range(2), range(2)):
            step = child_step(level)
            k = i + (down if level == 1 else (2 * down - 1) * step)
            other = j + (right if level == 1 else (2 * right - 1) * step)
            if 0 <= k < below.shape[0] and 0 <= other < below.shape[1]:
                values.append(slow_best(below[k, other], y + shifts[down], x + shifts[right]))
        found[i, j, y, x] = (sum(values) / len(values)) ** POWER
    return found


@pytest.mark.parametrize("cells", [2, 4])
def test_pyramid_against_loops(cells: int) -> None:
    maps = make_maps(0, (5 * cells + 1, 4 * cells), (9, 11))
    atoms = cut_atoms(*maps, cells, POWER)
    levels = build_levels(atoms)
    level = slow_atoms(*maps, cells)
    assert torch.allclose(atoms.correlate(), pool(level), atol=1e-5)
    assert len(levels) == 2  # 4 × 3 patches: those of level 2 step by one, those of level 3 would leave
    for number, found in enumerate(levels, start=1):
        level = slow_level(level, number, cells)
        assert found.shape == level.shape
        assert torch.allclose(found, level, atol=1e-5)


def test_level_zero_at_given_positions() -> None:
    maps = make_maps(1, (9, 8), (7, 6))
    atoms = cut_atoms(*maps, 4, POWER)
    whole = slow_atoms(*maps, 4).flatten(2)
    places = torch.randint(0, 42, (2, 2, 5), generator=torch.Generator().manual_seed(2))
    assert torch.allclose(atoms.look_up(places), whole.gather(2, places), atol=1e-5)
    assert atoms.look_up(places[..., :0]).shape == (2, 2, 0)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    atoms = cut_atoms(*make_maps(3, (9, 8), (7, 6)), 2, POWER)
    places = torch.randint(0, 42, (4, 4, 3), generator=torch.Generator().manual_seed(2))
    whole, asked = atoms.correlate(), atoms.look_up(places)
    monkeypatch.setattr("ucn.paper.correlation._CHUNK_VALUES", 1)
    assert torch.allclose(atoms.correlate(), whole)
    assert torch.allclose(atoms.look_up(places), asked)


def test_negative_similarities_are_clamped() -> None:
    atoms = Atoms(torch.ones(1, 1, 1), torch.ones(1, 1), (1, 1), 2, POWER)
    assert atoms.rectify(torch.tensor([-0.5, 0.0, 0.25])).tolist() == pytest.approx([0, 0, 0.25**POWER])


@pytest.mark.parametrize("cells", [2, 4, 6])
def test_quarters_are_half_a_patch_apart_and_do_not_drift(cells: int) -> None:
    # The centre of a patch lies half way between its quarters; its position in cells, against level 0's.
    drift = 0.0
    for level in range(1, 7):
        before, after = quarter_shifts(cells, level)
        assert after - before == cells // 2
        drift += 2**level * (before + after) / 2
        assert abs(drift) <= 2**level * cells / 4


def test_pairs_of_patches() -> None:
    numbers = list(range(5))
    for step in (-7, -2, 0, 1, 5):
        parents, children = pair_up(5, step)
        wanted = [i for i in numbers if 0 <= i + step < 5]
        assert numbers[parents] == wanted
        assert numbers[children] == [i + step for i in wanted]


def test_shifting_and_pooling_by_hand() -> None:
    maps = torch.arange(6.0).view(1, 2, 3)
    assert shift_maps(maps, 1, -1).tolist() == [[[0, 3, 4], [0, 0, 0]]]
    assert shift_maps(maps, 0, 2).tolist() == [[[2, 0, 0], [5, 0, 0]]]
    assert pool(torch.tensor([[[1.0, 2.0, 0.0, 7.0]]])).tolist() == [[[2, 7]]]
