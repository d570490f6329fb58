"""Fused sums of neighbourhood consensus against the reference; run by `test_triton_consensus`."""

from __future__ import annotations

import pytest
import torch

from ucn.matching import consensus
from ucn.matching.triton.consensus import sum_around_fused
from ucn.runtime.kernels import without_fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("shape", [(3, 4, 2, 5), (1, 1, 1, 1), (1, 14, 3, 1), (3, 2, 18, 17)])
def test_sums_equal_the_reference(shape: tuple[int, ...]) -> None:
    similarity = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))
    with without_fused():
        expected = consensus._sum_around(similarity)
    found = sum_around_fused(similarity.to(DEVICE), consensus.HYPOTHESES, consensus.SHIFTS, consensus.SPREAD)
    torch.testing.assert_close(found.cpu(), expected)


def test_volumes_need_not_be_contiguous() -> None:
    similarity = torch.rand(2, 4, 3, 3, generator=torch.Generator().manual_seed(0)).permute(2, 3, 0, 1)
    with without_fused():
        expected = consensus._sum_around(similarity)
    found = sum_around_fused(similarity.to(DEVICE), consensus.HYPOTHESES, consensus.SHIFTS, consensus.SPREAD)
    torch.testing.assert_close(found.cpu(), expected)
