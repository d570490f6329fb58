"""A whole pair without any wait for the GPU, and so as one CUDA graph for sizes that recur.

`match_keypoints` does what `Matcher.match_features` does for the keypoints of two images as they are: with
masks in place of selections, so that all sizes are known beforehand, and with one copy to the CPU at the end.
It assumes that the pair needs no other views; the votes that tell so are part of the result, and where they
say otherwise, the result is thrown away. The functions it calls are those of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import Calibration, MatchConfig
from ucn.matching.alignment import (
    MAX_TESTED,
    AlignedPatches,
    align_patches,
    check_return,
    estimate_local_affine,
)
from ucn.matching.cells import PointMatches, add_prior, match_points
from ucn.matching.consensus import Consensus, choose_cells, measure_consensus
from ucn.matching.cuda.corners import detect_corners_on_device
from ucn.matching.scoring import (
    PAIR_SCORE_CORNERS,
    measure_neighbour_consistency,
    measure_uniformity,
    measure_visibility,
    score_matches,
    weigh_pair,
)
from ucn.matching.sub_cell import interpolate_shift
from ucn.matching.views import count_votes, is_plain_pair, read_similarity, to_caller, to_encoded
from ucn.runtime.graphs import RecurringGraphs
from ucn.types import Features, Matches, ViewChange

MAX_KEYPOINTS = 4096
_STEP = 1024  # the number of keypoints is padded to a multiple, so that few graphs serve all images
_HEADER = 6 + 5
_MAX_CELLS = 2**16  # larger maps keep a GPU busy without a graph, which would take much memory


def pad_keypoints(keypoints: Tensor) -> tuple[Tensor, Tensor]:
    """Keypoints (N, 2) with zeros up to a multiple of a fixed number, and which of them are real."""
    missing = -len(keypoints) % _STEP
    is_real = torch.arange(len(keypoints) + missing, device=keypoints.device) < len(keypoints)
    return F.pad(keypoints, (0, 0, 0, missing)), is_real


def can_match(features0: Features, features1: Features) -> bool:
    """Whether `match_keypoints` takes these features."""
    maps = [features.map.features for features in (features0, features1)]
    return (
        0 < len(features0.keypoints) <= MAX_KEYPOINTS
        and all(each.dtype == torch.float32 and each[0, 0].numel() <= _MAX_CELLS for each in maps)
        and all(each.view is None and each.grey is not None for each in (features0, features1))
    )


@torch.no_grad()
def match_keypoints(
    features0: Features,
    features1: Features,
    is_keypoint: Tensor,
    config: MatchConfig,
    calibration: Calibration,
    *,
    tests_surface: bool = False,
) -> Tensor:
    """Matches the keypoints of image 0; `read_matches` reads the result.

    Args:
        features0: of image 0, with N keypoints.
        features1: of image 1, as given.
        is_keypoint: (N,) bool, which keypoints are real.
        config: how images are matched.
        calibration: of the network.
        tests_surface: test also whether both images show the same surface, which decides about levels.

    Returns:
        One vector: whether all descriptors are finite and the test was passed, the numbers of matches and of
        keypoints, three sums of the pair score, the votes of `count_votes`, and for each of N rows, matches
        first and best first, both points in the caller's pixels, score and whether it is mutual.
    """
    maps = [features.map.features for features in (features0, features1)]
    is_valid = maps[0].isfinite().all() & maps[1].isfinite().all()
    features0, features1 = (  # or kernels might read beyond the cells
        replace(each, map=replace(each.map, features=each.map.features.nan_to_num(0.0).clamp(-2, 2)))
        for each in (features0, features1)
    )
    votes = torch.zeros(5, device=is_keypoint.device)
    consensus = None
    if config.consensus:
        maps01, memory = (features0.map, features1.map), config.memory_bytes
        consensus = measure_consensus(*maps01, memory_bytes=memory)
        votes = count_votes(consensus)
        consensus = add_prior(*maps01, consensus, memory_bytes=memory)
    pair = _Pair(features0, features1, consensus, config, calibration)
    if tests_surface:
        assert features0.grey is not None
        corners, count = detect_corners_on_device(features0.grey, PAIR_SCORE_CORNERS)
        is_corner = torch.arange(len(corners), device=corners.device) < count
        found = pair.match(to_caller(corners, features0), is_corner)
        is_valid = is_valid & pair.align(found.points0, found.points1, found.is_kept)[1]
    found = pair.match(features0.keypoints, is_keypoint)
    points1 = found.points1
    if config.use_alignment and config.use_refinement:
        aligned, is_same = pair.align(found.points0, points1, found.is_kept)
        is_moved = aligned.is_aligned & is_same
        points1 = to_caller(aligned.points1, features1).where(is_moved[:, None], points1)
    numbers = [is_valid, found.is_kept.sum(), is_keypoint.sum(), *found.sums]
    rows = torch.cat([found.points0, points1, found.scores[:, None], found.is_mutual[:, None]], dim=1)
    return torch.cat([torch.stack([each.float() for each in numbers]), votes, rows.flatten()])


@dataclass(frozen=True)
class _Sorted:
    """Matches of N points: those that are kept first, the best of them first.

    Attributes:
        points0: (N, 2) in the caller's pixels, like `points1`.
        points1: (N, 2); NaN where the match is not kept.
        scores: (N,).
        is_mutual: (N,) bool.
        is_kept: (N,) bool.
        sums: the sums that `pair_features` divides, of weights, of weighted similarities, and of uniformity.
    """

    points0: Tensor
    points1: Tensor
    scores: Tensor
    is_mutual: Tensor
    is_kept: Tensor
    sums: tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class _Pair:
    """Two images as they are, with consensus and local affine prior, and how they are matched."""

    features0: Features
    features1: Features
    consensus: Consensus | None
    config: MatchConfig
    calibration: Calibration

    def match(self, points0: Tensor, is_point: Tensor) -> _Sorted:
        """As `Matcher._match_points`, `_score` and `_filter`, for points (N, 2) in the caller's pixels."""
        features0, features1, config = self.features0, self.features1, self.config
        encoded0 = to_encoded(points0, features0)
        found = match_points(
            features0.map,
            features1.map,
            encoded0,
            second_best_radius=config.second_best_radius,
            consensus=self.consensus,
            use_refinement=config.use_refinement,
            memory_bytes=config.memory_bytes,
        )
        if config.use_refinement:
            points1 = interpolate_shift(features0.map, features1.map, encoded0, found.points1)
            found = replace(found, points1=points1)
        scores = score_matches(found, self.calibration)
        for features, points in ((features0, encoded0), (features1, found.points1)):
            assert features.grey is not None
            scores = scores * measure_visibility(features.grey / 255, points)
        is_mutual = found.round_trip_errors <= config.mutual_tolerance
        is_kept = is_point & _passes(config, found, scores, is_mutual)
        order = scores.neg().where(is_kept, torch.inf).sort(stable=True).indices
        points1 = to_caller(found.points1, features1).where(is_kept[:, None], torch.nan)
        sums = _sum_pair(scores, is_mutual & is_point, encoded0, found, is_point)
        return _Sorted(points0[order], points1[order], scores[order], is_mutual[order], is_kept[order], sums)

    def align(self, points0: Tensor, points1: Tensor, is_kept: Tensor) -> tuple[AlignedPatches, Tensor]:
        """As `refine_photometric`: aligned patches of sorted matches, and whether they may be used."""
        features0, features1 = self.features0, self.features1
        assert features0.grey is not None and features1.grey is not None
        greys, max_shift = (features0.grey / 255, features1.grey / 255), features1.map.stride
        encoded0, encoded1 = to_encoded(points0, features0), to_encoded(points1, features1)
        linear = estimate_local_affine(encoded0, encoded0, encoded1.nan_to_num(0.0), is_kept)
        found = align_patches(*greys, encoded0, encoded1, linear, max_shift=max_shift)
        first = AlignedPatches(
            found.points1[:MAX_TESTED], found.is_aligned[:MAX_TESTED], found.correlations[:MAX_TESTED]
        )
        is_same = check_return(*greys, encoded0[:MAX_TESTED], linear[:MAX_TESTED], first, max_shift)
        return found, is_same


def _passes(config: MatchConfig, found: PointMatches, scores: Tensor, is_mutual: Tensor) -> Tensor:
    """Which matches (N,) pass the score threshold, the cycle check and the ratio test."""
    keep = found.points1.isfinite().all(dim=1) & (scores >= config.min_score)
    if config.use_mutual:
        keep = keep & is_mutual
    if config.ratio < 1:
        best, second_best = (
            torch.sqrt((2 - 2 * s).clamp_min(0)) for s in (found.similarities, found.second_best)
        )
        keep = keep & (best <= config.ratio * second_best)
    return keep


def _sum_pair(
    scores: Tensor, is_kept: Tensor, encoded0: Tensor, found: PointMatches, is_keypoint: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums that `pair_features` divides: of weights, of weighted similarities, and of uniformity."""
    points1 = found.points1.nan_to_num(0.0)
    weights = scores * measure_neighbour_consistency(encoded0, points1, is_kept)
    weights = weights.where(is_kept, 0.0)
    chance = measure_uniformity(found).where(is_keypoint, 0.0)
    return weights.sum(), (weights * found.similarities).sum(), chance.sum()


def read_matches(
    values: Tensor, features0: Features, features1: Features, config: MatchConfig, calibration: Calibration
) -> Matches | None:
    """The matches in a result of `match_keypoints`; None where the reference must match the pair.

    That is where other views or levels may be better, and where descriptors are not finite, which it reports.
    """
    numbers = values.numpy()
    is_valid, count, queries, total, similar, chance, *votes = numbers[:_HEADER].tolist()
    if not is_valid:
        return None
    change = None
    if config.consensus and config.use_views:
        found = read_similarity(_describe_consensus(features0, features1, config), votes)
        if not is_plain_pair(found, features0, features1):
            return None
        change = ViewChange(found.scale, found.degrees)
    inputs = total / queries, similar / total if total > 0 else 0.0, chance / queries
    rows = numbers[_HEADER:].reshape(-1, 6)[: int(count)]
    return Matches(
        points0=np.ascontiguousarray(rows[:, :2]),
        points1=np.ascontiguousarray(rows[:, 2:4]),
        scores=np.ascontiguousarray(rows[:, 4]),
        is_mutual=rows[:, 5] > 0,
        pair_score=weigh_pair(inputs, calibration),
        image0_hw=features0.image_hw,
        image1_hw=features1.image_hw,
        view_change=change,
    )


def _describe_consensus(features0: Features, features1: Features, config: MatchConfig) -> Consensus:
    """The consensus of a pair without its values."""
    map0, map1 = features0.map, features1.map
    cells = choose_cells(map0, map1, config.memory_bytes)
    shape = [-(-side // cells) for side in (*map0.grid_hw, *map1.grid_hw)]
    return Consensus(torch.empty(shape, device="meta"), cells, map0.stride, map0.offset)


def match_by_graphs(
    graphs: RecurringGraphs,
    features0: Features,
    features1: Features,
    config: MatchConfig,
    calibration: Calibration,
    *,
    has_levels: bool = False,
) -> Matches | None:
    """The matches of the keypoints of image 0; None where the reference must match the pair.

    Args:
        graphs: of pairs of sizes that recur.
        features0: of image 0, on the device.
        features1: of image 1, on the device.
        config: how images are matched.
        calibration: of the network.
        has_levels: all levels of descriptors may match the pair, unless it shows one surface.
    """
    if not can_match(features0, features1):
        return None
    assert features0.grey is not None and features1.grey is not None
    has_images = features0.image is not None and features1.image is not None
    tests_surface = has_levels and has_images and config.consensus

    def run(
        map0: Tensor, map1: Tensor, grey0: Tensor, grey1: Tensor, points0: Tensor, is_point: Tensor
    ) -> Tensor:
        own0 = replace(features0, map=replace(features0.map, features=map0), grey=grey0, keypoints=points0)
        own1 = replace(features1, map=replace(features1.map, features=map1), grey=grey1)
        return match_keypoints(own0, own1, is_point, config, calibration, tests_surface=tests_surface)

    maps = features0.map.features, features1.map.features
    inputs = (*maps, features0.grey, features1.grey, *pad_keypoints(features0.keypoints))
    key = "match", config, features0.image_hw, features1.image_hw, features0.map.stride, tests_surface
    values = graphs.run(key, run, inputs, Tensor.cpu)  # the only wait for the GPU
    return read_matches(values, features0, features1, config, calibration)
