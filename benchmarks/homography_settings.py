"""Homographies of synthetic planar pairs: which matches and which estimator are most accurate.

UCN_DATA=DIR python benchmarks/homography_settings.py [--pairs 90] [--lightglue aliked-lightglue] [--json]
UCN_DATA=DIR python benchmarks/homography_settings.py --deviations --pairs 40 --lightglue aliked-lightglue

The pairs are crops of photographs (multi-view scenes, then single photographs), none of a test set. Half of
them show the plane through a homography (rotation to 30°, scale to 1.65, perspective), half unmoved or
nearly so in other light. Blur, colours, noise and JPEG compression differ in all of them. `geometric` matches
1,000 or 4,096 corners as `ucn.Matcher` does, with photometric refinement and without, also 1,000 corners at
least 5 px apart, and 1,000 corners of both images by consensus; LightGlue matches 1,000 keypoints of its
detector.

With --deviations two of three pairs show the plane through a lens with radial distortion (up to 1.2 % at the
corners) and with a smooth relief of 0.1 to 1.2 px; ground truth is the least-squares homography of a grid.

Printed is the area under the curve of corner errors up to 1, 3 and 5 px, and the median error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import poselib
import torch
from command_line import make_parser
from numpy.typing import NDArray

import ucn
from ucn.config import MatchConfig
from ucn.data.augment.illumination import change_illumination
from ucn.data.augment.photometric import change_photometrically
from ucn.errors import UcnError
from ucn.evaluate.core.metrics import area_under_error_curve, corner_error
from ucn.features.lightglue import LIGHTGLUE, find_lightglue
from ucn.geometry.homography import estimate_homography
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.consensus import measure_consensus
from ucn.matching.guided import match_guided
from ucn.matching.keypoints import detect_corners

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]
Matched = tuple[Array, Array]
"""Points (N, 2) of both images."""

LIMITS = (1.0, 3.0, 5.0)
KEYPOINTS = 1000
_SEED = 7
_SCENE_IMAGES, _SCENE_PAIRS, _PHOTOGRAPHS = 3, 70, 20
_DEVIATION_SEED = 11
_RELIEF_HW = (5, 6)  # random heights, between which the relief is smooth
_SIZE = 0.75  # of a view, as a share of the photograph
_FINE = 2  # views are rendered at twice their size


@dataclass(frozen=True)
class Pair:
    """Two views of a plane, (H, W, 3) uint8, and the homography from view 0 to view 1."""

    image0: Pixels
    image1: Pixels
    H_0to1: Array
    group: str


def make_pairs(folder: Path, count: int) -> Iterator[Pair]:
    """The first pairs of a fixed sequence of 90."""
    rng = np.random.default_rng(_SEED)
    sources: list[Path] = []
    for scene in sorted(path for path in (folder / "multiview").iterdir() if (path / "images").is_dir()):
        files = sorted((scene / "images").glob("*.webp"))
        sources += [files[i] for i in rng.choice(len(files), min(_SCENE_IMAGES, len(files)), replace=False)]
    sources = [sources[i] for i in rng.permutation(len(sources))[:_SCENE_PAIRS]]
    photographs = sorted((folder / "photos").glob("*.jpg"))
    sources += [photographs[i] for i in rng.choice(len(photographs), _PHOTOGRAPHS, replace=False)]
    for number, path in enumerate(sources[:count]):
        yield make_pair(to_rgb(cv2.imread(str(path))), number, rng)


def to_rgb(image: object) -> Pixels:
    """What OpenCV read, as uint8 RGB."""
    pixels = np.asarray(image, np.uint8)
    if pixels.ndim != 3:
        raise UcnError("a photograph cannot be read; check the folder that UCN_DATA names")
    return pixels[:, :, ::-1].copy()


def make_pair(source: Pixels, number: int, rng: np.random.Generator) -> Pair:
    """Two views of a photograph; every second pair hardly moves, but the light changes."""
    size = np.array([source.shape[1], source.shape[0]])
    width, height = (int(side * _SIZE) for side in size)
    zoom = rng.uniform(0.95, 1.1)
    left, top = size / 2 + rng.uniform(-0.04, 0.04, 2) * size - zoom * np.array([width, height]) / 2
    to_source = np.array([[zoom, 0, left], [0, zoom, top], [0, 0, 1]])
    if number % 2:
        to_view0 = np.eye(3)
        if rng.uniform() < 0.3:
            to_view0[:2, 2] = rng.uniform(-1.5, 1.5, 2)
        light, change = rng.uniform(0.5, 1.2), rng.uniform(0.3, 1)
    else:
        to_view0 = sample_homography(np.array([width, height], np.float64), rng)
        light, change = rng.uniform(0, 0.3), rng.uniform(0.2, 1)
    views = np.stack([render(source, to_source @ move, (width, height)) for move in (np.eye(3), to_view0)])
    image0, image1 = change_views(views, light, change, number, rng)
    H_0to1 = np.asarray(np.linalg.inv(to_view0), np.float64)
    return Pair(image0, image1, H_0to1, "illumination" if number % 2 else "viewpoint")


def change_views(
    views: Pixels, light: float, change: float, number: int, rng: np.random.Generator
) -> tuple[Pixels, Pixels]:
    """Two views (2, H, W, 3) in other light, with other colours, noise and compression."""
    pixels = torch.from_numpy(views).permute(0, 3, 1, 2).float() / 255
    generator = torch.Generator().manual_seed(number)
    pixels[1:] = change_illumination(pixels[1:], light, generator)
    changed = [
        change_photometrically(part[None], strength, generator)[0]
        for part, strength in ((pixels[:1], 0.3), (pixels[1:], change))
    ]
    noisy = torch.cat(changed)
    noisy = noisy + torch.randn(noisy.shape, generator=generator) * rng.uniform(0.005, 0.02)
    images = (noisy.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    image0, image1 = (compress(image, int(rng.integers(80, 96))) for image in images)
    return image0, image1


def make_deviating_pairs(folder: Path, count: int) -> Iterator[Pair]:
    """The first pairs of a fixed sequence of 96, of multi-view scenes, with lens distortion and relief."""
    rng = np.random.default_rng(_DEVIATION_SEED)
    sources: list[Path] = []
    for scene in sorted(path for path in (folder / "multiview").iterdir() if (path / "images").is_dir()):
        files = sorted((scene / "images").glob("*.webp"))
        sources += [files[i] for i in rng.choice(len(files), min(_SCENE_IMAGES, len(files)), replace=False)]
    sources = [sources[i] for i in rng.permutation(len(sources))]
    for number, path in enumerate(sources[:count]):
        yield make_deviating_pair(to_rgb(cv2.imread(str(path))), number, rng)


def make_deviating_pair(source: Pixels, number: int, rng: np.random.Generator) -> Pair:
    """Two views of a photograph that deviate from a homography; every third is unmoved in other light."""
    size = np.array([source.shape[1], source.shape[0]])
    width, height = (int(side * _SIZE) for side in size)
    view = np.array([width, height], np.float64)
    zoom = rng.uniform(0.95, 1.1)
    left, top = size / 2 + rng.uniform(-0.04, 0.04, 2) * size - zoom * view / 2
    to_source = np.array([[zoom, 0, left], [0, zoom, top], [0, 0, 1]])
    if number % 3 == 2:
        to_view0, amount, bend = np.eye(3), 0.0, 0.0
        if rng.uniform() < 0.3:
            to_view0[:2, 2] = rng.uniform(-1.5, 1.5, 2)
        light, change = rng.uniform(0.5, 1.2), rng.uniform(0.3, 1)
    else:
        to_view0 = sample_homography(view, rng)
        light, change = rng.uniform(0, 0.3), rng.uniform(0.2, 1)
        amount, bend = rng.uniform(0.1, 1.2), rng.uniform(-0.012, 0.012)
    heights = rng.standard_normal(_RELIEF_HW).astype(np.float32)
    relief = cv2.resize(heights, (width, height), interpolation=cv2.INTER_CUBIC)
    relief = np.asarray(relief * (amount / max(float(np.abs(relief).max()), 1e-6)), np.float32)
    direction = rng.standard_normal(2)
    direction /= np.linalg.norm(direction)

    def undistort(points: Array) -> Array:
        offsets = points - view / 2
        radii = ((offsets / np.linalg.norm(view / 2)) ** 2).sum(axis=-1, keepdims=True)
        return np.asarray(points + offsets * bend * radii, np.float64)

    def distort(points: Array) -> Array:
        found = points.copy()
        for _ in range(20):
            found = points - (undistort(found) - found)
        return found

    def to_plane(points1: Array) -> Array:
        places = move(undistort(points1), to_view0)
        x, y = places.astype(np.float32).transpose(2, 0, 1)
        shifts = cv2.remap(relief, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        return np.asarray(places + shifts[..., None] * direction, np.float64)

    fine = make_grid(width, height, 1 / _FINE)
    places = [move(plane, to_source).astype(np.float32) for plane in (undistort(fine), to_plane(fine))]
    renders = [
        cv2.remap(source, own[..., 0], own[..., 1], cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
        for own in places
    ]
    views = np.stack([cv2.resize(own, (width, height), interpolation=cv2.INTER_AREA) for own in renders])
    grid1 = make_grid(width, height, 4.0)
    points1, points0 = (own.reshape(-1, 2) for own in (grid1, distort(to_plane(grid1))))
    is_seen = ((points0 >= -0.5) & (points0 <= view - 0.5)).all(axis=1)
    H_0to1, _ = cv2.findHomography(points0[is_seen], points1[is_seen], 0)
    image0, image1 = change_views(np.asarray(views, np.uint8), light, change, number, rng)
    group = "illumination" if number % 3 == 2 else "viewpoint"
    return Pair(image0, image1, np.asarray(H_0to1, np.float64), group)


def make_grid(width: int, height: int, step: float) -> Array:
    """Points (h, w, 2) every `step` pixels."""
    x, y = (np.arange((step - 1) / 2, side - 0.5, step) for side in (width, height))
    return np.stack(np.meshgrid(x, y), axis=-1)


def move(points: Array, H: Array) -> Array:
    """Points (..., 2) moved by a homography."""
    moved = points @ H[:, :2].T + H[:, 2]
    return np.asarray(moved[..., :2] / moved[..., 2:], np.float64)


def sample_homography(size: Array, rng: np.random.Generator) -> Array:
    """A random homography from view 1 to view 0."""
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * size
    angle, scale = np.deg2rad(rng.uniform(-30, 30)), np.exp(rng.uniform(-0.5, 0.5))
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = (corners - size / 2) @ turn.T + size / 2 + rng.uniform(-0.12, 0.12, 2) * size
    moved += rng.uniform(-0.18, 0.18, (4, 2)) * size * scale
    return cv2.getPerspectiveTransform(corners.astype(np.float32), moved.astype(np.float32)).astype(
        np.float64
    )


def render(source: Pixels, to_source: Array, size: tuple[int, int]) -> Pixels:
    """A view of (width, height), anti-aliased."""
    shift = (1 / _FINE - 1) / 2
    from_fine = np.array([[1 / _FINE, 0, shift], [0, 1 / _FINE, shift], [0, 0, 1]])
    fine = cv2.warpPerspective(
        source,
        np.linalg.inv(to_source @ from_fine),
        (size[0] * _FINE, size[1] * _FINE),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REFLECT,
    )
    return np.asarray(cv2.resize(fine, size, interpolation=cv2.INTER_AREA), np.uint8)


def compress(image: Pixels, quality: int) -> Pixels:
    """An image after JPEG compression."""
    _, data = cv2.imencode(".jpg", image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return to_rgb(cv2.imdecode(data, cv2.IMREAD_COLOR))


def match_network(matcher: ucn.Matcher, pair: Pair) -> Iterator[tuple[str, Matched]]:
    """The matches of a network, several ways."""
    features0, features1 = matcher.extract(pair.image0), matcher.extract(pair.image1)
    pixels = torch.from_numpy(pair.image0).permute(2, 0, 1).float() / 255
    apart = detect_corners(pixels, KEYPOINTS, min_distance=5.0).points
    chosen = {f"{count:,} corners": features0.keypoints[:count] for count in (KEYPOINTS, 4096)}
    for kind, keypoints in {**chosen, f"{KEYPOINTS:,} corners 5 px apart": apart}.items():
        some = replace(features0, keypoints=keypoints)
        for is_refined in (True, False):
            config = MatchConfig(max_side=None, use_alignment=is_refined)
            found = matcher.with_config(config).match_features(some, features1)
            name = f"{kind}, {'refined' if is_refined else 'not refined'}"
            yield name, (found.points0.astype(np.float64), found.points1.astype(np.float64))
    points = [features.keypoints[:KEYPOINTS] for features in (features0, features1)]
    descriptors = [
        sample_descriptors(features.map, own[None])[0]
        for features, own in zip((features0, features1), points, strict=True)
    ]
    consensus = measure_consensus(features0.map, features1.map)
    nearest = match_guided(descriptors[0], descriptors[1], points[0], points[1], consensus).numpy()
    rows = np.flatnonzero(nearest >= 0)
    both = points[0].double().numpy()[rows], points[1].double().numpy()[nearest[rows]]
    yield f"{KEYPOINTS:,} corners of both images", both


def opencv(kind: int) -> Callable[[Array, Array], Array | None]:
    """An estimator of OpenCV's."""

    def estimate(points0: Array, points1: Array) -> Array | None:
        cv2.setRNGSeed(0)
        if len(points0) < 4:
            return None
        found, _ = cv2.findHomography(points0, points1, kind, 3.0, maxIters=5000, confidence=0.9999)
        return None if found is None else np.asarray(found, np.float64)

    return estimate


def use_poselib(points0: Array, points1: Array) -> Array | None:
    """LO-RANSAC of poselib alone."""
    options = {"max_reproj_error": 3.0, "seed": 0, "max_iterations": 10_000, "success_prob": 0.9999}
    return poselib.estimate_homography(points0, points1, options, {})[0] if len(points0) >= 4 else None


ESTIMATORS: dict[str, Callable[[Array, Array], Array | None]] = {
    "OpenCV RANSAC": opencv(cv2.RANSAC),
    "OpenCV MAGSAC++": opencv(cv2.USAC_MAGSAC),
    "poselib": use_poselib,
    "ucn": lambda points0, points1: estimate_homography(points0, points1, min_inliers=4).H_0to1,
}


def main() -> None:
    """Matches all pairs, and prints a row for each group, kind of matches and estimator."""
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=_SCENE_PAIRS + _PHOTOGRAPHS)
    parser.add_argument("--weights", nargs="*", default=["geometric"])
    parser.add_argument("--lightglue", nargs="*", default=[], choices=[*LIGHTGLUE])
    parser.add_argument("--deviations", action="store_true", help="planes with lens distortion and relief")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    networks = {name: ucn.Matcher.from_pretrained(name) for name in options.weights}
    learned = {name: find_lightglue(name).load() for name in options.lightglue}
    errors: dict[tuple[str, str, str], list[float]] = {}
    make = make_deviating_pairs if options.deviations else make_pairs
    for pair in make(Path(os.environ["UCN_DATA"]), options.pairs):
        found: dict[str, Matched] = {}
        for name, matcher in networks.items():
            found |= {f"{name}, {kind}": own for kind, own in match_network(matcher, pair)}
        for name, method in learned.items():
            both = [method.extract(image).select(slice(KEYPOINTS)) for image in (pair.image0, pair.image1)]
            matches = method.match(*both)
            found[name] = matches.points0.double().numpy(), matches.points1.double().numpy()
        for name, matched in found.items():
            for estimator, estimate in ESTIMATORS.items():
                error = corner_error(estimate(*matched), pair.H_0to1, pair.image0.shape[:2])
                errors.setdefault((pair.group, name, estimator), []).append(error)
    rows = [
        {
            "group": group,
            "matches": name,
            "estimator": estimator,
            "pairs": len(own),
            "auc": [round(100 * area, 1) for area in area_under_error_curve(own, LIMITS).tolist()],
            "median": round(float(np.median(own)), 3),
        }
        for (group, name, estimator), own in sorted(errors.items(), reverse=True)
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(" | ".join(str(value) for value in row.values()))


if __name__ == "__main__":
    main()
