"""Intervals of a mean over pairs, by hand."""

import math

import numpy as np
import pytest
import torch

from ucn.evaluate.core.metrics import bootstrap_mean


def test_bootstrap_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    assert bootstrap_mean([2.0, 2.0, 2.0], generator) == (2.0, 2.0)
    low, high = bootstrap_mean([0.0, 1.0], generator, resamples=4000)
    assert (low, high) == (0.0, 1.0)  # a quarter of the draws each
    low, high = bootstrap_mean([0.0, 1.0], generator, level=0.4, resamples=4000)
    assert (low, high) == (0.5, 0.5)  # the middle half
    assert all(math.isnan(bound) for bound in bootstrap_mean([], generator))


def test_bootstrap_holds_the_mean_and_repeats_with_its_seed() -> None:
    values = np.random.default_rng(0).exponential(1.0, 200)
    bounds = [bootstrap_mean(values, torch.Generator().manual_seed(7)) for _ in range(2)]
    assert bounds[0] == bounds[1]
    low, high = bounds[0]
    assert low < values.mean() < high
    # 1.96 standard errors each way.
    assert high - low == pytest.approx(2 * 1.96 * values.std() / math.sqrt(200), rel=0.15)


def test_groups_are_resampled_by_themselves() -> None:
    generator = torch.Generator().manual_seed(0)
    # Without variation in a group there is none in the mean over groups, whatever their sizes.
    assert bootstrap_mean([1.0, 1.0, 1.0, 0.0], generator, ["a", "a", "a", "b"]) == (0.5, 0.5)
    low, high = bootstrap_mean([0.0, 1.0, 3.0], generator, ["a", "a", "b"], resamples=4000)
    assert (low, high) == (1.5, 2.0)
