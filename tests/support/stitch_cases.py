"""Views of a picture under known homographies, and a matcher that knows them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ucn.config import MatchConfig
from ucn.data.io import read_image, to_pixels, to_tensor
from ucn.types import ImageLike, Matches

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]
VIEW_HW = (90, 120)


def read_coffee(width: int = 300) -> Pixels:
    """A bundled photograph, reduced to (200, 300) or another size."""
    with resources.as_file(resources.files("ucn.data") / "pictures" / "coffee.jpg") as path:
        pixels = to_pixels(read_image(path))
    return np.asarray(cv2.resize(pixels, (width, 2 * width // 3), interpolation=cv2.INTER_AREA), np.uint8)


def tilt(x: float, y: float, skew: float = 0.0, depth: float = 0.0) -> Array:
    """(3, 3), from pixels of a view to pixels of the picture, around the view's middle."""
    centre = np.array([[1.0, 0, -59.5], [0, 1, -44.5], [0, 0, 1]])
    view = np.array([[1 + skew, skew, x + 59.5], [-skew, 1 - skew, y + 44.5], [depth, -depth, 1]])
    return np.asarray(view @ centre)


def take_view(
    picture: Pixels, to_picture: Array, gain: float = 1.0, size_hw: tuple[int, int] = VIEW_HW
) -> Pixels:
    """A photograph of the picture."""
    flags = cv2.WARP_INVERSE_MAP | cv2.INTER_CUBIC
    view = cv2.warpPerspective(picture, to_picture, size_hw[::-1], flags=flags)
    return np.asarray(np.clip(np.rint(view * gain), 0, 255), np.uint8)


def transfer(H: Array, points: Array) -> Array:
    """Points (N, 2) after a homography."""
    moved = np.column_stack([points, np.ones(len(points))]) @ H.T
    return np.asarray(moved[:, :2] / moved[:, 2:])


def view_corners() -> Array:
    height, width = VIEW_HW
    return np.array([[0.0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])


@dataclass(frozen=True)
class KnownFeatures:
    """Stands for `Features`: the homography of the view is all that counts."""

    image_hw: tuple[int, int]
    to_picture: Array | None

    @property
    def resized_hw(self) -> tuple[int, int]:
        return self.image_hw


class KnownMatcher:
    """Matches a grid of points by known homographies, with noise; unknown images match at random."""

    def __init__(self, views: list[tuple[Pixels, Array]], noise: float = 0.2) -> None:
        self.config = MatchConfig()
        self.weights = SimpleNamespace(name="known", sha256="cd" * 32)
        self._known = {pixels.tobytes(): H for pixels, H in views}
        self._noise = noise

    def extract(self, image: ImageLike) -> Any:
        pixels = to_pixels(to_tensor(image))
        return KnownFeatures((pixels.shape[0], pixels.shape[1]), self._known.get(pixels.tobytes()))

    def match_features(self, features0: Any, features1: Any) -> Matches:
        x, y = np.meshgrid(np.arange(2, 118, 7.0), np.arange(2, 88, 7.0))
        points0 = np.stack([x.ravel(), y.ravel()], axis=1)
        rng = np.random.default_rng(0)
        if features0.to_picture is None or features1.to_picture is None:
            points1 = rng.uniform(0, 90, points0.shape)
        else:
            points1 = transfer(np.linalg.inv(features1.to_picture) @ features0.to_picture, points0)
            points1 += rng.normal(0, self._noise, points1.shape)
        height, width = features1.image_hw
        keep = ((points1 >= 0) & (points1 < (width, height))).all(axis=1)
        kept0, kept1 = (points[keep].astype(np.float32) for points in (points0, points1))
        ones = np.ones(len(kept0), np.float32)
        score = 0.1 if features0.to_picture is None or features1.to_picture is None else 0.9
        return Matches(kept0, kept1, ones, ones > 0, score, features0.image_hw, features1.image_hw)
