import numpy as np
import pytest

from ucn.viz.reconstruction import draw_reconstruction, view_from_above

LEVEL = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # looks along y of the world, z is up


def test_axes_are_right_ahead_and_up() -> None:
    axes = view_from_above(np.stack([LEVEL] * 3), np.eye(3))
    np.testing.assert_allclose(axes, np.eye(3), atol=1e-12)
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # the whole world turned about its z
    np.testing.assert_allclose(view_from_above(np.stack([LEVEL @ turn.T]), np.eye(3)[:1]), turn.T, atol=1e-12)


def test_cameras_that_look_down_or_in_every_direction() -> None:
    down = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    for rotations in (
        np.stack([down, -down]),
        np.stack([down]),
        np.stack([LEVEL, LEVEL @ np.diag([1, -1, -1])]),
    ):
        axes = view_from_above(rotations, np.random.default_rng(0).normal(size=(len(rotations), 3)))
        np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-9)
        assert np.linalg.det(axes) == pytest.approx(1)


@pytest.mark.parametrize("count", [0, 1, 50])
def test_picture(count: int) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(-3, 3, (count, 3))
    colours = np.tile(np.array([[0, 0, 255]], np.uint8), (count, 1))
    rotations, centres = np.stack([LEVEL] * 2), np.array([[0.0, -5, 0], [1, -5, 0]])
    pixels = draw_reconstruction(points, colours, rotations, centres)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (770, 770, 3)
    blue = (pixels[..., 2] > 200) & (pixels[..., 0] < 100)
    orange = (pixels[..., 0] > 180) & (pixels[..., 2] < 80)
    assert orange.sum() > 20
    assert blue.any() == (count > 0)
    np.testing.assert_array_equal(
        pixels,
        draw_reconstruction(points, colours, rotations, centres),
    )
