"""Top view of a sparse reconstruction."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

_INCHES = 7.0
_DPI = 110
_TRIM = 2.0  # percentile of points cut off at each side
Values = NDArray[np.float64]


def view_from_above(rotations: Values, centres: Values) -> Values:
    """(3, 3): rotates world coordinates to the axes right, ahead and up of a top view.

    Up is the mean up direction of the cameras, ahead their mean viewing direction.

    Args:
        rotations: (C, 3, 3) from the world to each camera; C is at least 1.
        centres: (C, 3) of the cameras; their plane gives up where the up directions cancel.
    """
    up = -rotations[:, 1].mean(axis=0)
    if np.linalg.norm(up) < 1e-6:  # their up directions cancel
        up = np.linalg.svd(centres - centres.mean(axis=0))[2][-1]
    up /= np.linalg.norm(up)
    ahead = rotations[:, 2].mean(axis=0)
    for candidate in (ahead, *np.eye(3)):
        flat = candidate - (candidate @ up) * up
        if np.linalg.norm(flat) > 1e-3:
            break
    flat /= np.linalg.norm(flat)
    return np.stack([np.cross(flat, up), flat, up])


def draw_reconstruction(
    points: Values, colours: NDArray[np.uint8], rotations: Values, centres: Values
) -> NDArray[np.uint8]:
    """Draws a top view (H, W, 3): points in their colours, cameras as arrows.

    Args:
        points: (P, 3).
        colours: (P, 3) RGB.
        rotations: (C, 3, 3) from the world to each camera.
        centres: (C, 3) of the cameras.
    """
    axes = view_from_above(rotations, centres)
    flat_points, flat_centres = points @ axes.T, centres @ axes.T
    looks = (rotations[:, 2] @ axes.T)[:, :2]
    canvas = Figure(figsize=(_INCHES, _INCHES), layout="constrained")
    FigureCanvasAgg(canvas)
    panel = canvas.subplots()
    panel.scatter(flat_points[:, 0], flat_points[:, 1], s=1.5, c=colours / 255.0, linewidths=0)
    low, high = _limits(flat_points, flat_centres)
    length = 0.06 * float((high - low).max())
    for centre, look in zip(flat_centres, looks, strict=True):
        panel.arrow(
            *centre[:2], *(length * look), width=length / 12, color="#D55E00", length_includes_head=True
        )
    panel.set_xlim(low[0], high[0])
    panel.set_ylim(low[1], high[1])
    panel.set_aspect("equal")
    panel.set_title(f"{len(centres)} cameras, {len(points):,} points, top view; units of the model")
    content = io.BytesIO()
    canvas.savefig(content, format="png", dpi=_DPI)
    with PIL.Image.open(content) as image:
        return np.ascontiguousarray(image.convert("RGB"))


def _limits(points: Values, centres: Values) -> tuple[Values, Values]:
    """Corners of the view: all cameras, and all points but the outermost."""
    shown = centres[:, :2]
    if len(points):
        shown = np.concatenate([shown, np.percentile(points[:, :2], [_TRIM, 100 - _TRIM], axis=0)])
    low, high = shown.min(axis=0), shown.max(axis=0)
    margin = 0.08 * max(float((high - low).max()), 1e-6)
    return low - margin, high + margin
