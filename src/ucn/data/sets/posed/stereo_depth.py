"""Depth from a rectified stereo pair, by semi-global matching (Hirschmüller 2008) as OpenCV has it."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.sets.posed.views import Array

MAX_DISPARITY = 128
"""Pixels; nearer things are not measured. KITTI's rig (f × B about 380) so measures from 3 m on."""
MIN_DISPARITY = 1.0
"""Pixels; below it a depth says little more than that something is far away."""

_BLOCK = 5  # pixels; OpenCV recommends 3 to 11, and penalties in proportion to the block's area
_AGREEMENT = 1.0  # pixels that the disparities of left and right may differ by


def match_stereo(left: Tensor, right: Tensor) -> Array:
    """Disparities of the left view of a rectified pair: x_right = x_left - d.

    Both directions are matched, and what differs by more than 1 pixel between them is unknown, as are
    disparities outside [`MIN_DISPARITY`, `MAX_DISPARITY`).

    Args:
        left: (3, H, W) in [0, 1].
        right: (3, H, W), the same size.

    Returns:
        (H, W) pixels; NaN where unknown.
    """
    grey_left, grey_right = _to_grey(left), _to_grey(right)
    disparity = _match(grey_left, grey_right)
    # Mirrored, the right view is a left one.
    disparity_right = _match(grey_right[:, ::-1], grey_left[:, ::-1])[:, ::-1]
    height, width = disparity.shape
    columns = np.arange(width) - np.nan_to_num(disparity)
    is_on_right = np.isfinite(disparity) & (columns >= 0)
    nearest = np.clip(np.rint(columns), 0, width - 1).astype(np.int64)
    answer = disparity_right[np.arange(height)[:, None], nearest]
    with np.errstate(invalid="ignore"):  # unknown is NaN, and compares as False
        agrees = is_on_right & (np.abs(answer - disparity) <= _AGREEMENT)
    return np.where(agrees, disparity, np.nan)


def _match(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Array:
    matcher = cv2.StereoSGBM.create(
        minDisparity=0,
        numDisparities=MAX_DISPARITY,
        blockSize=_BLOCK,
        P1=8 * _BLOCK**2,
        P2=32 * _BLOCK**2,
        disp12MaxDiff=-1,
        uniquenessRatio=10,
        speckleWindowSize=200,
        speckleRange=2,
        mode=cv2.StereoSGBM_MODE_SGBM_3WAY,
    )
    # OpenCV leaves out the first MAX_DISPARITY columns; with so many added in front, none of ours are.
    padded = [
        cv2.copyMakeBorder(np.ascontiguousarray(image), 0, 0, MAX_DISPARITY, 0, cv2.BORDER_REPLICATE)
        for image in (left, right)
    ]
    found = matcher.compute(*padded)[:, MAX_DISPARITY:].astype(np.float64) / 16  # fixed point, 4 bits
    return np.where(found >= MIN_DISPARITY, found, np.nan)


def _to_grey(image: Tensor) -> NDArray[np.uint8]:
    return (image.mean(dim=0) * 255).round().byte().numpy()
