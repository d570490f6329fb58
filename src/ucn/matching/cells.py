"""Feature maps to matches: nearest cell, sub-cell refinement, runner-up, forward-backward check.

For each query point of image 0 `match_points`

1. reads the descriptor there, by bilinear interpolation of the feature map;
2. finds the nearest cell of image 1 (`ucn.knn.search.nearest`), and the second best outside an exclusion
   radius around it; where both are about equally similar, neighbourhood consensus (`ucn.matching.consensus`)
   and the local affine prior (`ucn.matching.local_affine`) decide between all cells (`_find_guided`);
3. moves the match from that cell's centre to the sub-cell position whose interpolated descriptor is most
   similar (`ucn.matching.sub_cell`); where the local affine prior decides between cells, it counts here, too;
4. measures the second-best similarity, outside the exclusion radius around the match;
5. matches back to image 0, and measures the round-trip error: pixels between that match and the query.

All points are pixels of the encoded images; `ucn.matching.matcher` converts from and to the caller's pixels,
and refines further by comparing the pixels themselves (`ucn.matching.alignment`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ucn.geometry.coords import cell_centres, pixel_grid, pixels_to_cells, resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors, sample_image
from ucn.knn import ExclusionRadius, SearchCache, nearest
from ucn.knn.search import DEFAULT_MEMORY_BYTES
from ucn.matching.consensus import Consensus, measure_consensus, measure_cosines
from ucn.matching.local_affine import (
    LEAD,
    MAX_ANCHORS,
    MAX_REGIONS,
    MIN_MISSING,
    MIN_SPREAD,
    MIN_WEIGHT,
    MUTUAL_ERROR,
    ROUND_TRIP,
    Prior,
    fit_local_affine,
    lay_lattice,
)
from ucn.matching.sub_cell import NearestPoints, read_descriptors, refine
from ucn.runtime.kernels import use_fused
from ucn.runtime.threads import share
from ucn.types import FeatureMap

_GUIDED_CHUNK = 64  # queries of a thread, whose similarities to all cells stay in a core's cache
_GUIDED_THREADS = 8

# Chosen on validation data (docs/development/experiments.md, "Neighbourhood consensus").
CONSENSUS_WEIGHT = 0.5
"""Cosine similarity that full support adds to a query whose best two candidates are equally similar."""
CONSENSUS_GAP = 0.08
"""Lead of the best candidate over the second best at which that weight has fallen by a factor of e."""
CONSENSUS_RADIUS = 16.0
"""Pixels around the best candidate within which no other is the second best, for that lead."""


@dataclass(frozen=True)
class PointMatches:
    """Matches with the two quantities that tell good ones from bad ones.

    Attributes:
        points1: (N, 2) pixels of image 1; NaN where no cell was allowed.
        similarities: (N,) cosine similarity there, in [-1, 1].
        second_best: (N,) best similarity outside the exclusion radius; -1 where no cell lies outside it.
            It exceeds `similarities` where consensus decided against the most similar cell.
        round_trip_errors: (N,) pixels of image 0 between the query and the match back from `points1`;
            infinite where there is no match.
        support: (N,) consensus of the match with those around it, in [0, 1]; None without consensus.
        cosines: (2,) mean and standard deviation of all cosines within the emptier image, as
            `ucn.matching.consensus.measure_cosines`; None where not measured.
    """

    points1: Tensor
    similarities: Tensor
    second_best: Tensor
    round_trip_errors: Tensor
    support: Tensor | None = None
    cosines: Tensor | None = None


def match_points(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    *,
    second_best_radius: float,
    consensus: Consensus | None = None,
    is_allowed0: Tensor | None = None,
    is_allowed1: Tensor | None = None,
    use_refinement: bool = True,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> PointMatches:
    """Matches points of image 0 to image 1, with second-best similarities and round-trip errors.

    Args:
        map0: descriptors of image 0 (batch of 1).
        map1: descriptors of image 1 (batch of 1).
        points0: (N, 2) pixels of image 0.
        second_best_radius: pixels; only cells farther than this from a match can be its second best.
        consensus: of the two maps, to guide both searches; None compares descriptors alone.
        is_allowed0: (h * w,) bool, the cells of image 0 that the backward match may use; None allows all.
        is_allowed1: (h * w,) bool, the cells of image 1 that may match; None allows all.
        use_refinement: refine matches to sub-cell positions; cell centres otherwise.
        memory_bytes: budget of the temporaries.
    """
    target0, target1 = _select_cells(map0, is_allowed0), _select_cells(map1, is_allowed1)
    queries = _Queries.read(map0, points0, consensus)
    best = _find_cells(queries, target1, memory_bytes)
    forward = _place(queries, best, target1, use_refinement, memory_bytes)
    starts1 = forward.points.nan_to_num(0.0)
    second_best = best.second_best
    if second_best is None or second_best_radius != CONSENSUS_RADIUS:
        second_best = _find_second_best(queries, target1, starts1, second_best_radius, memory_bytes)

    def measure_errors(queries1: _Queries, best: _BestCells, ends: Tensor) -> Tensor:
        found = _place(queries1, best, target0, use_refinement, memory_bytes)
        found_errors: Tensor = (found.points - ends).norm(dim=-1)
        return found_errors

    queries1 = _Queries.read(map1, starts1, None)
    best0 = _find_cells(queries1, target0, memory_bytes)
    errors = measure_errors(queries1, best0, points0)
    if consensus is not None and len(target0.centres):
        is_open = errors > map0.stride  # guided only where descriptors alone are not cycle-consistent
        queries1 = replace(queries1, consensus=consensus.swap())
        if _can_guide(queries1, target0):
            guided = _find_guided(queries1, target0, best0, memory_bytes, is_open)
            errors = torch.where(is_open, measure_errors(queries1, guided, points0), errors)
        else:
            rows = is_open.nonzero()[:, 0]
            queries1, best0 = queries1.select(rows), best0.select(rows)
            guided = _find_guided(queries1, target0, best0, memory_bytes)
            errors[rows] = measure_errors(queries1, guided, points0[rows])
    round_trip_errors = errors + 0 * forward.points[:, 0]  # keeps NaN
    return PointMatches(
        forward.points,
        forward.similarities,
        second_best,
        round_trip_errors.nan_to_num(torch.inf),
        None if consensus is None else consensus.read_best(points0, forward.points),
        measure_cosines(map0, map1) if consensus is None else consensus.cosines,
    )


def match_forward(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    *,
    consensus: Consensus | None = None,
    is_allowed1: Tensor | None = None,
    use_refinement: bool = True,
) -> NearestPoints:
    """As `match_points`, but forward only: without second-best similarities and round-trip errors."""
    queries = _Queries.read(map0, points0, consensus)
    return _find_nearest(queries, _select_cells(map1, is_allowed1), use_refinement)


@dataclass(frozen=True)
class _Cells:
    """The cells of an image that may match.

    Attributes:
        map: all cells.
        is_allowed: (h * w,) bool; None allows all.
        descriptors: (M, D) of the allowed cells.
        centres: (M, 2) of the allowed cells, in pixels.
    """

    map: FeatureMap
    is_allowed: Tensor | None
    descriptors: Tensor
    centres: Tensor


def _select_cells(feature_map: FeatureMap, is_allowed: Tensor | None) -> _Cells:
    descriptors, centres = feature_map.features[0].flatten(1).t(), cell_centres(feature_map)
    if is_allowed is not None:
        descriptors, centres = descriptors[is_allowed], centres[is_allowed]
    return _Cells(feature_map, is_allowed, descriptors, centres)


@dataclass(frozen=True)
class _Queries:
    """What is searched for.

    Attributes:
        points: (N, 2) pixels of one image.
        descriptors: (N, D) there.
        consensus: guides the search in the other image; None compares descriptors alone.
    """

    points: Tensor
    descriptors: Tensor
    consensus: Consensus | None

    @classmethod
    def read(cls, feature_map: FeatureMap, points: Tensor, consensus: Consensus | None) -> _Queries:
        return cls(points, read_descriptors(feature_map, points), consensus)

    def select(self, rows: Tensor) -> _Queries:
        return _Queries(self.points[rows], self.descriptors[rows], self.consensus)


@dataclass(frozen=True)
class _BestCells:
    """The best cell of each query.

    Attributes:
        index: (N,) rows of the searched `_Cells`.
        similarities: (N,) cosine similarity.
        second_best: (N,) best similarity farther than `CONSENSUS_RADIUS` from the centre of that cell, which
            the guided search needs; None where it did not run.
        prior: of the guided search, which counts in sub-cell refinement, too; None where it did not run.
        cache: of the search for these cells.
    """

    index: Tensor
    similarities: Tensor
    second_best: Tensor | None = None
    prior: Prior | None = None
    cache: SearchCache | None = None

    def select(self, rows: Tensor) -> _BestCells:
        """Of some of the queries, what descriptors alone say."""
        return _BestCells(self.index[rows], self.similarities[rows])


def _find_nearest(
    queries: _Queries, target: _Cells, use_refinement: bool, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> NearestPoints:
    """The position of the best cell of each query, refined to a sub-cell position if requested."""
    return _place(queries, _find_cells(queries, target, memory_bytes), target, use_refinement, memory_bytes)


def _find_cells(queries: _Queries, target: _Cells, memory_bytes: int) -> _BestCells:
    """The most similar cell of each query, or the best one by similarity and consensus."""
    cache = None if queries.consensus is None else SearchCache()
    found = nearest(queries.descriptors, target.descriptors, memory_bytes=memory_bytes, cache=cache)
    best = _BestCells(found.indices[:, 0], to_cosine(found.distances[:, 0]), cache=cache)
    if queries.consensus is None or len(target.centres) == 0:
        return best
    return _find_guided(queries, target, best, memory_bytes)


def _find_second_best(
    queries: _Queries,
    target: _Cells,
    matches: Tensor,
    radius: float,
    memory_bytes: int,
    cache: SearchCache | None = None,
) -> Tensor:
    """Best similarity (N,) to the cells farther than `radius` pixels from the matches (N, 2)."""
    exclusion = ExclusionRadius(matches, target.centres, radius)
    sets = queries.descriptors, target.descriptors
    found = nearest(*sets, exclusion=exclusion, memory_bytes=memory_bytes, cache=cache)
    return to_cosine(found.distances[:, 0])


def _place(
    queries: _Queries, best: _BestCells, target: _Cells, use_refinement: bool, memory_bytes: int
) -> NearestPoints:
    """Centres of the best cells, or sub-cell positions in them if requested; NaN where there is no cell."""
    descriptors, index = queries.descriptors, best.index
    if len(target.centres) == 0:
        count = len(descriptors)
        return NearestPoints(
            descriptors.new_full((count, 2), torch.nan), descriptors.new_full((count,), -1.0)
        )
    if not use_refinement:
        return NearestPoints(target.centres[index], best.similarities)
    if target.is_allowed is not None:
        index = target.is_allowed.nonzero().flatten()[index]
    if best.prior is None:
        return refine(descriptors, target.map, index, target.is_allowed, memory_bytes)
    has_prior = best.prior.weights > MIN_WEIGHT
    if use_fused(descriptors):
        strong = replace(best.prior, weights=torch.where(has_prior, best.prior.weights, 0.0))
        return refine(descriptors, target.map, index, target.is_allowed, memory_bytes, strong)
    points, similarities = descriptors.new_empty(len(index), 2), descriptors.new_empty(len(index))
    for rows, prior in ((~has_prior, None), (has_prior, best.prior.select(has_prior))):
        found = refine(descriptors[rows], target.map, index[rows], target.is_allowed, memory_bytes, prior)
        points[rows], similarities[rows] = found.points, found.similarities
    return NearestPoints(points, similarities)


def _find_guided(
    queries: _Queries,
    target: _Cells,
    best: _BestCells,
    memory_bytes: int,
    is_wanted: Tensor | None = None,
) -> _BestCells:
    """Replaces the most similar cells by those with the largest sum of similarity, support and prior.

    The weights of support and prior fall with the lead of a query's best cell over the second best. Queries
    whose cell neither can change, and those that are not wanted, are not compared again.
    """
    consensus, centres, radius = queries.consensus, target.centres, CONSENSUS_RADIUS
    assert consensus is not None
    start = centres[best.index]
    second_best = _find_second_best(queries, target, start, radius, memory_bytes, best.cache)
    lead = best.similarities - second_best
    weights = CONSENSUS_WEIGHT * torch.exp(-lead / CONSENSUS_GAP)
    prior = Prior.read(None if consensus.priors is None else consensus.priors[0], queries.points, lead)
    missing = prior.weights - prior.rate(slice(None), start)
    support = consensus.read_pairs(queries.points, start)
    is_open = (lead < weights * (1 - support) + missing) | (missing > MIN_MISSING)
    is_open = is_open if is_wanted is None else is_open & is_wanted
    can_guide = _can_guide(queries, target)
    if can_guide:
        index, similarities = _compare_fused(queries, target, is_open, weights, prior, memory_bytes)
        index = torch.where(is_open, index, best.index)
    else:
        index, similarities = _compare_all(queries, target, best, is_open, weights, prior, memory_bytes)
    # Support hardly differs between neighbouring cells; among these, similarity and prior alone decide.
    gains = similarities + prior.rate(slice(None), centres[index])
    gains -= best.similarities + prior.rate(slice(None), start)
    is_near = (centres[index] - start).norm(dim=1) <= radius
    is_moved = is_open & (index != best.index) & (~is_near | (gains > 0))
    index = torch.where(is_moved, index, best.index)
    similarities = torch.where(is_moved, similarities, best.similarities)
    if can_guide:  # all, since their number is not known here
        second_best = _find_second_best(queries, target, centres[index], radius, memory_bytes)
    else:
        rows = is_moved.nonzero()[:, 0]
        moved = queries.select(rows)
        second_best[rows] = _find_second_best(moved, target, centres[index[rows]], radius, memory_bytes)
    return _BestCells(index, similarities, second_best, prior)


def _compare_all(
    queries: _Queries,
    target: _Cells,
    best: _BestCells,
    is_open: Tensor,
    weights: Tensor,
    prior: Prior,
    memory_bytes: int,
) -> tuple[Tensor, Tensor]:
    """The best cells (N,) of open queries by the sum of all three, and their similarities (N,).

    Args:
        queries: of one image, with consensus.
        target: the cells of the other image.
        best: what the others keep.
        is_open: (N,) bool, the queries to compare.
        weights: (N,) what full support adds to a similarity.
        prior: of the queries.
        memory_bytes: budget of the temporaries.
    """
    consensus = queries.consensus
    assert consensus is not None
    index, similarities = best.index.clone(), best.similarities.clone()

    def compare(part: Tensor) -> None:
        guidance = weights[part, None, None] * consensus.read_rows(queries.points[part])
        bonus = consensus.expand_rows(guidance, target.map.grid_hw)  # (n, h * w)
        prior.add(bonus, part, target.map)
        if target.is_allowed is not None:
            bonus = bonus[:, target.is_allowed]
        cosine = queries.descriptors[part].float() @ target.descriptors.t().float()  # (n, M)
        index[part] = bonus.add_(cosine).argmax(dim=1)
        similarities[part] = cosine.gather(1, index[part, None])[:, 0].clamp(-1, 1)

    is_cpu = target.centres.device.type == "cpu"
    limit = memory_bytes // (16 * len(target.centres))
    size = max(1, min(limit // _GUIDED_THREADS, _GUIDED_CHUNK) if is_cpu else limit)
    parts = is_open.nonzero()[:, 0].split(size)
    if is_cpu:
        share(compare, parts, most=_GUIDED_THREADS)
    else:
        for part in parts:
            compare(part)
    return index, similarities


def _can_guide(queries: _Queries, target: _Cells) -> bool:
    """Whether `_compare_fused` takes these queries and cells."""
    if target.is_allowed is not None or not use_fused(queries.descriptors, target.map.features):
        return False
    from ucn.matching.triton.guided import can_guide  # needs Triton

    return can_guide(queries.descriptors, target.map.features)


def _compare_fused(
    queries: _Queries, target: _Cells, is_open: Tensor, weights: Tensor, prior: Prior, memory_bytes: int
) -> tuple[Tensor, Tensor]:
    """As `_compare_all`, by CUDA kernels; of queries that are not open, any cell."""
    from ucn.matching.triton.guided import guide_fused  # needs Triton

    consensus = queries.consensus
    assert consensus is not None
    rows, shares = consensus.find_rows(queries.points)
    shares, support = weights[:, None] * shares, consensus.support.flatten(0, 1)
    step = max(1, memory_bytes // (8 * support[0].numel()))
    parts = [
        guide_fused(
            queries.descriptors[part],
            target.map.features[0],
            is_open[part],
            support,
            rows[part],
            shares[part],
            prior.places[part],
            prior.spread[part],
            prior.weights[part],
            cells_per_coarse=consensus.cells,
            stride=target.map.stride,
            offset=target.map.offset,
        )
        for part in (slice(start, start + step) for start in range(0, len(rows), step))
    ]
    return torch.cat([index for index, _ in parts]), torch.cat([similarities for _, similarities in parts])


@torch.no_grad()
def add_prior(
    map0: FeatureMap,
    map1: FeatureMap,
    consensus: Consensus,
    *,
    is_allowed0: Tensor | None = None,
    is_allowed1: Tensor | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Consensus:
    """Adds local affine priors to the consensus of a pair.

    Anchors, a regular set of points of image 0, are matched with the consensus alone; the maps of both
    directions are fitted to these matches. An anchor counts where its match is cycle-consistent and leads
    over the second best. Arguments are those of `match_points`.
    """
    lattice = lay_lattice(map0, MAX_ANCHORS)
    points0 = lattice.list_points(map0.features.device)
    if is_allowed0 is not None:
        cells = pixels_to_cells(points0, map0.stride, map0.offset).round().long()
        points0 = points0[is_allowed0[cells[:, 1] * map0.grid_hw[1] + cells[:, 0]]]
    found = match_points(
        map0,
        map1,
        points0,
        second_best_radius=CONSENSUS_RADIUS,
        consensus=replace(consensus, priors=None),
        is_allowed0=is_allowed0,
        is_allowed1=is_allowed1,
        memory_bytes=memory_bytes,
    )
    lead = found.similarities - found.second_best
    consistency = torch.exp(-0.5 * (found.round_trip_errors / ROUND_TRIP).square())
    points1 = found.points1.nan_to_num(0.0)
    there, back = (
        fit_local_affine(
            *points,
            consistency * torch.sigmoid(lead / LEAD),
            lay_lattice(own, MAX_REGIONS),
            anchor_step=lattice.step,
            min_spread=MIN_SPREAD * own.stride,
        )
        for own, points in ((map0, (points0, points1)), (map1, (points1, points0)))
    )
    mutual_share = (found.round_trip_errors <= MUTUAL_ERROR).float().sum() / max(1, len(points0))
    return replace(consensus, priors=(there, back), mutual_share=mutual_share)


def measure_guidance(
    map0: FeatureMap,
    map1: FeatureMap,
    *,
    is_allowed0: Tensor | None = None,
    is_allowed1: Tensor | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Consensus:
    """Consensus of a pair with its local affine priors; arguments are those of `measure_consensus`."""
    masks = {"is_allowed0": is_allowed0, "is_allowed1": is_allowed1}
    consensus = measure_consensus(map0, map1, **masks, memory_bytes=memory_bytes)
    return add_prior(map0, map1, consensus, **masks, memory_bytes=memory_bytes)


def to_cosine(distances: Tensor) -> Tensor:
    """Cosine similarity of unit vectors at a Euclidean distance; -1 at an infinite one."""
    return (1 - distances.square() / 2).clamp_min(-1)


def similarity_map(map0: FeatureMap, map1: FeatureMap, point0: Tensor) -> Tensor:
    """Cosine similarity (h, w) between a point (2,) of image 0, in pixels, and each cell of image 1."""
    descriptor = sample_descriptors(map0, point0[None, None])[0, 0]
    features1 = map1.features[0].to(descriptor.dtype)
    return torch.einsum("d,dhw->hw", descriptor, features1).clamp(-1, 1)


def interpolate_to_pixels(
    values: Tensor, weights: Tensor, feature_map: FeatureMap, image_hw: tuple[int, int]
) -> Tensor:
    """Interpolates values of cells to every pixel of the caller's image, weighted by confidence.

    Args:
        values: (h * w, C), one row per cell.
        weights: (h * w,), at least 0.
        feature_map: defines the cells.
        image_hw: (H, W) of the caller's image, of which `feature_map` encodes a resized copy.

    Returns:
        (H, W, C) weighted bilinear means.
    """
    h, w = feature_map.grid_hw
    layers = torch.cat([values, torch.ones_like(values[:, :1])], dim=1) * weights.clamp_min(1e-6)[:, None]
    grid = layers.t().reshape(1, -1, h, w)
    scale = resize_scale(image_hw, feature_map.image_hw)
    pixels = resize_points(pixel_grid(image_hw, values.device), scale)
    cells = pixels_to_cells(pixels, feature_map.stride, feature_map.offset)
    sums = sample_image(grid, cells[None], "border")[0]  # (C + 1, H, W)
    return (sums[:-1] / sums[-1:]).permute(1, 2, 0)
