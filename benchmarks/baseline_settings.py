"""Settings of the baselines, chosen on pairs that no benchmark contains, and run time of the optimising ones.

python benchmarks/baseline_settings.py DATA [--only sift-flow geometric+sift-flow dsp surf] [--json]
python benchmarks/baseline_settings.py --time [--json]

DATA holds the folders of training data. Weights of the optimising methods are tried on seven pairs of
``kitti_odometry`` (frames 600 to 639, one and three frames apart) and ``rgbd_7scenes`` (8 and 20 frames
apart); the output is PCK@10 in percent, as the mean over pairs and for each pair. Scales of SURF are tried on
24 synthetic pairs of ``photos`` (320 × 320, rotated by up to 30°, scaled by up to 1.5), with PCK@5. The
second form prints the seconds of each method for a pair of 640 × 480.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ucn.config import SyntheticConfig
from ucn.data.bundled import SelfPairs, find_self_images
from ucn.data.catalogue import open_data
from ucn.data.checking import spread
from ucn.data.sets.synthetic import Synthetic
from ucn.evaluate.points.predictions import find_points, sample_points
from ucn.features.extractor import Extractor
from ucn.features.pair_matcher import NearestNeighbours, PairMatcher, align_features
from ucn.features.surf import DenseSurf
from ucn.paper.dsp import SpatialPyramid
from ucn.paper.registry import METHODS
from ucn.paper.sift_flow import SiftFlow
from ucn.types import Features, PairSample

Tried = list[tuple[str, Extractor, PairMatcher]]
POINTS = 1000  # queries per pair


def main() -> None:
    arguments = _parse_arguments()
    if arguments.time:
        result: dict[str, Any] = {name: measure_seconds(name) for name in METHODS.systems}
    else:
        result = {name: TRIALS[name](arguments.data) for name in arguments.only}
    if arguments.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    for name, values in result.items():
        print(name)
        for label, value in values.items():
            print(f"  {label}: {value}")


def try_sift_flow(folder: Path) -> dict[str, Any]:
    extractor = METHODS.systems["sift-flow"]().published_extractor
    tried: Tried = [(f"α = {weight:g}", extractor, SiftFlow(weight)) for weight in (2.0, 1.0, 0.7, 0.5)]
    tried.append(("nearest neighbours", extractor, NearestNeighbours()))
    return try_settings(tried, read_scenes(folder), 10.0)


def try_flow_of_others(folder: Path) -> dict[str, Any]:
    """SIFT Flow on features of stride 4, and their nearest neighbours."""
    (method,) = METHODS.load_dense(["geometric"]).methods
    tried: Tried = [
        (f"α = {weight:g}", method.extractor, SiftFlow(weight)) for weight in (0.7, 0.4, 0.2, 0.1)
    ]
    tried.append(("nearest neighbours", method.extractor, NearestNeighbours()))
    return try_settings(tried, read_scenes(folder), 10.0)


def try_dsp(folder: Path) -> dict[str, Any]:
    extractor = METHODS.systems["dsp"]().published_extractor
    tried: Tried = [
        (f"α = {weight:g}", extractor, SpatialPyramid(weight)) for weight in (4.0, 8.0, 16.0, 32.0)
    ]
    tried.append(("nearest neighbours", extractor, NearestNeighbours()))
    return try_settings(tried, read_scenes(folder), 10.0)


def try_surf(folder: Path) -> dict[str, Any]:
    tried: Tried = [(f"scale {scale}", DenseSurf(scale), NearestNeighbours()) for scale in range(2, 7)]
    return try_settings(tried, read_photos(folder), 5.0)


TRIALS = {
    "sift-flow": try_sift_flow,
    "geometric+sift-flow": try_flow_of_others,
    "dsp": try_dsp,
    "surf": try_surf,
}


def read_scenes(folder: Path) -> Iterator[PairSample]:
    """The pairs for choosing weights."""
    kitti, scenes = folder / "kitti_odometry", folder / "rgbd_7scenes"
    for name, path, gap, shares in (
        ("kitti-odometry", kitti, 1, (0.1, 0.5, 0.9)),
        ("kitti-odometry", kitti, 3, (0.5,)),
        ("seven-scenes", scenes, 8, (0.1, 0.9)),
        ("seven-scenes", scenes, 20, (0.5,)),
    ):
        frames = {"frames": "600-639"} if name == "kitti-odometry" else {}
        data = open_data(name, path, "train", {"min_gap": gap, "max_gap": gap, **frames})
        for share in shares:
            sample = data.read(int(share * len(data)))
            yield sample.select(sample_points(len(sample), POINTS, 0, sample.name))


def read_photos(folder: Path) -> Iterator[PairSample]:
    """The synthetic pairs for choosing scales."""
    config = SyntheticConfig(side=320, points=500, upright_share=1.0, upright_degrees=30.0, max_scale=1.5)
    data = Synthetic(folder / "photos", "homography", config, seed=0)
    return (data.read(index) for index in spread(len(data), 24))


@torch.no_grad()
def try_settings(tried: Tried, samples: Iterator[PairSample], limit: float) -> dict[str, Any]:
    """PCK in percent for each setting: the mean over pairs, and for each pair."""
    shares: dict[str, list[float]] = {label: [] for label, *_ in tried}
    for sample in samples:
        height, width = sample.image1.shape[-2:]
        extracted: dict[int, list[Features]] = {}
        for label, extractor, matcher in tried:
            if id(extractor) not in extracted:
                extracted[id(extractor)] = [extractor.extract(i) for i in (sample.image0, sample.image1)]
            features0, features1 = extracted[id(extractor)]
            align = partial(align_features, matcher)
            found = find_points(features0, features1, sample.points0, (0, 0, width, height), True, align)
            errors = (found - sample.points1).norm(dim=-1)
            shares[label].append(round(100 * float((errors <= limit).float().mean()), 1))
    return {label: {"mean": round(sum(row) / len(row), 1), "pairs": row} for label, row in shares.items()}


@torch.no_grad()
def measure_seconds(name: str) -> dict[str, float]:
    """Seconds for a pair of 640 × 480 with 2,000 points, by stage, in total, and of CPU time."""
    (method,) = METHODS.load_dense([name]).methods
    sample = SelfPairs(find_self_images()).read(1)  # the bundled left view, rotated by 15 degrees
    sample = sample.select(sample_points(len(sample), 2000, 0, sample.name))
    before, moments = time.process_time(), [time.perf_counter()]
    map0, map1 = (method.extractor.extract(image).map for image in (sample.image0, sample.image1))
    moments.append(time.perf_counter())
    alignment = method.matcher.align(map0, map1)
    moments.append(time.perf_counter())
    alignment.find(sample.points0, use_refinement=True)
    moments.append(time.perf_counter())
    steps = [after - begin for begin, after in pairwise(moments)]
    names = ("extraction", "alignment", "lookup", "total", "CPU time")
    seconds = (*steps, moments[-1] - moments[0], time.process_time() - before)
    return {name: round(value, 2) for name, value in zip(names, seconds, strict=True)}


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("data", type=Path, nargs="?", help="folder of the training data")
    parser.add_argument("--only", nargs="+", choices=list(TRIALS), default=list(TRIALS))
    parser.add_argument("--time", action="store_true", help="measure seconds instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.time:
        parser.error("give the folder of the training data, or --time")
    return arguments


if __name__ == "__main__":
    main()
