"""One `test_convention_*` per line of the coordinate conventions."""

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import ModelConfig
from ucn.geometry import coords
from ucn.geometry.sampling import sample_descriptors, sample_image
from ucn.nn import build_model
from ucn.types import FeatureMap


def _ramp(height: int, width: int) -> Tensor:
    """An image whose two channels hold x and y of each pixel."""
    return coords.pixel_grid((height, width)).permute(2, 0, 1)[None]


def test_convention_centre_of_first_pixel_is_origin() -> None:
    grid = coords.pixel_grid((2, 3))
    assert grid[0, 0].tolist() == [0, 0]
    assert grid[1, 2].tolist() == [2, 1]
    inside = coords.is_inside(
        torch.tensor([[-0.5, -0.5], [2.5, 1.5], [-0.51, 0], [0, 1.51], [torch.nan, 0]]), (2, 3)
    )
    assert inside.tolist() == [True, True, False, False, False]


def test_convention_resize() -> None:
    # Doubling a 2-pixel row: centres 0 and 1 land between the new pixels, at 0.5 and 2.5.
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert coords.resize_points(points, (2.0, 1.0)).tolist() == [[0.5, 0.0], [2.5, 0.0]]
    assert coords.resize_scale((10, 20), (5, 40)) == (2.0, 0.5)


@pytest.mark.parametrize("size_hw", [(24, 36), (5, 9)])
def test_convention_resize_agrees_with_interpolate(size_hw: tuple[int, int]) -> None:
    new_hw = (size_hw[0] * 2, size_hw[1] * 3)
    resized = F.interpolate(_ramp(*size_hw), new_hw, mode="bilinear", align_corners=False)[0]
    old_positions = coords.resize_points(coords.pixel_grid(new_hw), coords.resize_scale(new_hw, size_hw))
    inner = (slice(None), slice(2, -2), slice(3, -3))  # the border is clamped
    torch.testing.assert_close(resized[inner], old_positions.permute(2, 0, 1)[inner], atol=1e-5, rtol=0)


def test_convention_flip() -> None:
    points = torch.tensor([[0.0, 3.0], [4.0, 1.0]])
    assert coords.flip_points(points, 5).tolist() == [[4.0, 3.0], [0.0, 1.0]]
    torch.testing.assert_close(coords.flip_points(coords.flip_points(points, 5), 5), points)


def test_convention_flip_then_resize_equals_resize_then_flip() -> None:
    points = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([37.0, 21.0])
    scale = coords.resize_scale((21, 37), (42, 111))
    flip_first = coords.resize_points(coords.flip_points(points, 37), scale)
    resize_first = coords.flip_points(coords.resize_points(points, scale), 111)
    torch.testing.assert_close(flip_first, resize_first, atol=1e-4, rtol=0)


def test_convention_flip_then_resize_equals_resize_then_flip_on_images() -> None:
    image = torch.rand(1, 3, 21, 37, generator=torch.Generator().manual_seed(0))
    size = (42, 111)
    flip_first = F.interpolate(image.flip(-1), size, mode="bilinear", align_corners=False)
    resize_first = F.interpolate(image, size, mode="bilinear", align_corners=False).flip(-1)
    torch.testing.assert_close(flip_first, resize_first, atol=1e-5, rtol=0)


def test_convention_sampling_grid() -> None:
    # Width 4: pixel 0 is centred at -0.75, pixel 3 at 0.75, the borders at -1 and 1.
    grid = coords.to_sampling_grid(torch.tensor([[0.0, 0.0], [3.0, 1.0], [-0.5, 1.5]]), (2, 4))
    assert grid.tolist() == [[-0.75, -0.5], [0.75, 0.5], [-1.0, 1.0]]


@pytest.mark.parametrize("stride", [1, 4, 8])
def test_convention_sampling_is_exact_on_a_ramp_and_clamped_outside(stride: int) -> None:
    offset = (stride - 1) / 2 + 0.5
    h, w = 6, 9
    centres = coords.cell_centres(FeatureMap(torch.zeros(1, 1, h, w), stride, offset, (1, 1)))
    ramp = centres.view(h, w, 2).permute(2, 0, 1)[None]  # each cell holds the pixel it is centred on
    first, last = centres[0], centres[-1]
    points = (
        torch.rand(200, 2, generator=torch.Generator().manual_seed(1)) * (last - first + 6 * stride)
        + first
        - 3 * stride
    )
    cells = coords.pixels_to_cells(points, stride, offset)
    values = sample_image(ramp, cells[None, :, None], "border")[0, :, :, 0].t()
    expected = torch.minimum(torch.maximum(points, first), last)
    torch.testing.assert_close(values, expected, atol=1e-4, rtol=0)


def test_convention_cells_round_trip() -> None:
    cells = torch.tensor([[0.0, 0.0], [1.5, 2.0]])
    assert coords.cells_to_pixels(cells, 4, 2.0).tolist() == [[2.0, 2.0], [8.0, 10.0]]
    torch.testing.assert_close(coords.pixels_to_cells(coords.cells_to_pixels(cells, 4, 2.0), 4, 2.0), cells)


def test_convention_cell_centres_follow_flattened_maps() -> None:
    centres = coords.cell_centres(FeatureMap(torch.zeros(1, 1, 2, 3), 4, 2.0, (8, 12)))
    assert centres.tolist() == [[2, 2], [6, 2], [10, 2], [2, 6], [6, 6], [10, 6]]


def test_convention_corner_origin_is_half_a_pixel_away() -> None:
    points = torch.tensor([[0.0, 0.0]])
    assert coords.to_corner_origin(points).tolist() == [[0.5, 0.5]]
    torch.testing.assert_close(coords.from_corner_origin(coords.to_corner_origin(points)), points)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strides", "declared"), [((2, 2, 1, 1), (4, 2.0)), ((2, 2, 2, 2), (16, 14.0)), ((2, 1, 1, 1), (2, 0.0))]
)
def test_convention_measured_receptive_field_centre_is_the_declared_one(
    strides: tuple[int, int, int, int], declared: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A max-pool passes its gradient to one input; an average over the same windows shows the whole field.
    monkeypatch.setattr(F, "max_pool2d", F.avg_pool2d)
    trunk = build_model(ModelConfig(strides=strides)).trunk
    assert (trunk.stride, trunk.offset) == declared
    with torch.no_grad():
        for parameter in trunk.parameters():
            parameter.abs_()  # so that no rectifier hides a part of the field
    side = 320
    cell = side // trunk.stride // 2
    image = torch.ones(1, 3, side, side, requires_grad=True)
    trunk(image)[0, :, cell, cell + 1].sum().backward()
    assert image.grad is not None
    for axis, position in ((-1, cell + 1), (-2, cell)):
        reached = image.grad.abs().sum(dim=tuple({0, 1, 2, 3} - {axis % 4})).nonzero().flatten()
        low, high = reached[0].item(), reached[-1].item()
        assert (low + high) / 2 == trunk.stride * position + trunk.offset
        assert (high - low) / 2 == trunk.reach


def test_sampled_descriptors_are_unit_and_keep_gradients() -> None:
    features = F.normalize(
        torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    features.requires_grad_(True)
    points = torch.tensor([[[3.3, 7.1], [100.0, -5.0]], [[2.0, 2.0], [9.9, 0.0]]], dtype=torch.float64)
    found = sample_descriptors(FeatureMap(features, 4, 2.0, (16, 24)), points)
    assert found.shape == (2, 2, 5)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(2, 2, dtype=torch.float64))
    torch.testing.assert_close(found[1, 0], features[1, :, 0, 0])
    torch.testing.assert_close(found[0, 1], features[0, :, 0, 5])  # outside: the border cell
    assert torch.autograd.gradcheck(
        lambda f: sample_descriptors(FeatureMap(f, 4, 2.0, (16, 24)), points), features
    )


def test_sampling_no_points_and_wrong_shapes() -> None:
    feature_map = FeatureMap(torch.ones(2, 5, 4, 6), 4, 2.0, (16, 24))
    assert sample_descriptors(feature_map, torch.zeros(2, 0, 2)).shape == (2, 0, 5)
    with pytest.raises(ValueError, match=r"points must be \(2, N, 2\), got \(5, 3\)"):
        sample_descriptors(feature_map, torch.zeros(5, 3))


def test_sampling_keeps_the_digits_of_points_on_half_maps() -> None:
    ramp = _ramp(4, 256).bfloat16()
    value = sample_image(ramp, torch.tensor([[[[200.25, 1.0]]]]), "border")
    assert value.dtype == torch.bfloat16
    assert value[0, 1].item() == 1.0


@pytest.mark.parametrize("orientation", range(1, 9))
def test_convention_exif_turns_points_as_pillow_turns_pixels(orientation: int) -> None:
    stored = np.arange(12, dtype=np.uint8).reshape(3, 4)
    image = PIL.Image.fromarray(stored)
    image.getexif()[0x0112] = orientation
    upright = np.asarray(PIL.ImageOps.exif_transpose(image))
    points = coords.pixel_grid((3, 4)).reshape(-1, 2)
    turned = coords.apply_orientation(points, (3, 4), orientation)
    columns, rows = turned.long().unbind(-1)
    assert upright[rows.numpy(), columns.numpy()].tolist() == stored.ravel().tolist()
    upright_hw = coords.orient_size((3, 4), orientation)
    assert upright_hw == upright.shape
    inverse = coords.invert_orientation(orientation)
    torch.testing.assert_close(coords.apply_orientation(turned, upright_hw, inverse), points)
