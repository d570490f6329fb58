"""Optimising matchers: from dense features of any kind of two images to an answer for any point."""

from ucn.paper.deep_matching import DeepMatching
from ucn.paper.deep_pixels import DeepPixels
from ucn.paper.dsp import SpatialPyramid
from ucn.paper.pair_matcher import Alignment, CellFlow, NearestNeighbours, PairMatcher
from ucn.paper.pixel_sift import PixelSift
from ucn.paper.sift_flow import SiftFlow

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
