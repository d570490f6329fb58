"""The module that is exported to ONNX as the graph `pair`: two images to matches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ucn.config import Calibration, MatchConfig
from ucn.geometry.coords import cell_centres
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.cells import PointMatches
from ucn.matching.consensus import measure_cosines
from ucn.matching.keypoints import strongest_corners
from ucn.matching.scoring import score_matches
from ucn.matching.sub_cell import refine_sub_cell
from ucn.nn import CorrespondenceNetwork
from ucn.types import FeatureMap

_SETTINGS = MatchConfig()


class PairGraph(nn.Module):
    """Two images to the k strongest corners of image 0 and where they lie in image 1.

    It matches as `match_points` does, with the same sub-cell refinement and scores. It differs from `Matcher`
    in these ways: corners are detected by convolutions, there are always k rows, padded with a score of 0,
    and matches are neither moved by the shifts of the cells around a corner nor refined photometrically.
    """

    def __init__(self, network: CorrespondenceNetwork, calibration: Calibration, k: int) -> None:
        """Keeps the network.

        Args:
            network: in evaluation mode.
            calibration: how its similarities become probabilities.
            k: rows to return, at least 1.
        """
        super().__init__()
        self.network, self.calibration, self.k = network, calibration, k

    def forward(self, image0: Tensor, image1: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Matches two images (1, 3, H, W), RGB in [0, 1], of any two sizes.

        Returns:
            (k, 2) points0 and (k, 2) points1 in pixels, (k,) scores in [0, 1], strongest corners first, and
            (k,) bool is_mutual.
        """
        map0, map1 = self._encode(image0), self._encode(image1)
        corners, strengths = strongest_corners(image0, self.k)
        points0, is_corner = corners[0], strengths[0] > 0
        found = match_all_cells(map0, map1, points0)
        scores = torch.where(is_corner, score_matches(found, self.calibration), 0.0)
        is_mutual = is_corner & (found.round_trip_errors <= _SETTINGS.mutual_tolerance)
        return points0, found.points1, scores, is_mutual

    def _encode(self, image: Tensor) -> FeatureMap:
        size_hw = (image.shape[-2], image.shape[-1])
        return FeatureMap(self.network(image), self.network.stride, self.network.offset, size_hw)


def match_all_cells(map0: FeatureMap, map1: FeatureMap, points0: Tensor) -> PointMatches:
    """`match_points` by full similarity matrices: a graph cannot search in bounded memory.

    Args:
        map0: descriptors of image 0 (batch of 1).
        map1: descriptors of image 1 (batch of 1).
        points0: (N, 2) pixels of image 0.
    """
    descriptors0 = sample_descriptors(map0, points0[None])[0]
    similarity = descriptors0 @ map1.features[0].flatten(1)  # (N, h1 * w1)
    forward = refine_sub_cell(map0, map1, points0, similarity.argmax(dim=1))
    (x, y), (cell_x, cell_y) = forward.points.unbind(1), cell_centres(map1).unbind(1)
    squared_distance = (cell_x - x[:, None]).square() + (cell_y - y[:, None]).square()
    is_close = squared_distance <= _SETTINGS.second_best_radius**2
    second_best = similarity.masked_fill(is_close, -1.0).amax(dim=1)
    descriptors1 = sample_descriptors(map1, forward.points[None])[0]
    cells0 = (descriptors1 @ map0.features[0].flatten(1)).argmax(dim=1)
    backward = refine_sub_cell(map1, map0, forward.points, cells0)
    round_trip_errors = (backward.points - points0).norm(dim=-1)
    return PointMatches(
        forward.points,
        forward.similarities,
        second_best.clamp(-1, 1),
        round_trip_errors,
        cosines=measure_cosines(map0, map1),
    )
