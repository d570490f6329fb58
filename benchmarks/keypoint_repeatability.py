"""Repeatability of the keypoints of `ucn extract`, on RGB-D frames with ground truth.

python benchmarks/keypoint_repeatability.py DIR [--every N] [--keypoints N] [--weights NAME]

DIR holds training RGB-D frames in the layout of 7-Scenes. Depth and camera poses give the positions of the
strongest keypoints of a frame in the other one. Repeatability is the share of keypoints visible in both with
a keypoint of the other frame within 3 pixels of that position, averaged over all pairs of every N-th frame
with at least 50 such keypoints. (The ground truth has a median error of 1.7 pixels.) Random points are the
chance level; a grid, which ignores the image, can do no better. With --json, one JSON object.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from command_line import make_parser
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from ucn.data.io import read_image
from ucn.data.sets.posed.seven_scenes import SevenScenes, open_folder
from ucn.folders.detectors import DETECTORS, detect_keypoints
from ucn.paper.registry import METHODS
from ucn.types import PairSample

Array = NDArray[np.float64]
_WITHIN = 3.0  # pixels from the ground truth
_KNOWN = 1.0  # pixels from a point with ground truth
_MIN_COUNT = 50
_RANDOM = "random points"


def choose_pairs(data: SevenScenes, every: int) -> list[int]:
    paths = [data.image_paths(row) for row in range(len(data))]
    kept = set(sorted({path for pair in paths for path in pair})[::every])
    return [row for row, pair in enumerate(paths) if kept.issuperset(pair)]


def find_keypoints(path: Path, extractor: Any, count: int, seed: int) -> dict[str, Array]:
    """Keypoints (N, 2) of an image, by detector."""
    image = read_image(path)
    features = extractor.extract(image).map
    found = {
        name: detect_keypoints(name, image, features, count).points.astype(np.float64)
        for name in DETECTORS
        if name != "grid"
    }
    size = np.array([image.shape[2], image.shape[1]])
    return {**found, _RANDOM: np.random.default_rng(seed).uniform(-0.5, size - 0.5, (count, 2))}


def count_repeated(sample: PairSample, points0: Array, points1: Array) -> tuple[int, int]:
    """Number of repeated keypoints of frame 0, and of those with ground truth."""
    away, nearest = cKDTree(sample.points0.numpy()).query(points0)
    positions = sample.points1.numpy()[nearest[away <= _KNOWN]]
    if not len(positions) or not len(points1):
        return 0, len(positions)
    return int((cKDTree(points1).query(positions)[0] <= _WITHIN).sum()), len(positions)


def measure(data: SevenScenes, every: int, count: int, weights: str) -> dict[str, Any]:
    rows = choose_pairs(data, every)
    extractor = METHODS.find_features(weights).load("cpu").extractor
    paths = sorted({path for row in rows for path in data.image_paths(row)})
    found = {path: find_keypoints(path, extractor, count, seed) for seed, path in enumerate(paths)}
    shares: dict[str, list[float]] = {}
    for row in rows:
        sample, (path0, path1) = data.read(row), data.image_paths(row)
        for name in found[path0]:
            repeated, counted = count_repeated(sample, found[path0][name], found[path1][name])
            if counted >= _MIN_COUNT:
                shares.setdefault(name, []).append(repeated / counted)
    return {
        "frames": len(paths),
        "pairs": len(rows),
        "keypoints": count,
        "repeatability": {name: float(np.mean(values)) for name, values in shares.items()},
        "pairs_counted": {name: len(values) for name, values in shares.items()},
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--keypoints", type=int, default=1000)
    parser.add_argument("--weights", default="geometric")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data = open_folder(options.data, "all", max_gap=1_000_000)
    results = measure(data, options.every, options.keypoints, options.weights)
    if options.json:
        print(json.dumps(results, indent=1))
        return
    print(f"{results['frames']} frames, {results['pairs']} pairs, {results['keypoints']:,} keypoints\n")
    print("| keypoints | repeatability, % | pairs |")
    print("|---|---|---|")
    for name, share in results["repeatability"].items():
        print(f"| {name} | {100 * share:.1f} | {results['pairs_counted'][name]} |")


if __name__ == "__main__":
    main()
