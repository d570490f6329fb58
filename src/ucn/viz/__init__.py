"""Pictures as arrays: matches, points, flow and data, drawn as uint8 (H, W, 3) RGB.

`ucn.data.io.write_image` writes a picture to a file.
"""

from ucn.viz.colours import Picture, flow_colours
from ucn.viz.flow import draw_flow
from ucn.viz.matches import MAX_NUMBERED_POINTS, draw_matches, draw_points, draw_samples

__all__ = [
    "MAX_NUMBERED_POINTS",
    "Picture",
    "draw_flow",
    "draw_matches",
    "draw_points",
    "draw_samples",
    "flow_colours",
]
