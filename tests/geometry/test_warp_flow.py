import math

import pytest
import torch
from torch import Tensor

from ucn.geometry.warp import (
    flow_from_disparity,
    is_disparity_consistent,
    is_flow_consistent,
    is_nearest_by_disparity,
    targets_of_flow,
    warp_points_by_flow,
)

NAN, INF = math.nan, math.inf


def random_flow(batch: int, height: int, width: int, unknown: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    flow = 4 * torch.randn(batch, height, width, 2, generator=generator, dtype=torch.float64)
    flow[torch.rand(batch, height, width, generator=generator) < unknown] = NAN
    return flow


def random_points(batch: int, count: int, height: int, width: int, seed: int = 1) -> Tensor:
    """Points on and a little outside the image, some of them on pixel centres."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(batch, count, 2, generator=generator, dtype=torch.float64)
    points = points * torch.tensor([width + 2.0, height + 2.0]) - 1.5
    points[:, ::3] = points[:, ::3].round()
    return points


def read_slowly(flow: list[list[list[float]]], x: float, y: float) -> tuple[float, float]:
    """One vector of one flow field, by the definition of bilinear reading."""
    height, width = len(flow), len(flow[0])
    if not (-0.5 <= x <= width - 0.5 and -0.5 <= y <= height - 0.5):
        return NAN, NAN
    x, y = min(max(x, 0.0), width - 1.0), min(max(y, 0.0), height - 1.0)
    total_u = total_v = 0.0
    for row in range(height):
        for column in range(width):
            share = max(0.0, 1 - abs(x - column)) * max(0.0, 1 - abs(y - row))
            if share > 0:
                total_u += share * flow[row][column][0]
                total_v += share * flow[row][column][1]
    return (total_u, total_v) if math.isfinite(total_u) and math.isfinite(total_v) else (NAN, NAN)


def warp_slowly(points: Tensor, flow: Tensor) -> Tensor:
    rows = []
    for b in range(len(points)):
        field = flow[b].tolist()
        for x, y in points[b].tolist():
            u, v = read_slowly(field, x, y)
            rows.append([x + u, y + v])
    return torch.tensor(rows, dtype=torch.float64).view(points.shape)


def assert_same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-9, atol=1e-9)


def test_flow_by_hand() -> None:
    #   u: 1 2     v: 0 0
    #      3 4        8 8
    flow = torch.tensor([[[[1.0, 0], [2, 0]], [[3, 8], [4, 8]]]])
    points = torch.tensor([[[0.0, 0], [1, 1], [0.5, 0], [0.5, 0.5], [0.25, 0.75], [-0.5, -0.5], [1.5, 0]]])
    expected = [[1.0, 0], [5, 9], [2, 0], [3, 4.5], [0.25 + 2.75, 0.75 + 6], [0.5, -0.5], [3.5, 0]]
    torch.testing.assert_close(warp_points_by_flow(points, flow), torch.tensor([expected]))


def test_a_pixel_centre_needs_no_neighbour() -> None:
    flow = torch.full((1, 3, 3, 2), NAN)
    flow[0, 1, 1] = torch.tensor([0.1, -0.3])
    points = torch.tensor([[[1.0, 1], [1.25, 1], [1, 0.75], [0, 1]]])
    warped = warp_points_by_flow(points, flow)
    assert warped[0, 0].tolist() == torch.tensor([1.0 + 0.1, 1 - 0.3]).tolist()
    assert warped[0, 1:].isnan().all()


def test_an_edge_between_known_pixels_needs_only_those() -> None:
    flow = torch.full((1, 2, 2, 2), NAN)
    flow[0, 0] = torch.tensor([[1.0, 1], [3, 1]])
    warped = warp_points_by_flow(torch.tensor([[[0.5, 0], [0.5, 0.01]]]), flow)
    assert warped[0, 0].tolist() == [2.5, 1.0]
    assert warped[0, 1].isnan().all()


@pytest.mark.parametrize("unknown", [NAN, INF, -INF])
def test_one_unknown_component_makes_the_vector_unknown(unknown: float) -> None:
    flow = torch.tensor([[[[unknown, 0.0], [1, 1]]]])
    assert warp_points_by_flow(torch.zeros(1, 1, 2), flow).isnan().all()
    targets = targets_of_flow(flow)
    assert targets[0, 0, 0].isnan().all()
    assert targets[0, 0, 1].tolist() == [2.0, 1.0]


def test_points_off_the_image_or_unknown_give_nan() -> None:
    flow = torch.ones(1, 4, 5, 2)
    points = torch.tensor([[[-0.51, 0], [4.51, 0], [0, 3.51], [0, -0.51], [NAN, 1], [INF, 0], [1, -INF]]])
    assert warp_points_by_flow(points, flow).isnan().all()


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 1, 1), (1, 5, 7), (2, 4, 3), (2, 1, 6)])
@pytest.mark.parametrize("unknown", [0.0, 0.3])
def test_flow_equals_slow_reference(batch: int, height: int, width: int, unknown: float) -> None:
    flow = random_flow(batch, height, width, unknown)
    points = random_points(batch, 60, height, width)
    warped = warp_points_by_flow(points, flow)
    assert_same(warped, warp_slowly(points, flow))
    if unknown:
        assert 0 < int(warped.isnan().sum()) < warped.numel()


def test_batched_equals_unbatched() -> None:
    flow, points = random_flow(2, 5, 6, 0.2), random_points(2, 40, 5, 6)
    both = warp_points_by_flow(points, flow)
    for b in range(2):
        assert_same(both[b : b + 1], warp_points_by_flow(points[b : b + 1], flow[b : b + 1]))


def test_targets_are_the_warped_pixel_centres() -> None:
    flow = random_flow(2, 3, 5, 0.2)
    targets = targets_of_flow(flow)
    for y in range(3):
        for x in range(5):
            point = torch.tensor([[[x, y]]] * 2, dtype=torch.float64)
            assert_same(targets[:, y, x][:, None], warp_points_by_flow(point, flow))


def test_dtype_is_kept() -> None:
    flow, points = random_flow(1, 3, 3).float(), torch.zeros(1, 2, 2)
    assert warp_points_by_flow(points, flow).dtype == torch.float32
    assert targets_of_flow(flow).dtype == torch.float32
    assert targets_of_flow(flow.double()).dtype == torch.float64


def test_no_points_is_a_normal_input() -> None:
    flow, disparity, none = torch.ones(2, 3, 4, 2), torch.ones(2, 3, 4), torch.zeros(2, 0, 2)
    assert warp_points_by_flow(none, flow).shape == (2, 0, 2)
    assert is_flow_consistent(none, flow, flow, 1.0).shape == (2, 0)
    assert is_disparity_consistent(none, disparity, disparity, 1.0).shape == (2, 0)
    assert warp_points_by_flow(torch.zeros(0, 5, 2), torch.ones(0, 3, 4, 2)).shape == (0, 5, 2)


def test_disparity_moves_to_the_left() -> None:
    disparity = torch.tensor([[[1.0, 2, INF], [0.5, NAN, 3]]])
    points = torch.tensor([[[0.0, 0], [1, 0], [0.5, 0], [2, 0], [2, 1], [0, 0.5]]])
    warped = warp_points_by_flow(points, flow_from_disparity(disparity))
    assert warped[0, :3].tolist() == [[-1.0, 0], [-1, 0], [-1, 0]]
    assert warped[0, 3].isnan().all()
    assert warped[0, 4:].tolist() == [[-1.0, 1], [-0.75, 0.5]]
    assert flow_from_disparity(disparity)[0, 0, 1].tolist() == [-2.0, 0.0]


def test_flow_consistency_by_hand() -> None:
    # A row of 6: pixels 0 to 3 move by 2. Back from pixel 2 by -2, from 3 by -1.5, from 4 by -4, from 5 not.
    forward = torch.zeros(1, 1, 6, 2)
    forward[0, 0, :4, 0] = 2
    back = torch.zeros(1, 1, 6, 2)
    back[0, 0, :, 0] = torch.tensor([0, 0, -2, -1.5, -4, NAN])
    points = torch.tensor([[[x, 0.0] for x in range(6)]])
    # The last but one stays where it is and goes back by 4; the last meets an unknown vector.
    assert is_flow_consistent(points, forward, back, 0.5).tolist() == [
        [True, True, False, False, False, False]
    ]
    assert is_flow_consistent(points, forward, back, 0.49).tolist()[0][:2] == [True, False]
    assert is_flow_consistent(points, forward, back, 2.0).tolist()[0][2] is True


def test_consistency_measures_both_axes_and_views_of_different_size() -> None:
    forward = torch.tensor([[[[3.0, 0.0]]]])  # one pixel, which leads to (3, 0) of an image of 2 x 4
    back = torch.zeros(1, 2, 4, 2)
    back[0, 0, 3] = torch.tensor([-3.0, 0.75])
    point = torch.zeros(1, 1, 2)
    assert not is_flow_consistent(point, forward, back, 0.7).any()
    assert is_flow_consistent(point, forward, back, 0.8).all()
    assert not is_flow_consistent(point, forward, back[:, :, :3], 0.8).any()  # outside image 1


def test_consistency_equals_slow_reference() -> None:
    forward, back = random_flow(2, 6, 7, 0.1), random_flow(2, 5, 9, 0.1, seed=3)
    points = random_points(2, 80, 6, 7)
    there = warp_slowly(points, forward)
    distance = (warp_slowly(there, back) - points).square().sum(-1).sqrt()
    got = is_flow_consistent(points, forward, back, 4.0)
    assert torch.equal(got, distance <= 4.0)
    assert 0 < int(got.sum()) < got.numel()


def test_disparity_consistency_by_hand() -> None:
    # A bar (disparity 3, left pixels 4 and 5) before a wall (disparity 1) in a row of 8.
    left = torch.tensor([[[1.0, 1, 1, 1, 3, 3, 1, 1]]])
    right = torch.tensor([[[1.0, 3, 3, 1, 1, 1, 1, NAN]]])  # right pixels 1 and 2 show the bar
    points = torch.tensor([[[x, 0.0] for x in range(8)]])
    expected = [False, True, False, False, True, True, True, True]  # 0 leaves the image; 2 and 3 are behind
    assert is_disparity_consistent(points, left, right, 0.5).tolist() == [expected]
    assert is_disparity_consistent(points, left, right, 2.0).tolist() == [[False] + [True] * 7]


def test_nearest_by_disparity_by_hand() -> None:
    left = torch.tensor([[[1.0, 1, 1, 1, 3, 3, NAN, 1]]])
    expected = [False, True, False, False, True, True, False, True]
    assert is_nearest_by_disparity(left, 8, 1.0).tolist() == [[expected]]
    assert is_nearest_by_disparity(left, 8, 2.0).tolist() == [[[False] + [True] * 5 + [False, True]]]
    assert is_nearest_by_disparity(left, 6, 1.0).tolist()[0][0][7] is False  # lands on column 6


def test_nearest_by_disparity_equals_slow_reference() -> None:
    generator = torch.Generator().manual_seed(2)
    disparity = 6 * torch.rand(2, 5, 20, generator=generator)
    got = is_nearest_by_disparity(disparity, 17, 1.0)
    for b in range(2):
        for row in range(5):
            d = disparity[b, row].tolist()
            for x in range(20):
                is_on = -0.5 <= x - d[x] <= 16.5
                hides = [
                    d[k] > d[x] + 1
                    for k in range(20)
                    if is_on and k - d[k] >= -0.5 and round(k - d[k]) == round(x - d[x])
                ]
                assert bool(got[b, row, x]) == (is_on and not any(hides)), (b, row, x)
    assert 0 < int(got.sum()) < got.numel()


@pytest.mark.parametrize("shape", [(3, 4, 2), (1, 3, 4, 3), (1, 0, 4, 2), (1, 3, 0, 2), (2,)])
def test_wrong_flow_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"flow_0to1 must be \(B, H, W, 2\) with pixels, got \("):
        warp_points_by_flow(torch.zeros(1, 5, 2), torch.zeros(shape))
    with pytest.raises(ValueError, match="flow_0to1 must be"):
        targets_of_flow(torch.zeros(shape))
    with pytest.raises(ValueError, match="flow_1to0 must be"):
        is_flow_consistent(torch.zeros(1, 5, 2), torch.zeros(1, 3, 4, 2), torch.zeros(shape), 1.0)


@pytest.mark.parametrize("shape", [(5, 2), (1, 5, 3), (2, 5, 2)])
def test_wrong_points_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"points0 must be \(1, N, 2\), got"):
        warp_points_by_flow(torch.zeros(shape), torch.zeros(1, 3, 4, 2))


def test_wrong_disparity_tolerance_and_batch_are_named() -> None:
    points, flow, disparity = torch.zeros(1, 5, 2), torch.zeros(1, 3, 4, 2), torch.zeros(1, 3, 4)
    with pytest.raises(ValueError, match=r"disparity0 must be \(B, H, W\), got \(3, 4\)"):
        flow_from_disparity(disparity[0])
    with pytest.raises(ValueError, match="disparity1 must be"):
        is_disparity_consistent(points, disparity, disparity[0], 1.0)
    with pytest.raises(ValueError, match="tolerance must be at least 0 pixels, got -1"):
        is_flow_consistent(points, flow, flow, -1.0)
    with pytest.raises(ValueError, match="tolerance must be"):
        is_nearest_by_disparity(disparity, 4, NAN)
    with pytest.raises(ValueError, match="image1_width must be at least 1 pixel, got 0"):
        is_nearest_by_disparity(disparity, 0, 1.0)
    with pytest.raises(ValueError, match=r"flow_1to0 must be \(1, H, W, 2\), got \(2, 3, 4, 2\)"):
        is_flow_consistent(points, flow, flow.expand(2, -1, -1, -1), 1.0)
