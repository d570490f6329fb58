"""Local affine prior: where the matches around a point say that it should land, and how exactly.

A regular set of anchors of image 0 is matched first (`ucn.matching.cells.add_prior`). `fit_local_affine`
then fits one affine map to each region of the image by iteratively reweighted least squares: anchors count by
their confidence, by a Gaussian of their distance from the region, and by how well they agree with the map.
It goes from the whole image to the region; each stage is drawn towards the linear part of the one before.

A map comes with the spread of its residuals and with a trust in [0, 1], which vanishes where the anchors do
not agree. `Prior` is a Gaussian around the predicted place, added to the similarity of descriptors where
these alone do not decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.geometry.coords import cells_to_pixels
from ucn.runtime.kernels import use_fused
from ucn.types import FeatureMap

# All constants were chosen on validation data (docs/development/experiments.md, "Local affine prior").
PRIOR_WEIGHT = 1.0
"""Cosine similarity that a trusted prediction adds to a query whose best two candidates are alike."""
PRIOR_GAP = 0.08
"""Lead of the best candidate over the second best at which that weight has fallen by a factor of e."""
MAX_ANCHORS = 800
MAX_REGIONS = 400
RADIUS = 40.0
"""Standard deviation of the Gaussian weights of anchors around a region, in pixels; grows with their step."""
STAGES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (math.inf, (math.inf, 115.0, 69.0, 41.0, 40.0, 40.0)),
    (3.0, (96.0, 58.0, 40.0, 40.0)),
    (1.0, (48.0, 24.0, 20.0, 20.0)),
)
"""Of each stage the radius, as a multiple of `RADIUS`, and of each of its iterations the residual, in pixels,
at which the weight of an anchor has fallen to a quarter."""
RIDGE = 0.02
"""How much each stage is drawn towards the linear part of the one before, relative to its radius."""
FEW_ANCHORS = 4.0
"""Sum of weights of the anchors at which that doubles."""
MIN_WEIGHT = 0.02
"""Weight of a query below which its prior does not count in sub-cell refinement."""
MIN_MISSING = 0.01
"""What the prior must be able to add for a match to move between neighbouring cells."""
MIN_SPREAD = 1.25
"""Least standard deviation of a prediction, in feature cells."""
SPREAD_GAIN = 3.0
"""How much the variance of residuals adds to the variance of a prediction."""
MIN_SHARE = 0.1
"""Share of confident anchors that must agree with a map for any trust in it."""
HALF_TRUST = 0.1
"""Share of all anchors, confident or not, whose agreement gives half of the trust."""
ROUND_TRIP = 8.0
"""Standard deviation of the round-trip errors of confident anchors, in pixels."""
MUTUAL_ERROR = 3.0
"""Largest round-trip error of an anchor that counts as cycle-consistent, in pixels."""
LEAD = 0.04
"""Scale of the lead of an anchor over its second best, in its confidence."""
_WHOLE_IMAGE = 200.0  # radius of the first stage, in pixels, for its ridge


@dataclass(frozen=True)
class Lattice:
    """Regularly spaced points of an image.

    Attributes:
        first: (x, y) of the first one, in pixels.
        step: between neighbours, in pixels.
        grid_hw: rows and columns.
    """

    first: tuple[float, float]
    step: float
    grid_hw: tuple[int, int]

    def list_points(self, device: torch.device) -> Tensor:
        """All points (rows * columns, 2), row by row."""
        ys, xs = (torch.arange(count, device=device, dtype=torch.float32) for count in self.grid_hw)
        y, x = torch.meshgrid(ys * self.step + self.first[1], xs * self.step + self.first[0], indexing="ij")
        return torch.stack([x, y], dim=-1).reshape(-1, 2)

    def find_nearest(self, points: Tensor) -> Tensor:
        """Rows (N,) of the lattice points nearest to points (N, 2)."""
        rows, columns = self.grid_hw
        x, y = (
            ((points[:, axis] - first) / self.step).round().long() for axis, first in enumerate(self.first)
        )
        return y.clamp(0, rows - 1) * columns + x.clamp(0, columns - 1)


def lay_lattice(feature_map: FeatureMap, most: int) -> Lattice:
    """A lattice of at most about `most` points over an image, at least two feature cells apart."""
    h, w = feature_map.grid_hw
    step = 2
    while -(-h // step) * -(-w // step) > most:
        step += 1
    rows, columns = -(-h // step), -(-w // step)
    first = torch.tensor([(w - 1 - (columns - 1) * step) / 2, (h - 1 - (rows - 1) * step) / 2])
    x, y = cells_to_pixels(first, feature_map.stride, feature_map.offset).tolist()
    return Lattice((x, y), float(step * feature_map.stride), (rows, columns))


@dataclass(frozen=True)
class LocalAffine:
    """Affine maps from regions of an image to another image.

    Attributes:
        lattice: centres of the R regions.
        linear: (R, 2, 2) linear parts.
        places: (R, 2) where the centres land, in pixels.
        spread: (R,) standard deviation of predictions, in pixels.
        trust: (R,) in [0, 1].
    """

    lattice: Lattice
    linear: Tensor
    places: Tensor
    spread: Tensor
    trust: Tensor

    def predict(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where points (N, 2) should land (N, 2), with spread (N,) and trust (N,)."""
        rows = self.lattice.find_nearest(points)
        steps = points - self.lattice.list_points(points.device)[rows]
        places = self.places[rows] + (self.linear[rows] @ steps[:, :, None])[:, :, 0]
        return places, self.spread[rows], self.trust[rows]


@dataclass(frozen=True)
class Prior:
    """What the local affine prior adds to the similarity of N queries: a Gaussian around a place.

    Attributes:
        places: (N, 2) pixels of the searched image.
        spread: (N,) standard deviation, in pixels.
        weights: (N,) at the place itself.
    """

    places: Tensor
    spread: Tensor
    weights: Tensor

    @classmethod
    def read(cls, maps: LocalAffine | None, points: Tensor, lead: Tensor) -> Prior:
        """That of points (N, 2) whose best cell leads by `lead` (N,); without maps, nothing is added."""
        if maps is None:
            return cls(points, torch.ones_like(lead), torch.zeros_like(lead))
        places, spread, trust = maps.predict(points)
        return cls(places, spread, PRIOR_WEIGHT * trust * torch.exp(-lead / PRIOR_GAP))

    def select(self, rows: Tensor | slice) -> Prior:
        """That of some of the queries."""
        return Prior(self.places[rows], self.spread[rows], self.weights[rows])

    def rate(self, rows: Tensor | slice, points: Tensor) -> Tensor:
        """What it adds (n,) to queries `rows` at points (n, 2), one of each."""
        errors = (points - self.places[rows]).square().sum(dim=1)
        return self.weights[rows] * torch.exp(-errors / (2 * self.spread[rows].square()))

    def rate_grid(self, centres: Tensor, offsets: Tensor) -> Tensor:
        """What it adds (N, Q * Q), row by row, on grids with offsets (Q,) in pixels around centres (N, 2)."""
        errors = centres[:, :, None] + offsets - self.places[:, :, None]  # (N, 2, Q)
        along_x, along_y = torch.exp(-0.5 * (errors / self.spread[:, None, None]).square()).unbind(1)
        return (self.weights[:, None, None] * along_y[:, :, None] * along_x[:, None, :]).flatten(1)

    def add(self, bonus: Tensor, rows: Tensor, target: FeatureMap) -> None:
        """Adds to `bonus` (n, h * w) what queries `rows` get at all cells; in place."""
        h, w = target.grid_hw
        scale = -0.5 / self.spread[rows, None].square()
        along_x, along_y = (
            (scale * (self._centres(count, target) - self.places[rows, axis, None]).square()).exp_()
            for axis, count in ((0, w), (1, h))
        )
        along_y *= self.weights[rows, None]
        bonus.view(-1, h, w).addcmul_(along_y[:, :, None], along_x[:, None, :])

    def _centres(self, count: int, target: FeatureMap) -> Tensor:
        return torch.arange(count, device=self.places.device) * target.stride + target.offset


def fit_local_affine(
    points0: Tensor,
    points1: Tensor,
    confidences: Tensor,
    lattice: Lattice,
    *,
    anchor_step: float = 0.0,
    min_spread: float = 5.0,
) -> LocalAffine:
    """Fits the maps of all regions to matches of anchors.

    Args:
        points0: (A, 2) anchors in the image of the regions, in pixels.
        points1: (A, 2) their matches in the other image, finite.
        confidences: (A,) at least 0.
        lattice: centres of the regions.
        anchor_step: pixels between neighbouring anchors, where it is known.
        min_spread: the least spread, in pixels.
    """
    centres = lattice.list_points(points0.device)
    radius = max(RADIUS, 2.5 * anchor_step)
    if use_fused(points0, points1, confidences) and len(points0) > 0:
        from ucn.matching.triton.local_affine import can_fit, fit_regions_fused  # needs Triton

        if can_fit(points0, points1, confidences):
            found = fit_regions_fused(
                points0,
                points1,
                confidences,
                centres,
                steps=list_steps(radius),
                few_anchors=FEW_ANCHORS,
                min_share=MIN_SHARE,
                half_trust=HALF_TRUST,
                min_spread=min_spread,
                spread_gain=SPREAD_GAIN,
            )
            return LocalAffine(lattice, *found)
    middle0, middle1 = centres.mean(dim=0), points1.sum(dim=0) / max(1, len(points1))
    # Coordinates about the middle keep sums of squares exact in single precision.
    anchors = _Anchors(points0.float() - middle0, points1.float() - middle1)
    regions = centres - middle0
    linear = torch.eye(2, device=centres.device)[None]
    places = (middle0 - middle1)[None]
    count = len(centres)
    own, near, size = torch.zeros_like(regions[:1]), torch.ones_like(confidences)[None], _WHOLE_IMAGE
    for stage, (scale, limits) in enumerate(STAGES):
        if stage == 1:  # from one map to one of each region
            own, places, linear = regions, places + regions @ linear[0].t(), linear.expand(count, 2, 2)
        if stage > 0:
            size = scale * radius
            near = torch.exp(torch.cdist(regions, anchors.points0).square() / (-2 * size**2))
        weights = near * confidences.float()
        for limit in limits:
            agreeing = weights * anchors.rate_agreement(own, linear, places, limit)
            linear, places = anchors.fit(own, agreeing, linear, RIDGE * size**2)
    last = STAGES[-1][1][-1]
    agreeing = weights * anchors.rate_agreement(own, linear, places, last)
    total = agreeing.sum(dim=1)
    errors = (agreeing * anchors.square_errors(own, linear, places)).sum(dim=1) / total.clamp_min(1e-6)
    share = total / weights.sum(dim=1).clamp_min(1e-6)
    share_of_all = total / near.sum(dim=1).clamp_min(1e-6)
    trust = ((share - MIN_SHARE) / (1 - MIN_SHARE)).clamp(0, 1)
    trust = trust * share_of_all.square() / (share_of_all.square() + HALF_TRUST**2)
    # No extrapolation: the weight of the nearest anchor of a region that anchors cover is above 0.9.
    if len(points0):
        trust = trust * ((near.amax(dim=1) - 0.5) / 0.4).clamp(0, 1)
    spread = (min_spread**2 + SPREAD_GAIN * errors / 2).sqrt()  # errors of two axes
    return LocalAffine(lattice, linear, places + middle1, spread, trust)


def list_steps(radius: float) -> list[tuple[float, float, float]]:
    """Of each iteration the radius of anchors, the residual limit and the ridge, as `fit_local_affine`."""
    sizes = [math.inf if scale == math.inf else scale * radius for scale, _ in STAGES]
    return [
        (size, limit, RIDGE * (_WHOLE_IMAGE if size == math.inf else size) ** 2)
        for size, (_, limits) in zip(sizes, STAGES, strict=True)
        for limit in limits
    ]


class _Anchors:
    """Matches of A anchors, and weighted least squares over them for many regions at once."""

    def __init__(self, points0: Tensor, points1: Tensor) -> None:
        self.points0, self._points1 = points0, points1
        (x, y), (u, v) = points0.unbind(dim=1), points1.unbind(dim=1)
        one = torch.ones_like(x)
        self._basis = torch.stack([one, x, y])  # (3, A)
        # Everything whose weighted sums least squares needs: (A, 12).
        self._products = torch.stack(
            [one, x, y, u, v, x * x, x * y, y * y, u * x, u * y, v * x, v * y], dim=1
        )

    def square_errors(self, regions: Tensor, linear: Tensor, places: Tensor) -> Tensor:
        """Squared residuals (R, A) of the maps of regions (R, 2)."""
        shift = places - (linear @ regions[:, :, None])[:, :, 0]
        maps = torch.cat([shift[:, :, None], linear], dim=2)  # (R, 2, 3)
        errors = [(maps[:, axis] @ self._basis).sub_(self._points1[:, axis]).square_() for axis in (0, 1)]
        return errors[0].add_(errors[1])

    def rate_agreement(self, regions: Tensor, linear: Tensor, places: Tensor, limit: float) -> Tensor:
        """Weights (R, A) in [0, 1] of Geman and McClure: a quarter at a residual of `limit` pixels."""
        return self.square_errors(regions, linear, places).div_(limit**2).add_(1).pow_(-2)

    def fit(self, regions: Tensor, weights: Tensor, linear: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        """Linear parts and places of the best maps for weights (R, A), drawn towards given linear parts."""
        total = weights.sum(dim=1).clamp_min(1e-6)
        sums = (weights @ self._products) / total[:, None]
        mean0, mean1 = sums[:, 1:3], sums[:, 3:5]
        strength = ridge * (1 + FEW_ANCHORS / total)[:, None, None]
        within = sums[:, [5, 6, 6, 7]].view(-1, 2, 2) - mean0[:, :, None] * mean0[:, None]
        within = within + strength * torch.eye(2, device=within.device)
        across = sums[:, 8:12].view(-1, 2, 2) - mean1[:, :, None] * mean0[:, None] + strength * linear
        a, b, d = within[:, 0, 0], within[:, 0, 1], within[:, 1, 1]
        # The inverse in closed form: torch.linalg.inv would wait for the device.
        adjugate = torch.stack([d, -b, -b, a], dim=1).view(-1, 2, 2)
        found = across @ adjugate / (a * d - b * b)[:, None, None]
        return found, mean1 + (found @ (regions - mean0)[:, :, None])[:, :, 0]
