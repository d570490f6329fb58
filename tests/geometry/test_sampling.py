"""Reading maps at no points at all, and masks; `test_coords` pins where points are read."""

import pytest
import torch

from ucn.geometry.sampling import read_nearest, sample_descriptors, sample_image, sample_patches
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_patches_are_what_single_points_are(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(31, 47, generator=generator)
    places = torch.rand(50, 2, generator=generator, dtype=dtype) * 60 - 8  # also beyond the border
    shapes = torch.eye(2, dtype=dtype) + 0.4 * torch.randn(50, 2, 2, generator=generator, dtype=dtype)
    offsets = torch.randn(9, 2, generator=generator, dtype=dtype) * 3
    points = places[:, None] + offsets @ shapes.mT
    wanted = sample_image(image[None, None].to(dtype), points[None], "border")[0, 0]
    found = sample_patches(image, places, shapes, offsets)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5 if dtype == torch.float32 else 1e-12)


def test_a_patch_by_hand() -> None:
    """A quarter turn takes a step to the right to a step down."""
    image = torch.arange(12.0).view(3, 4)
    turn = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
    found = sample_patches(image, torch.tensor([[1.0, 1.0]]), turn, torch.tensor([[1.0, 0.0], [0.0, 0.5]]))
    torch.testing.assert_close(found, torch.tensor([[9.0, 4.5]]))


def test_no_patches() -> None:
    empty = sample_patches(torch.zeros(3, 4), torch.zeros(0, 2), torch.zeros(0, 2, 2), torch.zeros(9, 2))
    assert empty.shape == (0, 9)
