"""Disparity of rectified stereo pairs by OpenCV's semi-global matching (Hirschmüller 2008)."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.sets.posed.posed_pairs import Array

MAX_DISPARITY = 128
"""Pixels; closer objects are not measured. With KITTI's rig (f × B about 380) that is 3 m."""
MIN_DISPARITY = 1.0
"""Pixels; a smaller disparity gives no useful depth."""

_BLOCK = 5  # pixels; OpenCV recommends 3 to 11, and penalties proportional to the block's area
_AGREEMENT = 1.0  # largest difference of left and right disparities, pixels


def match_stereo(left: Tensor, right: Tensor) -> Array:
    """Disparities of the left view of a rectified pair: x_right = x_left - d.

    Both directions are matched. Disparities that differ by more than 1 pixel between them are unknown, as are
    those outside [`MIN_DISPARITY`, `MAX_DISPARITY`).

    Args:
        left: (3, H, W) in [0, 1].
        right: (3, H, W), the same size.

    Returns:
        (H, W) pixels; NaN where unknown.
    """
    grey_left, grey_right = _to_grey(left), _to_grey(right)
    disparity = _match(grey_left, grey_right)
    # A mirrored right view is a left view.
    disparity_right = _match(grey_right[:, ::-1], grey_left[:, ::-1])[:, ::-1]
    height, width = disparity.shape
    columns = np.arange(width) - np.nan_to_num(disparity)
    is_on_right = np.isfinite(disparity) & (columns >= 0)
    nearest = np.clip(np.rint(columns), 0, width - 1).astype(np.int64)
    answer = disparity_right[np.arange(height)[:, None], nearest]
    with np.errstate(invalid="ignore"):  # unknown is NaN, which compares as False
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
    # OpenCV does not match the first MAX_DISPARITY columns: pad by as many.
    padded = [
        cv2.copyMakeBorder(np.ascontiguousarray(image), 0, 0, MAX_DISPARITY, 0, cv2.BORDER_REPLICATE)
        for image in (left, right)
    ]
    found = matcher.compute(*padded)[:, MAX_DISPARITY:].astype(np.float64) / 16  # fixed point, 4 bits
    return np.where(found >= MIN_DISPARITY, found, np.nan)


def _to_grey(image: Tensor) -> NDArray[np.uint8]:
    return (image.mean(dim=0) * 255).round().byte().numpy()
