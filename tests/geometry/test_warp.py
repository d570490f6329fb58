"""Homographies by hand, there and back, and by gradcheck."""

import pytest
import torch
from torch import Tensor

from ucn.geometry.warp import homography_from_corners, homography_from_points, warp_points

SQUARE = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]])


def random_homographies(B: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Homographies near the identity, with perspective, under which [0, 100]² stays in front."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(B, 3, 3, generator=generator, dtype=torch.float64) - 0.5
    scale = torch.tensor([[0.6, 0.6, 30], [0.6, 0.6, 30], [0.004, 0.004, 0]], dtype=torch.float64)
    return (torch.eye(3, dtype=torch.float64) + noise * scale).to(dtype)


def random_points(B: int, N: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(B, N, 2, generator=generator, dtype=torch.float64) * 100).to(dtype)


def test_warp_points_by_hand() -> None:
    # (1, 2): x' = 2 * 1 + 3 = 5, y' = 1 * 2 - 1 = 1, depth = 1 + 0.5 * 2 = 2.
    H = torch.tensor([[[2.0, 0, 3], [0, 1, -1], [0, 0.5, 1]]])
    points = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    assert warp_points(points, H).tolist() == [[[2.5, 0.5], [3.0, -1.0]]]


def test_points_on_and_behind_the_horizon_are_nan() -> None:
    # Depth is 2 - x: in front at x = 1, on the horizon at x = 2, behind at x = 3.
    H = torch.tensor([[[1.0, 0, 0], [0, 1, 0], [-1, 0, 2]]])
    found = warp_points(torch.tensor([[[1.0, 4.0], [2.0, 4.0], [3.0, 4.0]]]), H)
    assert found[0, 0].tolist() == [1, 4]
    assert found[0, 1:].isnan().all()


def test_the_corners_by_hand() -> None:
    # Moved by (5, -3); stretched by 2 and 4; and a trapezium: where the depth is 1 + y / 2 and y is doubled,
    # the corners (0, 2), (2, 2), of depth 2, go to (0, 2), (1, 2).
    moved = SQUARE + torch.tensor([5.0, -3.0])
    scaled = SQUARE * torch.tensor([2.0, 4.0])
    trapezium = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 2.0], [0.0, 2.0]])
    found = homography_from_corners(SQUARE, torch.stack([moved, scaled, trapezium]))
    expected = torch.tensor(
        [
            [[1.0, 0, 5], [0, 1, -3], [0, 0, 1]],
            [[2.0, 0, 0], [0, 4, 0], [0, 0, 1]],
            [[1.0, 0, 0], [0, 2, 0], [0, 0.5, 1]],
        ]
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("B", [1, 2])
def test_corners_go_where_they_should(B: int) -> None:
    corners0 = torch.tensor([[0.0, 0], [100, 10], [90, 80], [-5, 95]]).expand(B, 4, 2)
    corners1 = warp_points(corners0, random_homographies(B, torch.float32))
    H = homography_from_corners(corners0, corners1)
    assert H.shape == (B, 3, 3)
    torch.testing.assert_close(warp_points(corners0, H), corners1, atol=1e-3, rtol=0)


def test_corners_recover_the_homography_and_its_inverse() -> None:
    H = random_homographies(3)
    corners0 = torch.tensor([[0.0, 0], [100, 10], [90, 80], [-5, 95]], dtype=torch.float64)
    corners1 = warp_points(corners0.expand(3, 4, 2), H)
    torch.testing.assert_close(homography_from_corners(corners0, corners1), H)
    back = homography_from_corners(corners1, corners0.expand(3, 4, 2))
    inverse = torch.linalg.inv(H)
    torch.testing.assert_close(back, inverse / inverse[:, 2:, 2:])


def test_there_and_back() -> None:
    H, points = random_homographies(2), random_points(2, 50)
    there = warp_points(points, H)
    assert (there - points).abs().mean() > 1
    torch.testing.assert_close(warp_points(there, torch.linalg.inv(H)), points)


def test_one_after_the_other_equals_the_product() -> None:
    first, second, points = random_homographies(2), random_homographies(2, seed=5), random_points(2, 50)
    torch.testing.assert_close(
        warp_points(warp_points(points, first), second), warp_points(points, second @ first)
    )


def test_batched_equals_unbatched() -> None:
    H, points = random_homographies(2), random_points(2, 7)
    found = warp_points(points, H)
    for b in (0, 1):
        torch.testing.assert_close(found[b : b + 1], warp_points(points[b : b + 1], H[b : b + 1]))
    corners1 = found[:, :4]
    both = homography_from_corners(points[:, :4], corners1)
    for b in (0, 1):
        one = homography_from_corners(points[b, :4], corners1[b : b + 1])
        torch.testing.assert_close(both[b : b + 1], one)


def test_gradcheck() -> None:
    H = random_homographies(2).requires_grad_()
    points = random_points(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(warp_points, (points, H))


@pytest.mark.parametrize("N", [4, 200])
def test_homography_from_points_recovers_the_ground_truth(N: int) -> None:
    H, points0 = random_homographies(1)[0], random_points(1, N)[0]
    points1 = warp_points(points0[None], H[None])[0]
    found = homography_from_points(points0, points1)
    assert found.shape == (3, 3)
    torch.testing.assert_close(found, H, atol=1e-6, rtol=1e-6)
    single = homography_from_points(points0.float(), points1.float())
    assert single.dtype == torch.float32
    moved = warp_points(points0.float()[None], single[None])[0]
    torch.testing.assert_close(moved, points1.float(), atol=1e-2, rtol=0)


def test_homography_from_points_by_hand() -> None:
    corners1 = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 2.0], [0.0, 2.0]])
    expected = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0.5, 1]])
    torch.testing.assert_close(homography_from_points(SQUARE, corners1), expected, atol=1e-5, rtol=0)


def test_homography_from_points_has_its_points_in_front() -> None:
    # (0, 0) lies behind the horizon x = 100 of this one, the points before it.
    H = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.01, 0, -1]], dtype=torch.float64)
    points0 = random_points(1, 12)[0] + torch.tensor([150.0, 0])
    points1 = warp_points(points0[None], H[None])[0]
    found = homography_from_points(points0, points1)
    torch.testing.assert_close(warp_points(points0[None], found[None])[0], points1)


def test_a_homographys_scale_means_nothing() -> None:
    points = random_points(1, 5)
    H = random_homographies(1)
    torch.testing.assert_close(warp_points(points, 1e-9 * H), warp_points(points, H))


def test_no_points_and_no_pairs() -> None:
    assert warp_points(torch.zeros(2, 0, 2), random_homographies(2, torch.float32)).shape == (2, 0, 2)
    assert warp_points(torch.zeros(0, 5, 2), torch.zeros(0, 3, 3)).shape == (0, 5, 2)
    assert homography_from_corners(SQUARE, torch.zeros(0, 4, 2)).shape == (0, 3, 3)


def test_wrong_shapes() -> None:
    H = random_homographies(2, torch.float32)
    with pytest.raises(ValueError, match=r"points must be \(B, N, 2\), got \(5, 2\)"):
        warp_points(torch.zeros(5, 2), H)
    with pytest.raises(ValueError, match=r"H must be \(1, 3, 3\), got \(2, 3, 3\)"):
        warp_points(torch.zeros(1, 5, 2), H)
    with pytest.raises(ValueError, match=r"corners1 \(B, 4, 2\), got \(4, 2\) and \(4, 2\)"):
        homography_from_corners(SQUARE, SQUARE)
    with pytest.raises(ValueError, match=r"N at least 4, got \(3, 2\) and \(3, 2\)"):
        homography_from_points(SQUARE[:3], SQUARE[:3])
