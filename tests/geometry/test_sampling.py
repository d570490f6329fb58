"""Reading maps at no points at all; `test_coords` pins where points are read."""

import torch

from ucn.geometry.sampling import sample_descriptors
from ucn.types import FeatureMap


def test_no_points_stay_in_the_graph() -> None:
    features = torch.ones(2, 5, 4, 6, dtype=torch.float64, requires_grad=True)
    found = sample_descriptors(FeatureMap(features, 4, 2.0, (16, 24)), torch.zeros(2, 0, 2))
    assert found.shape == (2, 0, 5)
    assert found.dtype == torch.float64
    (gradient,) = torch.autograd.grad(found.sum(), features)
    assert gradient.shape == features.shape
    assert gradient.abs().max() == 0
