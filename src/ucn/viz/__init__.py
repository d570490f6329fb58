"""Drawings of matches, points, flow and data as uint8 arrays (H, W, 3) in RGB.

`ucn.data.io.write_image` writes them to a file.
"""

from ucn.viz.colours import ImageArray, flow_colours
from ucn.viz.flow import draw_flow
from ucn.viz.matches import MAX_NUMBERED_POINTS, draw_matches, draw_points, draw_samples

__all__ = [
    "MAX_NUMBERED_POINTS",
    "ImageArray",
    "draw_flow",
    "draw_matches",
    "draw_points",
    "draw_samples",
    "flow_colours",
]
