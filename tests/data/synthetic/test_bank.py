"""Joined banks: all images are kept, and each bank is sampled by its weight."""

from pathlib import Path

import pytest
import torch

from support.photo_cases import write_photos
from ucn.config import SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs


def make_bank(folder: Path, sizes_hw: list[tuple[int, int]]) -> ImageBank:
    return ImageBank(write_photos(folder, sizes_hw), 64, "cpu")


@pytest.fixture
def banks(tmp_path: Path) -> list[ImageBank]:
    """Two, one and four photographs."""
    found = []
    for name, sizes_hw in (
        ("a", [(30, 20), (64, 64)]),
        ("b", [(90, 45)]),
        ("c", [(25, 25 + i) for i in range(4)]),
    ):
        found.append(make_bank(tmp_path / name, sizes_hw))
        found[-1].names[:] = [f"{name}{index}" for index in range(len(sizes_hw))]
    return found


def count_draws(bank: ImageBank, count: int, seed: int = 0) -> list[float]:
    drawn = bank.sample_indices(count, torch.Generator().manual_seed(seed))
    assert drawn.dtype == torch.int64 and drawn.shape == (count,)
    return (torch.bincount(drawn, minlength=len(bank)) / count).tolist()


def test_a_joined_bank_holds_all_images(banks: list[ImageBank]) -> None:
    joined = ImageBank.join(banks, [1.0, 2.0, 3.0], "cpu")
    assert len(joined) == 7
    assert joined.names == ["a0", "a1", "b0", "c0", "c1", "c2", "c3"]
    assert torch.equal(joined.canvases, torch.cat([bank.canvases for bank in banks]))
    assert torch.equal(joined.sizes, torch.cat([bank.sizes for bank in banks]))
    # The banks stay what they were.
    assert [len(bank) for bank in banks] == [2, 1, 4] and banks[0].names == ["a0", "a1"]


def test_each_bank_is_sampled_by_its_weight_however_many_images_it_has(banks: list[ImageBank]) -> None:
    found = count_draws(ImageBank.join(banks, [3.0, 1.0, 4.0], "cpu"), 40_000)
    expected = [3 / 16, 3 / 16, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8]
    assert found == pytest.approx(expected, abs=0.01)
    found = count_draws(ImageBank.join(banks, [1e-6, 1e6, 1.0], "cpu"), 2000)
    assert found[2] == 1.0


def test_samples_equal_a_search_by_hand(banks: list[ImageBank]) -> None:
    joined = ImageBank.join(banks[:2], [1.0, 3.0], "cpu")
    shares = torch.rand(500, generator=torch.Generator().manual_seed(9)).tolist()
    expected = [0 if share < 1 / 8 else 1 if share < 1 / 4 else 2 for share in shares]
    assert joined.sample_indices(500, torch.Generator().manual_seed(9)).tolist() == expected


def test_one_bank_alone_is_sampled_as_it_always_was(banks: list[ImageBank]) -> None:
    joined = ImageBank.join(banks[2:], [0.25], "cpu")
    assert joined.names == banks[2].names and torch.equal(joined.canvases, banks[2].canvases)
    expected = torch.randint(4, (50,), generator=torch.Generator().manual_seed(3))
    for bank in (joined, banks[2]):
        assert torch.equal(bank.sample_indices(50, torch.Generator().manual_seed(3)), expected)
    assert joined.sample_indices(0, torch.Generator()).shape == (0,)


def test_pairs_of_a_joined_bank_are_of_its_images(banks: list[ImageBank]) -> None:
    joined = ImageBank.join(banks, [8.0, 1.0, 1.0], "cpu")
    config = SyntheticConfig(side=64, points=5, photometric=0.0)
    names = make_pairs(joined, 200, config, torch.Generator().manual_seed(0)).names
    assert sum(name[0] == "a" for name in names) / 200 == pytest.approx(0.8, abs=0.08)
    assert {name[0] for name in names} == {"a", "b", "c"}
    # The background of a scene is drawn by weight, too; its name comes first.
    scenes = SyntheticConfig(side=64, points=5, photometric=0.0, parallax_share=1.0)
    names = make_pairs(joined, 100, scenes, torch.Generator().manual_seed(0)).names
    assert sum(name[0] == "a" for name in names) / 100 == pytest.approx(0.8, abs=0.12)
