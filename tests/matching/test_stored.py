"""Features of other devices and types become those of the matcher."""

import pytest
import torch

from ucn.matching.stored import describe_points, receive, receive_pair
from ucn.types import FeatureMap, Features

CPU = torch.device("cpu")


def make_features(dtype: torch.dtype = torch.float32, dim: int = 2) -> Features:
    """Two cells side by side, whose descriptors are the first two axes, of an image twice as large."""
    values = torch.zeros(1, dim, 1, 2)
    values[0, 0, 0, 0] = values[0, 1, 0, 1] = 1
    return Features(FeatureMap(values.to(dtype), 4, 2.0, (4, 8)), (8, 16), torch.zeros(0, 2))


def test_features_that_are_there_stay_as_they_are() -> None:
    features = make_features()
    assert receive(features, CPU) is features
    pair = receive_pair(features, features, CPU)
    assert pair[0] is pair[1] is features


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32_on_a_cpu(dtype: torch.dtype) -> None:
    received = receive(make_features(dtype), CPU)
    assert received.map.features.dtype == torch.float32
    assert torch.equal(received.map.features, make_features().map.features)
    on_meta = receive(make_features(dtype), torch.device("meta"))
    assert on_meta.map.features.is_meta and on_meta.map.features.dtype == dtype


def test_a_pair_gets_one_type() -> None:
    pair = receive_pair(make_features(), make_features(torch.float64), CPU)
    assert [features.map.features.dtype for features in pair] == [torch.float64] * 2


def test_other_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="same weights, got descriptors of 2 and 3 dimensions; extract both"):
        receive_pair(make_features(), make_features(dim=3), CPU)


def test_descriptors_by_hand() -> None:
    # Cell centres (2, 2) and (6, 2) of the encoded image are (4.5, 4.5) and (12.5, 4.5) of the caller's.
    points = torch.tensor([[4.5, 4.5], [12.5, 4.5], [8.5, 4.5], [10.5, 0.0]])
    expected = torch.tensor([[1, 0], [0, 1], [0.5**0.5, 0.5**0.5], [0.1**0.5, 0.9**0.5]])
    for dtype in (torch.float32, torch.float64):
        torch.testing.assert_close(describe_points(make_features(dtype), points), expected)
    assert describe_points(make_features(), torch.zeros(0, 2)).shape == (0, 2)
