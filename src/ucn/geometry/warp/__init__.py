"""Truth by geometry: where points go through a homography, a flow, a disparity, or a depth and a pose."""

from ucn.geometry.warp.homography import homography_from_corners, homography_from_points, warp_points

__all__ = ["homography_from_corners", "homography_from_points", "warp_points"]
