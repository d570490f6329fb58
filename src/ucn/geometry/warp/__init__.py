"""Ground truth by geometry: points warped by a homography, a flow, a disparity, or a depth and a pose."""

from ucn.geometry.warp.depth import (
    ZBuffer,
    is_hidden,
    is_seen_through,
    is_smooth,
    is_visible,
    nearest_depths,
    project,
    sample_depth,
    unproject,
    warp_points_by_depth,
)
from ucn.geometry.warp.flow import (
    flow_from_disparity,
    is_disparity_consistent,
    is_flow_consistent,
    is_nearest_by_disparity,
    targets_of_flow,
    warp_points_by_flow,
)
from ucn.geometry.warp.homography import homography_from_corners, homography_from_points, warp_points
from ucn.geometry.warp.spline import ThinPlateSpline, control_grid

__all__ = [
    "ThinPlateSpline",
    "ZBuffer",
    "control_grid",
    "flow_from_disparity",
    "homography_from_corners",
    "homography_from_points",
    "is_disparity_consistent",
    "is_flow_consistent",
    "is_hidden",
    "is_nearest_by_disparity",
    "is_seen_through",
    "is_smooth",
    "is_visible",
    "nearest_depths",
    "project",
    "sample_depth",
    "targets_of_flow",
    "unproject",
    "warp_points",
    "warp_points_by_depth",
    "warp_points_by_flow",
]
