"""A panorama of several images: matched in pairs, connected by homographies, refined jointly, and blended."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ucn.data.io import to_pixels
from ucn.errors import DataError
from ucn.geometry.homography import MIN_INLIERS, estimate_homography
from ucn.geometry.joint_homography import (
    Link,
    chain_homographies,
    find_connected,
    measure_links,
    refine_jointly,
)
from ucn.matching.mosaic import MAX_SIDE, Report, blend_images, plan_canvas
from ucn.types import BoolArray, Features, ImageLike, Matches

Array = NDArray[np.float64]

MAX_MEGAPIXELS = 50.0
"""Default of the largest canvas; blending takes about 25 bytes of memory per pixel."""
THRESHOLD = 3.0
"""Largest transfer error of an inlier, in pixels of the size at which images are matched."""

_LARGEST_MEGAPIXELS = MAX_SIDE**2 / 1e6
_SHOWN_PAIRS = 5
# Fewer inliers among the matches of a pair are due to chance (Brown and Lowe 2007, Sec. 3.2): matches of
# different scenes agree in small regions, too.
_FEWEST, _SHARE = 8.0, 0.3


class ImageMatcher(Protocol):
    """The part of `Matcher` that stitching needs."""

    def extract(self, image: ImageLike) -> Features:
        """Encodes an image."""

    def match_features(self, features0: Features, features1: Features) -> Matches:
        """Matches the keypoints of image 0 in image 1."""


@dataclass(frozen=True)
class StitchedPair:
    """Two images that were matched.

    Attributes:
        image0: index of one image.
        image1: index of the other.
        pair_score: probability that they show the same scene.
        matches: number of matches.
        inliers: number of inliers of their homography; 0 where there is none.
        failure: why there is none; empty where the images are connected.
    """

    image0: int
    image1: int
    pair_score: float
    matches: int
    inliers: int
    failure: str


@dataclass(frozen=True)
class Panorama:
    """Images stitched on a canvas.

    Attributes:
        canvas: (H, W, 3) uint8, black where no image is.
        is_covered: (H, W) bool, where an image is.
        homographies: (N, 3, 3), from pixels of each image to pixels of the canvas; NaN for images that are
            left out.
        reference: index of the image in whose frame the canvas lies.
        scale: pixels of the canvas per pixel of the reference; below 1 where the canvas would be too large.
        gains: (N,) factors by which the brightness of the images was changed; NaN for images left out.
        median_error: of the inliers of all connected pairs, in pixels of the images.
        pairs: all pairs of images.
    """

    canvas: NDArray[np.uint8]
    is_covered: BoolArray
    homographies: Array
    reference: int
    scale: float
    gains: Array
    median_error: float
    pairs: tuple[StitchedPair, ...]

    @property
    def left_out(self) -> tuple[int, ...]:
        """Indices of the images that are not connected to the others."""
        return tuple(np.flatnonzero(np.isnan(self.homographies[:, 0, 0])).tolist())

    def best_pair(self, image: int) -> StitchedPair:
        """The pair of an image with most inliers, or with the best score where it has none."""
        pairs = [pair for pair in self.pairs if image in (pair.image0, pair.image1)]
        return max(pairs, key=lambda pair: (pair.inliers, pair.pair_score))


def stitch(
    matcher: ImageMatcher,
    images: Sequence[ImageLike],
    *,
    threshold: float = THRESHOLD,
    min_inliers: int = MIN_INLIERS,
    max_megapixels: float = MAX_MEGAPIXELS,
    use_gains: bool = True,
    seed: int = 0,
    progress: Report | None = None,
) -> Panorama:
    """Stitches images that overlap into one picture.

    Homographies connect views of a plane, and views of a camera that only rotates. The images may come in any
    order, which does not change the result. Each is encoded once, and all pairs are matched. The canvas lies
    in the frame of the most central image. Images that no homography connects to the others are left out.

    Args:
        matcher: such as `Matcher`.
        images: at least two, each as `Matcher.extract` takes it; files are read three times, so that only
            one is in memory.
        threshold: largest transfer error of an inlier, in pixels of the size at which images are matched.
        min_inliers: fewest inliers of a homography, at least 4.
        max_megapixels: the canvas is reduced where it would have more million pixels.
        use_gains: adjust the brightness of the images to each other.
        seed: of RANSAC.
        progress: called after each piece of work.

    Raises:
        ImageReadError: an image cannot be read or is too small.
        DataError: no two images are connected, or a plane cannot show all of them.
        ValueError: fewer than two images, or a number is out of range.
    """
    if len(images) < 2:
        raise ValueError(f"images must be at least two, got {len(images)}")
    if not 0 < max_megapixels <= _LARGEST_MEGAPIXELS:
        raise ValueError(
            f"max_megapixels must be above 0 and at most {_LARGEST_MEGAPIXELS:g}, got {max_megapixels}"
        )
    report = progress or (lambda _what, _done, _all: None)
    names = [
        str(image) if isinstance(image, (str, Path)) else f"image {row}" for row, image in enumerate(images)
    ]
    order, features = _encode(matcher, images, report)
    estimate = _Estimator(matcher, threshold, min_inliers, seed)
    pairs, links = estimate.connect(features, report)
    pairs = [replace(pair, image0=order[pair.image0], image1=order[pair.image1]) for pair in pairs]
    members = find_connected(len(order), links)
    if len(members) < 2:
        raise DataError(_explain_failure(pairs, names))
    reference, chained = chain_homographies(len(order), links)
    found = refine_jointly(chained, links, reference)
    used = [link for link in links if link.image0 in members]
    chosen = [order[row] for row in members]
    sizes_hw = [features[row].image_hw for row in members]
    canvas = plan_canvas(found[members], sizes_hw, [names[index] for index in chosen], 1e6 * max_megapixels)
    pixels, is_covered, gains = blend_images(
        lambda row: to_pixels(images[chosen[row]]), canvas, sizes_hw, use_gains=use_gains, progress=report
    )
    homographies, all_gains = np.full((len(images), 3, 3), np.nan), np.full(len(images), np.nan)
    homographies[chosen] = canvas.homographies / canvas.homographies[:, 2:, 2:]
    all_gains[chosen] = gains
    error = float(np.median(measure_links(found, used)))
    return Panorama(
        pixels, is_covered, homographies, order[reference], canvas.scale, all_gains, error, tuple(pairs)
    )


def _encode(
    matcher: ImageMatcher, images: Sequence[ImageLike], report: Report
) -> tuple[list[int], list[Features]]:
    """Indices of the images in an order that only their content determines, and features in that order."""
    encoded = []
    for index, image in enumerate(images):
        digest = hashlib.sha256(to_pixels(image).tobytes()).hexdigest()
        encoded.append((digest, index, matcher.extract(image)))
        report("encoding", index + 1, len(images))
    encoded.sort(key=lambda item: item[:2])
    return [index for _, index, _ in encoded], [features for _, _, features in encoded]


@dataclass(frozen=True)
class _Estimator:
    """How homographies of pairs are estimated."""

    matcher: ImageMatcher
    threshold: float
    min_inliers: int
    seed: int

    def connect(self, features: Sequence[Features], report: Report) -> tuple[list[StitchedPair], list[Link]]:
        """Matches all pairs; returns all of them, and the links of those that a homography connects."""
        pairs, links = [], []
        rows = list(combinations(range(len(features)), 2))
        for done, (first, second) in enumerate(rows, 1):
            pair, link = self._link(features, first, second)
            pairs.append(pair)
            if link is not None:
                links.append(link)
            report("matching", done, len(rows))
        return pairs, links

    def _link(
        self, features: Sequence[Features], first: int, second: int
    ) -> tuple[StitchedPair, Link | None]:
        matches = self.matcher.match_features(features[first], features[second])
        reduction = max(features[second].image_hw) / max(features[second].resized_hw)
        found = estimate_homography(
            matches.points0,
            matches.points1,
            threshold=self.threshold * max(1.0, reduction),
            min_inliers=self.min_inliers,
            seed=self.seed,
        )
        failure = found.failure or _find_doubt(found.inlier_count, len(matches))
        count = 0 if found.failure else found.inlier_count
        pair = StitchedPair(first, second, float(matches.pair_score), len(matches), count, failure)
        if found.H_0to1 is None or failure:
            return pair, None
        points0, points1 = (
            points[found.is_inlier].astype(np.float64) for points in (matches.points0, matches.points1)
        )
        return pair, Link(first, second, points0, points1, found.H_0to1)


def _find_doubt(inliers: int, matches: int) -> str:
    """Why a homography may be due to chance; empty where it is not."""
    needed = ceil(_FEWEST + _SHARE * matches)
    return "" if inliers >= needed else f"{inliers} of {matches} matches agree; at least {needed} are needed"


def _explain_failure(pairs: Sequence[StitchedPair], names: Sequence[str]) -> str:
    best = sorted(pairs, key=lambda pair: -pair.pair_score)[:_SHOWN_PAIRS]
    shown = "; ".join(
        f"{names[pair.image0]} and {names[pair.image1]}: pair score {pair.pair_score:.2f}, {pair.failure}"
        for pair in best
    )
    more = f"; and {len(pairs) - len(best)} more pairs" if len(pairs) > len(best) else ""
    return (
        f"no homography connects any two images ({shown}{more}); give images of one plane, or from one "
        "place, that overlap by a quarter or more"
    )
