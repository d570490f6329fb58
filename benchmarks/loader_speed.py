"""Throughput of the pair loader on KITTI, and the time of its stages.

python benchmarks/loader_speed.py [--data DIR] [--workers 0 1 2] [--batch 4] [--repeats 5] [--json]

Pairs are cropped to 321×769 with 1,000 correspondences, as in training for KITTI flow. A folder with fewer
than 200 pairs is read repeatedly. Every result is the best of its repeats, since other load only slows down.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import torch
from command_line import make_parser

from ucn.data.catalogue import open_data
from ucn.data.io import read_image
from ucn.data.loading import PairAugmentation, PairLoader, augment_pair, collate, make_generator
from ucn.data.pairs import PairData, Selection

SIZE_HW = (321, 769)
POINTS = 1000
_PAIRS = 200


def main() -> None:
    arguments = _parse_arguments()
    data = open_data("kitti-flow", arguments.data)
    data = Selection(data, (index % len(data) for index in range(max(_PAIRS, len(data)))))
    result: dict[str, Any] = {
        "milliseconds_per_pair_in_one_process": _time_stages(data, arguments.batch, arguments.repeats)
    }
    for workers in arguments.workers:
        throughput = _measure_throughput(data, arguments, workers)
        result[f"pairs_per_second_with_{workers}_workers"] = round(throughput, 1)
        result[f"milliseconds_waited_per_pair_with_{workers}_workers"] = round(1000 / throughput, 1)
    result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name.replace('_', ' '):<46}{value}")


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of KITTI flow (default: $UCN_DATA/kitti_flow_2015)")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--batches", type=int, default=10, help="batches per repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.data is None:
        if "UCN_DATA" not in os.environ:
            sys.exit("give --data DIR, or set UCN_DATA to the folder that holds kitti_flow_2015")
        arguments.data = Path(os.environ["UCN_DATA"]) / "kitti_flow_2015"
    return arguments


def _time_stages(data: PairData, batch: int, repeats: int) -> dict[str, float]:
    """Milliseconds per pair of each stage, in one thread, as in a worker."""
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    generator = make_generator(0)
    fitting = PairAugmentation(SIZE_HW, min_points=200)
    sample = data.read(0)
    cropped = augment_pair(sample, fitting, generator)
    chosen = cropped.select(torch.arange(POINTS))

    def choose_points() -> object:
        return cropped.select(torch.randperm(len(cropped), generator=generator)[:POINTS])

    images = _best(lambda: [read_image(path) for path in data.image_paths(0)], repeats)
    stages = {
        "decode images": images,
        "decode ground truth": max(0.0, _best(lambda: data.read(0), repeats) - images),
        "crop": _best(lambda: augment_pair(sample, fitting, generator), repeats),
        "choose points": _best(choose_points, repeats),
        "collate": _best(lambda: collate([chosen] * batch, POINTS, generator), repeats) / batch,
    }
    return {name: round(1000 * seconds, 2) for name, seconds in stages.items()}


def _best(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(max(3, repeats)):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _measure_throughput(data: PairData, arguments: argparse.Namespace, workers: int) -> float:
    """Pairs per second for a consumer that only waits."""
    loader = PairLoader(
        data,
        PairAugmentation(SIZE_HW, min_points=200),
        batch=arguments.batch,
        points=POINTS,
        seed=0,
        workers=workers,
    )
    batches = loader.batches()
    for _ in range(2 * max(1, workers)):  # workers start and fill their queues
        next(batches)
    throughputs: list[float] = []
    for _ in range(arguments.repeats):
        started = time.perf_counter()
        for _ in range(arguments.batches):
            next(batches)
        throughputs.append(arguments.batch * arguments.batches / (time.perf_counter() - started))
    batches.close()
    return max(throughputs)


if __name__ == "__main__":
    main()
