"""Optimising matchers: from dense features of any kind of two images to an answer for any point."""

from ucn.baselines.flow.deep_matching import DeepMatching
from ucn.baselines.flow.deep_pixels import DeepPixels
from ucn.baselines.flow.matcher import Alignment, CellFlow, NearestNeighbours, PairMatcher
from ucn.baselines.flow.pixel_sift import PixelSift
from ucn.baselines.flow.sift_flow import SiftFlow
from ucn.baselines.flow.spatial_pyramid import SpatialPyramid

__all__ = [
    "Alignment",
    "CellFlow",
    "DeepMatching",
    "DeepPixels",
    "NearestNeighbours",
    "PairMatcher",
    "PixelSift",
    "SiftFlow",
    "SpatialPyramid",
]
