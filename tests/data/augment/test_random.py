"""Random values and counts: in range, with the right mean, and fixed by the generator."""

import pytest
import torch

from ucn.data.augment.random import sample_counts, scale_to_ranges, uniform, uniform_columns


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_uniform_numbers_fill_their_range() -> None:
    drawn = uniform((4, 5000), -2.0, 3.0, seeded(0))
    assert drawn.shape == (4, 5000) and drawn.dtype == torch.float32
    assert -2.0 <= drawn.min() < -1.99 and 2.99 < drawn.max() <= 3.0
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.05)


def test_scaling_by_hand() -> None:
    scaled = scale_to_ranges(torch.tensor([[0.0, 0.5], [0.5, 0.25]]), ((1.0, 3.0), (-4.0, 4.0)))
    assert scaled.tolist() == [[1.0, 0.0], [2.0, -2.0]]


def test_columns_have_their_own_ranges_and_widths() -> None:
    ranges = {"low": (-1.0, 0.0, 1), "pair": (10.0, 20.0, 2), "fixed": (5.0, 5.0, 1)}
    drawn = uniform_columns((3, 1000), ranges, seeded(0))
    assert list(drawn) == ["low", "pair", "fixed"]
    assert drawn["low"].shape == (3, 1000) and drawn["pair"].shape == (3, 1000, 2)
    assert -1 <= drawn["low"].min() < -0.99 and -0.01 < drawn["low"].max() <= 0
    assert 10 <= drawn["pair"].min() < 10.1 and 19.9 < drawn["pair"].max() <= 20
    assert (drawn["fixed"] == 5).all()
    again = uniform_columns((3, 1000), ranges, seeded(0))
    assert torch.equal(drawn["pair"], again["pair"])


def test_counts_are_the_shares_where_these_come_out_even() -> None:
    for seed in range(20):
        assert sample_counts(16, (0.25, 0.5, 0.125), seeded(seed)) == [4, 8, 2]
    assert sample_counts(5, (0.0, 0.0), seeded(0)) == [0, 0]
    assert sample_counts(5, (1.0,), seeded(0)) == [5]


@pytest.mark.parametrize("total", [1, 2, 7])
def test_counts_are_right_on_average(total: int) -> None:
    shares = (0.3, 0.45, 0.1)
    counts = torch.tensor([sample_counts(total, shares, seeded(seed)) for seed in range(2000)]).double()
    exact = torch.tensor(shares).double() * total
    assert ((counts == exact.floor()) | (counts == exact.ceil())).all()
    assert (counts.sum(1) <= total).all()
    torch.testing.assert_close(counts.mean(0), exact, atol=0.05, rtol=0)


@pytest.mark.parametrize("shares", [(0.1, 0.7, 0.2), (1 / 3, 1 / 3, 1 / 3)])
def test_shares_that_sum_to_one_leave_nothing(shares: tuple[float, ...]) -> None:
    for seed in range(50):
        assert sum(sample_counts(10, shares, seeded(seed))) == 10


def test_counts_come_from_the_state_and_leave_it() -> None:
    generator = seeded(3)
    before = generator.get_state()
    first = [sample_counts(1, (0.5,), generator) for _ in range(3)]
    assert torch.equal(generator.get_state(), before)
    assert first == [first[0]] * 3
    later = []
    for _ in range(20):
        torch.rand(1, generator=generator)
        later.append(sample_counts(1, (0.5,), generator)[0])
    assert 3 < sum(later) < 17
