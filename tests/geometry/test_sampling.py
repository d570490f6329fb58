"""Reading maps at no points at all, and masks; `test_coords` pins where points are read."""

import torch

from ucn.geometry.sampling import read_nearest, sample_descriptors
from ucn.types import FeatureMap


def test_no_points_stay_in_the_graph() -> None:
    features = torch.ones(2, 5, 4, 6, dtype=torch.float64, requires_grad=True)
    found = sample_descriptors(FeatureMap(features, 4, 2.0, (16, 24)), torch.zeros(2, 0, 2))
    assert found.shape == (2, 0, 5)
    assert found.dtype == torch.float64
    (gradient,) = torch.autograd.grad(found.sum(), features)
    assert gradient.shape == features.shape
    assert gradient.abs().max() == 0


def test_a_mask_is_read_at_the_nearest_pixel() -> None:
    mask = torch.tensor([[True, False, False], [False, False, True]])
    points = torch.tensor([[0.0, 0.0], [0.49, 0.49], [0.5, 0.0], [1.5, 0.5], [9.0, 9.0], [-0.5, -0.5]])
    assert read_nearest(mask, points).tolist() == [True, True, False, True, True, True]
    assert read_nearest(mask, torch.zeros(0, 2)).shape == (0,)
