"""How often the keypoints of `ucn extract` are found again in another frame, where the truth is known.

python benchmarks/keypoint_repeatability.py DIR [--every N] [--keypoints N] [--weights NAME]

DIR holds RGB-D frames in the layout of 7-Scenes, which are not for tests. Of the strongest keypoints of a
frame, those count whose true place in the other frame is known, by depth and camera poses, and seen there;
the figure is the share of them that has a keypoint of the other frame within 3 pixels of that place, on
average over all pairs of every N-th frame with at least 50 that count. (That truth itself errs by 1.7 pixels
in the median.) Points drawn at random say what chance gives; a grid, which does not look at the image, can do
no better. With --json, one JSON object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from ucn.data.io import read_image
from ucn.data.sets.posed.seven_scenes import SevenScenes, open_folder
from ucn.evaluate.reconstruction.methods import load_folder_method
from ucn.folders.detectors import DETECTORS, detect
from ucn.types import PairSample

Array = NDArray[np.float64]
_WITHIN = 3.0  # pixels from the true place
_KNOWN = 1.0  # pixels from a point whose place in the other frame is known
_MIN_COUNT = 50
_RANDOM = "points at random"


def choose_pairs(data: SevenScenes, every: int) -> list[int]:
    paths = [data.image_paths(row) for row in range(len(data))]
    kept = set(sorted({path for pair in paths for path in pair})[::every])
    return [row for row, pair in enumerate(paths) if kept.issuperset(pair)]


def find_keypoints(path: Path, extractor: Any, count: int, seed: int) -> dict[str, Array]:
    """Keypoints (N, 2) of an image by detector."""
    image = read_image(path)
    features = extractor.extract(image).map
    found = {
        name: detect(name, image, features, count).points.astype(np.float64)
        for name in DETECTORS
        if name != "grid"
    }
    size = np.array([image.shape[2], image.shape[1]])
    return {**found, _RANDOM: np.random.default_rng(seed).uniform(-0.5, size - 0.5, (count, 2))}


def count_repeated(sample: PairSample, points0: Array, points1: Array) -> tuple[int, int]:
    """How many keypoints of frame 0 have one of frame 1 at their place, and how many count."""
    away, nearest = cKDTree(sample.points0.numpy()).query(points0)
    places = sample.points1.numpy()[nearest[away <= _KNOWN]]
    if not len(places) or not len(points1):
        return 0, len(places)
    return int((cKDTree(points1).query(places)[0] <= _WITHIN).sum()), len(places)


def measure(data: SevenScenes, every: int, count: int, weights: str) -> dict[str, Any]:
    rows = choose_pairs(data, every)
    extractor = load_folder_method(weights).method.make("cpu")
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--keypoints", type=int, default=1000)
    parser.add_argument("--weights", default="geometric")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data = open_folder(options.data, "all", max_gap=1_000_000)
    figures = measure(data, options.every, options.keypoints, options.weights)
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    print(f"{figures['frames']} frames, {figures['pairs']} pairs, {figures['keypoints']:,} keypoints\n")
    print("| keypoints | found again, % | pairs that count |")
    print("|---|---|---|")
    for name, share in figures["repeatability"].items():
        print(f"| {name} | {100 * share:.1f} | {figures['pairs_counted'][name]} |")


if __name__ == "__main__":
    main()
