"""Overlays: a shift by hand, an enlargement against the original, and what blinks."""

from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import PIL.ImageSequence
import pytest
import torch
from numpy.typing import NDArray

from ucn.errors import OutputError
from ucn.geometry.warp import warp_points
from ucn.viz.overlay import blend, warp_onto, write_animation


def make_image(height: int = 60, width: int = 80) -> NDArray[np.uint8]:
    noise = np.random.default_rng(0).uniform(0, 255, (height, width, 3)).astype(np.float32)
    return np.asarray(cv2.GaussianBlur(noise, (0, 0), 2.0), np.uint8)


def test_shift_by_hand() -> None:
    image = make_image()
    shift = np.array([[1.0, 0, 3], [0, 1, -2], [0, 0, 1]])  # pixel (0, 2) of image 0 is (3, 0) of image 1
    warped, is_seen = warp_onto(image, shift, (60, 80))
    np.testing.assert_array_equal(warped[2:, :77], image[:58, 3:])
    assert is_seen[2:, :77].all()
    assert not is_seen[:2].any()
    assert not is_seen[:, 77:].any()
    assert not warped[~is_seen].any()


def test_pixels_land_where_the_points_do() -> None:
    H = np.array([[0.9, -0.1, 8.0], [0.1, 1.05, 2.0], [1e-4, 2e-4, 1.0]])
    image = make_image()
    warped, is_seen = warp_onto(image, H, (50, 70))
    points0 = torch.tensor([[20.0, 20.0], [45.0, 10.0], [33.0, 41.0]])
    points1 = warp_points(points0[None].double(), torch.from_numpy(H)[None])[0].numpy()
    for (x0, y0), (x1, y1) in zip(points0.int().tolist(), points1, strict=True):
        assert is_seen[y0, x0]
        patch = cv2.getRectSubPix(image.astype(np.float32), (1, 1), (float(x1), float(y1)))[0, 0]
        assert np.abs(warped[y0, x0] - patch).max() <= 2


def test_a_larger_image_is_reduced_smoothly() -> None:
    fine = np.zeros((240, 320, 3), np.uint8)
    fine[:, ::2] = 255  # stripes that a reading of single pixels would show as black or white
    H = np.array([[4.0, 0, 1.5], [0, 4.0, 1.5], [0, 0, 1]])
    warped, is_seen = warp_onto(fine, H, (60, 80))
    assert is_seen[1:-1, 1:-1].all()
    assert np.abs(warped[5:-5, 5:-5].astype(int) - 127).max() <= 3


def test_behind_the_horizon_nothing_is_seen() -> None:
    H = np.array([[1.0, 0, 0], [0, 1, 0], [-0.05, 0, 1.0]])
    _, is_seen = warp_onto(make_image(), H, (60, 80))
    assert not is_seen[:, 21:].any()
    assert is_seen[0, 0]


def test_mix_is_grey_where_images_agree() -> None:
    image = make_image()
    seen = np.ones((60, 80), np.bool_)
    seen[:, 40:] = False
    mixed = blend(image, image, seen)
    assert (np.ptp(mixed[:, :40], axis=-1) == 0).all()
    np.testing.assert_array_equal(mixed[:, 40:], image[:, 40:])


def test_blinking(tmp_path: Path) -> None:
    images = make_image(), np.zeros((60, 80, 3), np.uint8)
    write_animation(tmp_path / "b.gif", images)
    with PIL.Image.open(tmp_path / "b.gif") as image:
        assert image.info["loop"] == 0
        assert image.info["duration"] == 600
        frames = [np.asarray(frame.convert("RGB")) for frame in PIL.ImageSequence.Iterator(image)]
    assert len(frames) == 2
    assert np.abs(frames[0].astype(int) - images[0]).mean() < 10
    assert frames[1].max() == 0
    with pytest.raises(OutputError, match="exists already"):
        write_animation(tmp_path / "b.gif", images)
