"""The corner of a room with random textures, rendered from known poses."""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
from numpy.typing import NDArray

from support.batch_cases import make_texture

Array = NDArray[np.float64]
HW = (180, 240)
_SIDE = 512  # texels of a wall
_TEXEL = 8.0 / _SIDE  # metres
_FINER = 3  # images are rendered at this multiple of their size and then reduced, against aliasing
# Where a wall's first texel is, and the steps to the next one along its rows and columns.
_WALLS = (
    ((0.0, -8.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
    ((0.0, -8.0, -8.0), (0.0, 0.0, 1.0), (0.0, 1.0, 0.0)),
    ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, -1.0)),
)


@dataclass(frozen=True)
class Scene:
    """Rendered images and their ground truth.

    Attributes:
        folder: of 000.png, 001.png and so on.
        K: (3, 3), for pixels whose centres are at integers.
        rotations: (C, 3, 3) from the world to each camera.
        centres: (C, 3).
    """

    folder: Path
    K: Array
    rotations: Array
    centres: Array


def _look(centre: Array, target: Array) -> Array:
    ahead = (target - centre) / np.linalg.norm(target - centre)
    right = np.cross([0.0, 1.0, 0.0], ahead)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(ahead, right), ahead])


def _photograph(textures: list[NDArray[np.uint8]], K: Array, R: Array, centre: Array) -> NDArray[np.uint8]:
    grown_hw = (HW[0] * _FINER, HW[1] * _FINER)
    grow = np.array([[_FINER, 0, (_FINER - 1) / 2], [0, _FINER, (_FINER - 1) / 2], [0, 0, 1.0]])
    image = np.zeros((*grown_hw, 3), np.float32)
    for texture, (first, along, down) in zip(textures, _WALLS, strict=True):
        columns = [_TEXEL * (R @ along), _TEXEL * (R @ down), R @ (np.array(first) - centre)]
        H = grow @ K @ np.stack(columns, axis=1)
        size = grown_hw[::-1]
        seen = cv2.warpPerspective(texture.astype(np.float32), H, size, flags=cv2.INTER_LINEAR)
        where = cv2.warpPerspective(np.ones(texture.shape[:2], np.float32), H, size, flags=cv2.INTER_NEAREST)
        image[where > 0.5] = seen[where > 0.5]
    small = cv2.resize(image, HW[::-1], interpolation=cv2.INTER_AREA)
    return np.asarray(small).round().clip(0, 255).astype(np.uint8)


def make_scene(folder: Path, count: int = 5, seed: int = 0) -> Scene:
    """Photographs the corner from an arc of 40 degrees."""
    rng = np.random.default_rng(seed)
    textures = [make_texture((_SIDE, _SIDE), seed + number) for number in range(3)]
    focal = 1.1 * HW[1]
    K = np.array([[focal, 0, (HW[1] - 1) / 2], [0, focal, (HW[0] - 1) / 2], [0, 0, 1.0]])
    rotations, centres = [], []
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        angle = np.radians(25 + 40 * number / (count - 1))
        centre = np.array([6 * np.cos(angle), -2.2, -6 * np.sin(angle)]) + rng.normal(size=3) * 0.2
        R = _look(centre, np.array([0.8, -1.6, -0.8]))
        PIL.Image.fromarray(_photograph(textures, K, R, centre)).save(folder / f"{number:03}.png")
        rotations.append(R)
        centres.append(centre)
    return Scene(folder, K, np.stack(rotations), np.stack(centres))


def align_centres(found: Array, truth: Array) -> Array:
    """Distances (C,) after the similarity that fits best, by a slow search: the reference for Umeyama's."""
    from scipy.optimize import least_squares
    from scipy.spatial.transform import Rotation

    def apply(values: Array) -> Array:
        turned = Rotation.from_rotvec(values[:3]).apply(found - found.mean(axis=0))
        return np.asarray(np.exp(values[6]) * turned + values[3:6])

    best = None
    for start in Rotation.create_group("O").as_rotvec():
        values = np.concatenate([start, truth.mean(axis=0), [0.0]])
        result = least_squares(lambda v: (apply(v) - truth).ravel(), values)
        if best is None or result.cost < best.cost:
            best = result
    assert best is not None
    return np.asarray(np.linalg.norm(apply(best.x) - truth, axis=1))


_STORED = {  # what a camera held that way stores
    1: None,
    3: PIL.Image.Transpose.ROTATE_180,
    6: PIL.Image.Transpose.ROTATE_90,
    8: PIL.Image.Transpose.ROTATE_270,
}


def turn_photograph(path: Path, orientation: int, target: Path | None = None) -> None:
    """Stores an upright image as a camera does that was held another way, with its EXIF orientation."""
    with PIL.Image.open(path) as image:
        method = _STORED[orientation]
        stored = image.copy() if method is None else image.transpose(method)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    stored.save(target or path, exif=exif)
