"""Corners by tensor operations against OpenCV."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.matching.cuda.corners import detect_corners_on_device
from ucn.matching.keypoints import detect_corners


def draw(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(width)
    total = torch.zeros(1, 1, height, width)
    for step in (3, 9, 30):
        noise = torch.rand(1, 1, height // step + 2, width // step + 2, generator=generator)
        total += F.interpolate(noise, (height, width), mode="bilinear", align_corners=False)
    return (total[0, 0] / 3 * 255).byte()


@pytest.mark.parametrize(
    ("height", "width", "most"), [(96, 128, 4096), (90, 133, 4096), (64, 77, 50), (33, 32, 9)]
)
def test_corners_are_those_of_opencv(height: int, width: int, most: int) -> None:
    grey = draw(height, width)
    expected = detect_corners(grey, most).points
    points, count = detect_corners_on_device(grey, most)
    assert points.shape == (most, 2) and int(count) == len(expected) > 8
    found = {tuple(point) for point in points[: len(expected)].tolist()}
    assert len(found & {tuple(point) for point in expected.tolist()}) >= 0.99 * len(expected)
    torch.testing.assert_close(points[:5], expected[:5])  # the strongest first
    assert not points[len(expected) :].any()


def test_blank_images_have_no_corners() -> None:
    points, count = detect_corners_on_device(torch.full((40, 50), 7, dtype=torch.uint8), 20)
    assert int(count) == 0 and not points.any()
