"""Errors of the ground truth of a data set, measured from its images.

python benchmarks/ground_truth_errors.py NAME DIR [--split SPLIT] [--option KEY=VALUE] [--pairs 40] [--json]

Two metrics, for evenly spread pairs, by the frame distance of the two images:

- SIFT features are matched mutually and with Lowe's ratio test. A feature of image 0 near a ground-truth
  point is moved with it; its distance in image 1 to the matched feature, in pixels, is the error. Some
  matches are wrong, so medians are given: of all matches, and of the worst pair.
- The mean absolute difference of colours, in [0, 1], at ground-truth points, and at the same positions in
  both images.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import scipy.spatial
from command_line import make_parser
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.catalogue import open_data, parse_options
from ucn.data.checking import spread
from ucn.geometry.sampling import sample_image
from ucn.types import PairSample

RATIO = 0.8  # of the distances to the best and the second-best feature (Lowe 2004)
REACH = 1.0  # pixels from a feature of image 0 to the ground-truth point that moves it


@dataclass(frozen=True)
class PairMeasure:
    """Measurements of one pair.

    Attributes:
        distances: (M,) pixels, one per matched feature.
        matched: mean difference of colours at ground-truth points.
        unmoved: the same at equal positions in both images.
    """

    distances: NDArray[np.float64]
    matched: float
    unmoved: float


def main() -> None:
    arguments = _parse_arguments()
    data = open_data(arguments.name, arguments.folder, arguments.split, parse_options(arguments.option))
    groups: dict[str, list[PairMeasure]] = {}
    for index in spread(len(data), arguments.pairs):
        sample = data.read(index)
        if len(sample):
            groups.setdefault(find_gap(sample.name), []).append(measure(sample))
    rows = [summarise(gap, groups[gap]) for gap in sorted(groups, key=lambda gap: (len(gap), gap))]
    if len(rows) > 1:
        rows.append(summarise("all", [one for group in groups.values() for one in group]))
    if arguments.json:
        print(json.dumps(rows))
        return
    if not rows:
        print("no pair has a ground-truth point")
        return
    print("".join(f"{name.replace('_', ' '):>18}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value!s:>18}" for value in row.values()))


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("name", help="name of the data set, such as kitti-odometry")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", help="default: the set's first")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="option of the reader"
    )
    parser.add_argument("--pairs", type=int, default=40, help="largest number of pairs, evenly spread")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    return parser.parse_args()


def find_gap(name: str) -> str:
    """Frame distance of a pair, from a name such as 05/000600-000604."""
    found = re.search(r"(\d+)-(\d+)$", name)
    return str(int(found[2]) - int(found[1])) if found else "?"


def measure(sample: PairSample) -> PairMeasure:
    """Compares the ground truth of a pair with matched features and with colours."""
    features0, features1 = match_features(sample.image0, sample.image1)
    points0, points1 = sample.points0.double().numpy(), sample.points1.double().numpy()
    distance, nearest = scipy.spatial.cKDTree(points0).query(features0)
    rows = np.flatnonzero(distance <= REACH)
    moved = points1[nearest[rows]] + features0[rows] - points0[nearest[rows]]
    colours0 = _read(sample.image0, sample.points0)
    return PairMeasure(
        np.linalg.norm(moved - features1[rows], axis=1),
        float((colours0 - _read(sample.image1, sample.points1)).abs().mean()),
        float((colours0 - _read(sample.image1, sample.points0)).abs().mean()),
    )


def match_features(image0: Tensor, image1: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Matched SIFT features (M, 2) of two images."""
    # Without precise upscaling OpenCV's features are off by a quarter of a pixel.
    detector = cv2.SIFT.create(enable_precise_upscale=True)
    found = []
    for image in (image0, image1):
        grey = (image.mean(dim=0) * 255).round().byte().numpy()
        keypoints, descriptors = detector.detectAndCompute(grey, None)
        points = np.array([keypoint.pt for keypoint in keypoints], np.float64).reshape(-1, 2)
        found.append((points, descriptors))
    (points0, descriptors0), (points1, descriptors1) = found
    if min(len(points0), len(points1)) < 2:
        return np.zeros((0, 2)), np.zeros((0, 2))
    matcher = cv2.BFMatcher()
    backward = {(match.trainIdx, match.queryIdx) for match in matcher.match(descriptors1, descriptors0)}
    rows = [
        (best.queryIdx, best.trainIdx)
        for best, second in matcher.knnMatch(descriptors0, descriptors1, k=2)
        if best.distance < RATIO * second.distance and (best.queryIdx, best.trainIdx) in backward
    ]
    rows0, rows1 = np.array(rows, np.int64).reshape(-1, 2).T
    return points0[rows0], points1[rows1]


def summarise(gap: str, pairs: list[PairMeasure]) -> dict[str, Any]:
    """A row of the table."""
    distances = np.concatenate([pair.distances for pair in pairs])
    medians = [float(np.median(pair.distances)) for pair in pairs if len(pair.distances)]
    matched, unmoved = (float(np.mean([getattr(p, name) for p in pairs])) for name in ("matched", "unmoved"))
    return {
        "gap": gap,
        "pairs": len(pairs),
        "matches": len(distances),
        "median_px": round(float(np.median(distances)), 2) if len(distances) else None,
        "worst_median_px": round(max(medians), 2) if medians else None,
        "difference": round(matched, 4),
        "unmoved": round(unmoved, 4),
        "ratio": round(matched / unmoved, 3) if unmoved else None,
    }


def _read(image: Tensor, points: Tensor) -> Tensor:
    return sample_image(image[None], points[None, :, None], "border")[0, :, :, 0]


if __name__ == "__main__":
    main()
