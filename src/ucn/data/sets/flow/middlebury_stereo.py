"""Middlebury stereo, 2001 to 2021: rectified pairs with dense disparity, in scaled 8-bit images or PFM."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ucn.data.descriptions import MIDDLEBURY_STEREO as INFO
from ucn.data.io import read_header_hw, read_image
from ucn.data.sets.flow.dense_pairs import DenseData, DensePair, GroundTruthFile, SizeHW, check_size
from ucn.data.sets.layout import find_image, find_root
from ucn.errors import DataError
from ucn.files.reading import read_binary
from ucn.geometry.coords import pixel_grid
from ucn.geometry.warp import (
    flow_from_disparity,
    is_disparity_consistent,
    is_nearest_by_disparity,
    targets_of_flow,
)

CONSISTENCY_PIXELS = 1.0
"""Largest difference of left and right disparity in pixels; the authors' own cross-check uses one, too."""

# Factors of 8-bit disparities, from the pages of the releases. Scenes of 2001 have one size;
# Tsukuba's (from the University of Tsukuba) are integers times 16.
_SCALES_BY_SCENE = dict.fromkeys(("barn1", "barn2", "bull", "poster", "sawtooth", "venus"), 8.0)
_SCALES_BY_SCENE["tsukuba"] = 16.0
# Later releases come in several sizes, which the image height tells apart: 2003 in full, half and quarter
# size, 2005 and 2006 in full, half and third size.
_SCALES_BY_HEIGHT = {"im2": {1500: 1.0, 750: 2.0, 375: 4.0}, "view1": {1110: 1.0, 555: 2.0, 370: 3.0}}
# A single white-space byte (or CR LF) ends the header: the next byte may belong to a pixel.
_PFM_HEADER = re.compile(rb"Pf\s+([1-9][0-9]{0,7})\s+([1-9][0-9]{0,7})\s+([-+0-9.eE]{1,20})(?:\r\n|\s)")
_IMAGES = (".png", ".ppm", ".pgm", ".jpg", ".jpeg")
_LOSSLESS = (".png", ".pgm", ".ppm")


@dataclass(frozen=True)
class _Layout:
    """The file names of a release: left and right view, and their disparities."""

    image0: str
    image1: str
    disparity0: str
    disparity1: str
    suffixes: tuple[str, ...]


_LAYOUTS = (
    _Layout("im2", "im6", "disp2", "disp6", _LOSSLESS),
    _Layout("view1", "view5", "disp1", "disp5", (".png",)),
    _Layout("im0", "im1", "disp0", "disp1", (".pfm",)),
    _Layout("im0", "im1", "disp0GT", "disp1GT", (".pfm",)),
)


def open_folder(
    folder: Path, split: str, *, disparity_scale: float = 0.0, keep_occluded: bool = False
) -> MiddleburyStereo:
    """Opens Middlebury stereo.

    Args:
        folder: holds the scenes, in any of the layouts, side by side.
        split: all.
        disparity_scale: divisor of 8-bit disparities; 0 derives it from the scene's name and size, which
            needs images as released. PFM files are in pixels already.
        keep_occluded: keep pixels that are occluded in the right view. They are found with the right view's
            disparity or, where it is missing, with the left one alone.
    """
    if not 0 <= disparity_scale < math.inf:
        raise DataError(f"option disparity_scale must be 0 (automatic) or positive, got {disparity_scale}")
    root = find_root(folder, INFO.markers, INFO.inside)
    return MiddleburyStereo(root, split, disparity_scale, keep_occluded)


class MiddleburyStereo(DenseData):
    """The left and the right view of each scene."""

    def __init__(self, root: Path, split: str, disparity_scale: float, keep_occluded: bool) -> None:
        super().__init__(root)
        self._keep_occluded = keep_occluded
        self._scales: dict[str, float] = {}
        for scene in sorted(path for path in root.iterdir() if path.is_dir()):
            self._add(scene, disparity_scale)
        self.require_pairs(split, f"no SCENE/disp2.png, disp1.png or disp0.pfm in {root}")
        one_sided = [pair.name for pair in self.pairs if len(pair.ground_truth) == 1]
        if one_sided and not keep_occluded:
            scenes = ", ".join(one_sided)
            self.notes.append(f"no right disparity in {scenes}: occlusions are found with the left one alone")

    def _add(self, scene: Path, disparity_scale: float) -> None:
        found = ((layout, find_image(scene / layout.disparity0, layout.suffixes)) for layout in _LAYOUTS)
        layout, disparity0 = next(((layout, path) for layout, path in found if path), (None, None))
        if layout is None or disparity0 is None:
            return
        image0, image1 = (find_image(scene / name, _IMAGES) for name in (layout.image0, layout.image1))
        if image0 is None or image1 is None:
            path = scene / f"{layout.image0 if image0 is None else layout.image1}.png"
            self.add_problem(path, f"no such file, though {disparity0.name} is there; unpack the scene again")
            return
        scale = 1.0 if disparity0.suffix == ".pfm" else disparity_scale
        scale = scale or _find_scale(scene.name, layout.image0, image0)
        if not scale:
            self.add_problem(
                disparity0,
                f"its scale is unknown, since {image0.name} has none of the heights of the releases; "
                "give option disparity_scale",
            )
            return
        self._scales[scene.name] = scale
        disparity1 = find_image(scene / layout.disparity1, layout.suffixes)
        files = [path for path in (disparity1, disparity0) if path is not None]
        disparities = tuple(GroundTruthFile(path, "disparity") for path in files)
        self.pairs.append(DensePair(scene.name, image0, image1, disparities))

    def read_targets(self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW) -> Tensor:
        """Pixels shifted by the left disparity, without those occluded in the right view."""
        disparity0 = self._read(pair, pair.ground_truth[-1].path, pair.image0, image0_hw)[None]
        targets = targets_of_flow(flow_from_disparity(disparity0))[0]
        if self._keep_occluded:
            return targets
        if len(pair.ground_truth) == 2:
            disparity1 = self._read(pair, pair.ground_truth[0].path, pair.image1, image1_hw)[None]
            points = pixel_grid(image0_hw).view(1, -1, 2)
            is_visible = is_disparity_consistent(points, disparity0, disparity1, CONSISTENCY_PIXELS)
        else:
            is_visible = is_nearest_by_disparity(disparity0, image1_hw[1], CONSISTENCY_PIXELS)
        return targets.where(is_visible.view(*image0_hw, 1), torch.nan)

    def check_ground_truth(self, pair: DensePair, file: GroundTruthFile) -> object:
        """Reads a disparity."""
        image = pair.image0 if file == pair.ground_truth[-1] else pair.image1
        return self._read(pair, file.path, image, read_header_hw(image))

    def _read(self, pair: DensePair, path: Path, image: Path, image_hw: SizeHW | None) -> Tensor:
        """Disparities (H, W) in pixels; NaN where unknown."""
        values = read_pfm(path) if path.suffix == ".pfm" else _read_8_bit(path)
        check_size(path, values.shape, image, image_hw)
        return values / self._scales[pair.name]


def _find_scale(scene: str, left_name: str, image: Path) -> float:
    """The factor of a release's 8-bit disparities; 0 where it is unknown."""
    if left_name == "im2" and scene.lower() in _SCALES_BY_SCENE:
        return _SCALES_BY_SCENE[scene.lower()]
    height, _ = read_header_hw(image) or (0, 0)
    return _SCALES_BY_HEIGHT[left_name].get(height, 0.0)


def _read_8_bit(path: Path) -> Tensor:
    """Grey values (H, W) 0 to 255 of an 8-bit image; NaN for 0, which marks unknown pixels."""
    image = read_image(path) * 255
    values = image[0].round()
    if not torch.allclose(image, values.expand_as(image), rtol=0, atol=1e-3):
        raise DataError(
            f"{path}: expected disparity as 8-bit grey, got colours or more bits; unpack it again"
        )
    return values.where(values > 0, torch.nan)


def read_pfm(path: Path) -> Tensor:
    """Reads a portable float map of one channel.

    The header is ``Pf``, width, height and a scale, whose sign gives the byte order: negative is little
    endian. The scale itself is ignored, since Middlebury's disparities are in pixels. Rows are stored from
    bottom to top.

    Returns:
        (H, W) float32, top row first; NaN where the file has infinity or NaN, which mark unknown pixels.

    Raises:
        DataError: the file is missing, too large, has another header, or its length does not match it.
    """
    content = read_binary(path, "disparity")
    header = _PFM_HEADER.match(content[:128])
    if header is None:
        raise DataError(
            f"{path}: expected a portable float map of one channel, which begins 'Pf', width, height, scale; "
            f"got {content[:24]!r}; unpack it again"
        )
    width, height, start = int(header[1]), int(header[2]), header.end()
    if len(content) - start != 4 * width * height:
        raise DataError(
            f"{path}: expected {4 * width * height:,} bytes for {width} × {height} values after the header, "
            f"got {len(content) - start:,}; unpack it again"
        )
    order = "<f4" if header[3].startswith(b"-") else ">f4"
    rows = np.frombuffer(content, order, offset=start).reshape(height, width).astype(np.float32)
    disparity = torch.from_numpy(rows).flip(0)
    return disparity.where(disparity.isfinite(), torch.nan)
