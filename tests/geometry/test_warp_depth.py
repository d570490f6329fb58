"""Depth and pose by hand, there and back, against slow references, and who hides whom."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.geometry.warp import (
    is_hidden,
    is_seen_through,
    is_smooth,
    is_visible,
    nearest_depths,
    project,
    sample_depth,
    unproject,
    warp_points_by_depth,
)

Array = NDArray[np.float64]


def camera(focal: float = 100.0, cx: float = 50.0, cy: float = 40.0) -> Tensor:
    return torch.tensor([[[focal, 0, cx], [0, focal, cy], [0, 0, 1]]], dtype=torch.float64)


def moved(x: float = 0.0, y: float = 0.0, z: float = 0.0) -> Tensor:
    T = torch.eye(4, dtype=torch.float64)[None].clone()
    T[0, :3, 3] = torch.tensor([x, y, z], dtype=torch.float64)
    return T


def points_of(*rows: tuple[float, float]) -> Tensor:
    return torch.tensor([rows], dtype=torch.float64)


def depths_of(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def random_case(B: int, N: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Points, depths, two different cameras with skew, and a rigid motion that keeps all in front."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    K = torch.eye(3, dtype=torch.float64).repeat(2, B, 1, 1)
    K[..., 0, 0], K[..., 1, 1] = 80 + 40 * draw(2, B), 80 + 40 * draw(2, B)
    K[..., :2, 2], K[..., 0, 1] = 50 * draw(2, B, 2), draw(2, B)
    T = torch.eye(4, dtype=torch.float64).repeat(B, 1, 1)
    twist = draw(B, 3, 3) - 0.5
    T[:, :3, :3] = torch.linalg.matrix_exp(0.3 * (twist - twist.mT))
    T[:, :3, 3] = draw(B, 3) - 0.5
    return 100 * draw(B, N, 2), 4 + 6 * draw(B, N), K[0], K[1], T


def reference_warp(point: Array, depth: float, K0: Array, K1: Array, T: Array) -> tuple[Array, float]:
    """One point, step by step."""
    ray = np.linalg.inv(K0) @ np.array([point[0], point[1], 1.0])
    moved_point = T @ np.array([*(ray * depth), 1.0])
    image = K1 @ moved_point[:3]
    return image[:2] / image[2], float(moved_point[2])


def test_unproject_by_hand() -> None:
    # The principal point looks along z; 100 pixels to the right of it, at f = 100, is 45 degrees.
    found = unproject(points_of((50, 40), (150, 40), (50, -60)), depths_of(2, 2, 3), camera())
    assert found.tolist() == [[[0, 0, 2], [2, 0, 2], [0, -3, 3]]]


def test_project_by_hand() -> None:
    points, depth = project(torch.tensor([[[1.0, 2.0, 4.0]]], dtype=torch.float64), camera(), moved(z=1))
    assert points.tolist() == [[[50 + 100 / 5, 40 + 200 / 5]]]
    assert depth.tolist() == [[5]]


def test_a_camera_moved_by_one_metre_to_the_right() -> None:
    # Camera 1 stands at x = +1, so its coordinates have x - 1: a pixel moves left by f / z = 100 / z.
    points0 = points_of((50, 40), (70, 10), (0, 79))
    points1, depth1 = warp_points_by_depth(points0, depths_of(2, 4, 10), camera(), camera(), moved(x=-1))
    assert points1.tolist() == [[[0, 40], [45, 10], [-10, 79]]]
    assert depth1.tolist() == [[2, 4, 10]]


def test_a_camera_moved_forward_and_turned() -> None:
    # Forward by 1 m: from depth 2 to depth 1 the distance from the principal point doubles.
    forward, depth = warp_points_by_depth(points_of((60, 35)), depths_of(2), camera(), camera(), moved(z=-1))
    assert forward.tolist() == [[[70, 30]]]
    assert depth.tolist() == [[1]]
    # Rolled by 90 degrees, x to y: 10 right of the principal point becomes 10 below it.
    roll = torch.eye(4, dtype=torch.float64)[None].clone()
    roll[0, :2, :2] = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    turned, _ = warp_points_by_depth(points_of((60, 40)), depths_of(7), camera(), camera(), roll)
    torch.testing.assert_close(turned, points_of((50, 50)))


def test_behind_the_camera_and_unknown_is_nan() -> None:
    points0 = points_of((50, 40)).expand(1, 6, 2)
    depth0 = depths_of(3, 2, 1, 0, math.nan, math.inf)
    points1, depth1 = warp_points_by_depth(points0, depth0, camera(), camera(), moved(z=-2))
    assert points1[0, 0].tolist() == [50, 40]
    assert depth1[0, 0] == 1
    assert points1[0, 1:].isnan().all()
    assert depth1[0, 1:].isnan().all()


@pytest.mark.parametrize("B", [1, 2])
def test_warp_equals_the_slow_reference(B: int) -> None:
    points0, depth0, K0, K1, T = random_case(B, 20)
    points1, depth1 = warp_points_by_depth(points0, depth0, K0, K1, T)
    assert points1.shape == (B, 20, 2)
    for b in range(B):
        for i in range(20):
            expected, expected_depth = reference_warp(
                points0[b, i].numpy(), float(depth0[b, i]), K0[b].numpy(), K1[b].numpy(), T[b].numpy()
            )
            np.testing.assert_allclose(points1[b, i].numpy(), expected)
            assert float(depth1[b, i]) == pytest.approx(expected_depth)


def test_there_and_back_and_unbatched() -> None:
    points0, depth0, K0, K1, T = random_case(2, 50)
    points1, depth1 = warp_points_by_depth(points0, depth0, K0, K1, T)
    assert (points1 - points0).norm(dim=-1).mean() > 5
    back, depth = warp_points_by_depth(points1, depth1, K1, K0, torch.linalg.inv(T))
    torch.testing.assert_close(back, points0)
    torch.testing.assert_close(depth, depth0)
    alone, _ = warp_points_by_depth(points0[1:], depth0[1:], K0[1:], K1[1:], T[1:])
    torch.testing.assert_close(alone, points1[1:])


def test_gradcheck() -> None:
    points0, depth0, K0, K1, T = random_case(2, 3)
    inputs = (points0.requires_grad_(), depth0.requires_grad_(), K0, K1, T.requires_grad_())
    assert torch.autograd.gradcheck(lambda *values: warp_points_by_depth(*values)[0], inputs)


def test_sample_depth_by_hand() -> None:
    depth_map = torch.tensor([[[2.0, 2.0, 4.0], [2.0, math.nan, 4.0], [2.0, 2.0, 0.0]]])
    points = torch.tensor([[(0.0, 0), (0, 0.5), (1, 0.0), (0.5, 0), (1.5, 0), (1, 0.5), (2, 1.5), (9, 0)]])
    # Known; between equal ones; a pixel centre asks nobody else; equal ones; an edge; next to unknown ones
    # (NaN, and 0); off the map.
    found = sample_depth(depth_map, points)[0].tolist()
    assert found[:4] == [2, 2, 2, 2]
    assert all(math.isnan(value) for value in found[4:])
    # With tolerance for it, 1 / depth is mixed: the middle between 2 and 4 is 1 / 0.375.
    across = sample_depth(depth_map, points[:, 4:5], tolerance=1.0)
    assert across.item() == pytest.approx(1 / 0.375)


def test_sample_depth_in_the_outer_half_of_the_border_pixels() -> None:
    depth_map = torch.tensor([[[2.0, 3.0]]])
    found = sample_depth(depth_map, torch.tensor([[(-0.5, -0.5), (1.5, 0.5), (-0.51, 0.0)]]))[0]
    assert found[:2].tolist() == [2, 3]
    assert found[2].isnan()


def test_sample_depth_is_exact_on_a_slanted_plane() -> None:
    # z = 5 + x / 2 in camera coordinates: 1 / z is linear in pixels.
    K = camera()
    x = (torch.arange(20, dtype=torch.float64) - 50) / 100
    depth_map = (5 / (1 - 0.5 * x)).expand(1, 10, 20)
    points = torch.rand(1, 40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 9
    expected = 5 / (1 - 0.5 * (points[..., 0] - K[0, 0, 2]) / 100)
    torch.testing.assert_close(sample_depth(depth_map, points), expected)


def test_is_smooth_by_hand() -> None:
    depth_map = torch.full((2, 5, 5), 2.0, dtype=torch.float64)
    depth_map[0, :, 4] = 2.2  # an edge of 10 %
    depth_map[1, 0, 0] = math.nan
    expected = torch.ones(2, 5, 5, dtype=torch.bool)
    expected[0, :, 3:] = False
    expected[1, :2, :2] = False
    assert is_smooth(depth_map).equal(expected)
    assert is_smooth(depth_map, tolerance=0.11)[0].all()
    with pytest.raises(ValueError, match=r"depth_map must be \(B, H, W\) with pixels, got \(5, 5\)"):
        is_smooth(depth_map[0])


def test_is_visible_by_hand() -> None:
    depth_map1 = torch.full((1, 4, 4), 2.0)
    depth_map1[0, :, 2:] = 5.0
    depth_map1[0, 3, 3] = math.nan
    points1 = torch.tensor([[(0.0, 0), (0, 0), (3, 0), (3, 0), (1.5, 1), (3, 3), (3, 0)]])
    depth1 = torch.tensor([[2.0, 5.0, 5.2, 2.0, 2.0, 5.0, math.nan]])
    # Seen; hidden; within 5 %; before what is seen there; on an edge; unknown map; unknown depth.
    found = is_visible(points1, depth1, depth_map1, tolerance=0.05)
    assert found.tolist() == [[True, False, True, False, False, False, False]]


def test_nearest_depths_by_hand() -> None:
    points = points_of((-0.5, -0.5), (1.49, 0), (1.5, 0), (4.4, 2.4), (9, 0), (0, 0))
    buffer = nearest_depths(points, depths_of(3, 2, 7, 5, 1, math.nan), image_hw=(3, 5), cell=2)
    inf = math.inf
    assert buffer.depths.tolist() == [[[2, 7, inf], [inf, inf, 5]]]


def reference_hidden(
    points: Array, depth: Array, nearest: Array, cell: float, reach: int, tolerance: float
) -> list[bool]:
    """Every point by itself, cell by cell."""
    found = []
    h, w = nearest.shape

    def is_nearer(row: int, column: int, limit: float) -> bool:
        return 0 <= row < h and 0 <= column < w and bool(nearest[row, column] < limit)

    for (x, y), z in zip(points, depth, strict=True):
        row, column = math.floor((y + 0.5) / cell), math.floor((x + 0.5) / cell)
        limit = (1 - tolerance) * z
        steps = range(1, reach + 1)
        up, down = (any(is_nearer(row + sign * s, column, limit) for s in steps) for sign in (-1, 1))
        left, right = (any(is_nearer(row, column + sign * s, limit) for s in steps) for sign in (-1, 1))
        found.append(is_nearer(row, column, limit) or (up and down) or (left and right))
    return found


@pytest.mark.parametrize("reach", [0, 1, 3])
def test_is_hidden_equals_the_slow_reference(reach: int) -> None:
    generator = torch.Generator().manual_seed(3)
    points = torch.rand(2, 60, 2, generator=generator, dtype=torch.float64) * 29 - 0.5
    depth = 1 + 9 * torch.rand(2, 60, generator=generator, dtype=torch.float64)
    nearest = nearest_depths(points, depth, (30, 30), cell=3)
    found = is_hidden(points, depth, nearest, reach=reach, tolerance=0.1)
    assert found.any()
    assert not found.all()
    for b in range(2):
        expected = reference_hidden(
            points[b].numpy(), depth[b].numpy(), nearest.depths[b].numpy(), 3, reach, 0.1
        )
        assert found[b].tolist() == expected


def hidden(points: Tensor, depth: Tensor, **settings: Any) -> list[bool]:
    nearest = nearest_depths(points, depth, (40, 40))
    (row,) = is_hidden(points, depth, nearest, **settings).tolist()
    return list(row)


def test_who_hides_whom() -> None:
    # The same pixel: the farther one is hidden, unless by less than the tolerance.
    assert hidden(points_of((5, 5), (5, 5), (5, 5)), depths_of(2, 2.05, 3)) == [False, False, True]
    # Between two scan lines of a near object, above and below; beside it, with the object on one side only.
    assert hidden(points_of((20, 16), (20, 22), (20, 19)), depths_of(2, 2, 9)) == [False, False, True]
    assert hidden(points_of((20, 16), (20, 22), (20, 25)), depths_of(2, 2, 9)) == [False, False, False]
    assert hidden(points_of((16, 20), (22, 20), (19, 20)), depths_of(2, 2, 9)) == [False, False, True]
    assert hidden(points_of((20, 16), (20, 22), (20, 19)), depths_of(2, 2, 9), reach=0) == [False] * 3


def test_a_road_does_not_hide_itself() -> None:
    # Rows 20 ... 39 below the horizon at 10; 1.5 m below the camera at f = 30.
    rows = torch.arange(20, 40, dtype=torch.float64)
    points = torch.stack([torch.full_like(rows, 11.0), rows], dim=-1)[None]
    assert not any(hidden(points, (1.5 * 30 / (rows - 10))[None], tolerance=0.1))


def test_points_off_the_image_are_not_hidden() -> None:
    assert hidden(points_of((5, 5), (-9, 5), (5, 5)), depths_of(2, 3, math.nan)) == [False, False, False]


def test_what_is_seen_through() -> None:
    # The view measures a wall at 10 around (5, 5), a pole at 3 beside (25, 5), and nothing around (35, 35).
    measured = points_of((5, 5), (25, 2), (25, 8), (28, 5), (5, 20))
    nearest = nearest_depths(measured, depths_of(10, 10, 10, 3, 10), (40, 40))
    points = points_of((5, 5), (5, 5), (25, 5), (35, 35), (5, 16))
    # Gone; at the wall; the pole may be its own; no measurement; measured on one side only.
    found = is_seen_through(points, depths_of(4, 9.8, 4, 4, 4), nearest)
    assert found.tolist() == [[True, False, False, False, False]]


def test_no_points() -> None:
    none, no_depths = torch.zeros(2, 0, 2), torch.zeros(2, 0)
    K, T = torch.eye(3).expand(2, 3, 3), torch.eye(4).expand(2, 4, 4)
    points1, depth1 = warp_points_by_depth(none, no_depths, K, K, T)
    assert points1.shape == (2, 0, 2)
    assert depth1.shape == (2, 0)
    assert sample_depth(torch.ones(2, 3, 3), none).shape == (2, 0)
    nearest = nearest_depths(none, no_depths, (3, 3))
    assert nearest.depths.shape == (2, 2, 2)
    assert is_hidden(none, no_depths, nearest).shape == (2, 0)


def test_wrong_shapes() -> None:
    points, depth, K, T = torch.zeros(1, 5, 2), torch.ones(1, 5), torch.eye(3)[None], torch.eye(4)[None]
    with pytest.raises(ValueError, match=r"points must be \(B, N, 2\), got \(5, 2\)"):
        unproject(points[0], depth, K)
    with pytest.raises(ValueError, match=r"depth must be \(1, 5\), got \(1, 4\)"):
        unproject(points, depth[:, :4], K)
    with pytest.raises(ValueError, match=r"K must be \(1, 3, 3\), got \(3, 3\)"):
        warp_points_by_depth(points, depth, K[0], K, T)
    with pytest.raises(ValueError, match=r"T must be \(1, 4, 4\), got \(1, 3, 3\)"):
        warp_points_by_depth(points, depth, K, K, K)
    with pytest.raises(ValueError, match=r"points3d must be \(B, N, 3\), got \(1, 5, 2\)"):
        project(points, K)
    with pytest.raises(ValueError, match=r"depth_map must be \(B, H, W\) with pixels, got \(1, 0, 3\)"):
        sample_depth(torch.zeros(1, 0, 3), points)
    with pytest.raises(ValueError, match=r"points must be \(2, N, 2\), got \(1, 5, 2\)"):
        sample_depth(torch.ones(2, 3, 3), points)
    with pytest.raises(ValueError, match="nearest must be of 1 images, got 2"):
        is_hidden(points, depth, nearest_depths(points.repeat(2, 1, 1), depth.repeat(2, 1), (3, 3)))
    with pytest.raises(ValueError, match="tolerance must be at least 0, got -1"):
        is_visible(points, depth, torch.ones(1, 3, 3), tolerance=-1)
    with pytest.raises(ValueError, match="cell must be above 0 pixels, got 0"):
        nearest_depths(points, depth, (3, 3), cell=0)
