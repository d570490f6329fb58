"""Drawings of flow."""

from __future__ import annotations

import numpy as np

from ucn.types import Flow, ImageLike
from ucn.viz.canvas import PAPER, lay_out, resize
from ucn.viz.caption import add_caption
from ucn.viz.colours import ImageArray, flow_colours


def draw_flow(
    flow: Flow, image0: ImageLike | None = None, *, max_length: float | None = None, width: int = 1600
) -> ImageArray:
    """Draws flow in the standard colours, faded to grey where confidence is low, with a colour wheel.

    Args:
        flow: H × W vectors with confidence.
        image0: shown at the left if given, as `to_tensor` takes it.
        max_length: length in pixels of full saturation; None takes the 98th percentile of confident vectors.
        width: of the drawing, in pixels.

    Returns:
        (H', width, 3) uint8.
    """
    if max_length is None:
        max_length = _typical_length(flow)
    length = np.hypot(flow.flow_0to1[..., 0], flow.flow_0to1[..., 1])
    shortened = flow.flow_0to1 * np.minimum(1, max_length / np.maximum(length, 1e-6))[..., None]
    colours = flow_colours(shortened.astype(np.float32), max_length * 1.0001).astype(np.float32)
    confidence = np.nan_to_num(np.clip(flow.confidence, 0, 1))[..., None]
    image = np.round(confidence * colours + (1 - confidence) * 128).astype(np.uint8)
    if image0 is None:
        height = max(1, round(image.shape[0] * width / image.shape[1]))
        canvas = resize(image, (height, width))
    else:
        canvas = lay_out(image0, image, width).canvas
    side = 56
    square = np.stack(np.meshgrid(*[np.linspace(-1.0, 1.0, side, dtype=np.float32)] * 2), axis=-1)
    square[np.hypot(square[..., 0], square[..., 1]) > 1] = np.nan
    key = flow_colours(square, 1.0)
    key[np.isnan(square[..., 0])] = PAPER
    text = f"colour: direction of flow from image 0 to 1, saturated at {max_length:.3g} px; grey: uncertain"
    strip = add_caption(np.zeros((0, canvas.shape[1], 3), np.uint8), text, height=side + 8)
    strip[4 : 4 + side, -side - 12 : -12] = key
    return np.concatenate([canvas, strip])


def _typical_length(flow: Flow) -> float:
    length = np.hypot(flow.flow_0to1[..., 0], flow.flow_0to1[..., 1])
    confident = length[np.isfinite(length) & (flow.confidence >= 0.5)]
    chosen = confident if confident.size else length[np.isfinite(length)]
    return max(float(np.percentile(chosen, 98)), 1e-3) if chosen.size else 1.0
