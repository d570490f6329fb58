"""Colours of points from images whose format COLMAP does not read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.data.io import image_hw, read_oriented_image
from ucn.geometry.coords import apply_orientation, from_corner_origin, orient_size
from ucn.geometry.sampling import sample_image

if TYPE_CHECKING:
    import pycolmap

UNREAD_SUFFIXES = (".avif", ".heic", ".heif", ".webp")
"""Suffixes of images that ucn reads, but not COLMAP."""


def colour_points(model: pycolmap.Reconstruction, folder: Path) -> None:
    """Gives each point the mean colour of the pixels that observe it, as COLMAP does for images it reads.

    Args:
        model: its points are changed; its cameras are of the images as stored.
        folder: of the images.

    Raises:
        ImageReadError: an image cannot be read.
    """
    sums: dict[int, NDArray[np.float64]] = {key: np.zeros(4) for key in model.points3D}
    for image_id in model.reg_image_ids():
        image = model.image(image_id)
        seen = [point for point in image.points2D if point.has_point3D()]
        if not seen:
            continue
        pixels, orientation = read_oriented_image(folder / image.name)
        hw = image_hw(pixels)
        points = from_corner_origin(torch.from_numpy(np.array([point.xy for point in seen])))
        points = apply_orientation(points, orient_size(hw, orientation), orientation)
        colours = sample_image(pixels[None], points.float()[None, None], "border")[0, :, 0].T.numpy() * 255.0
        for point, colour in zip(seen, colours, strict=True):
            sums[point.point3D_id] += (*colour, 1)
    for key, (*total, count) in sums.items():
        if count:
            model.points3D[key].color = np.round(np.array(total) / count).astype(np.uint8)
