"""Throughput of `ucn extract`, and the time of its stages.

python benchmarks/extract_speed.py [--images 16] [--size 1024x683] [--batch 4] [--device cpu] [--weights NAME]

Images are JPEG files of random blocks and noise. "all" is the whole command without loading weights: reading,
encoding, keypoints, writing, merging. "all but encoding" replaces the network by a constant: the upper bound
for a faster GPU. The stages are timed one after the other on the first images; their sum may exceed "all",
which overlaps them. "encoding" starts with images on the device. Core-seconds are CPU time of all threads,
which varies little on a busy machine.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import torch
from command_line import make_parser

from ucn.features.extractor import Extractor
from ucn.features.method import wrap_extractor
from ucn.folders.extraction import LocalExecutor, extract_folder, list_image_names
from ucn.folders.pair_matching import match_image_features
from ucn.folders.worker import BatchExtractor, ExtractSettings, read_resized
from ucn.formats.hloc import merge_features, open_features, pack_features, write_features
from ucn.matching.matcher import Matcher
from ucn.paper.registry import METHODS
from ucn.runtime.threads import start_threads
from ucn.types import FeatureMap, Features, ImageLike

DISTINCT = 16
"""Number of distinct images; others repeat them, since nothing is cached between images."""
STAGE_IMAGES = 64
"""Number of images for the stages, all in memory."""
WARM = 4
"""Warm-up batches."""

_Result = TypeVar("_Result")


def make_images(folder: Path, count: int, width: int, height: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(min(count, DISTINCT)):
        total = rng.normal(size=(height, width, 3)) * 6
        for block in (7, 19, 61):
            shape = (-(-height // block), -(-width // block), 3)
            grown = rng.uniform(0, 80, shape).repeat(block, axis=0).repeat(block, axis=1)
            total += grown[:height, :width]
        pixels = total.clip(0, 255).astype(np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{number:05}.jpg", quality=90)
    for number in range(DISTINCT, count):
        folder.joinpath(f"{number:05}.jpg").hardlink_to(folder / f"{number % DISTINCT:05}.jpg")


class ConstantEncoder:
    """Returns one feature map for every image, so that the network takes no time."""

    def __init__(self, feature_map: FeatureMap, device: torch.device) -> None:
        self._map, self.device = feature_map, device

    def extract(self, image: ImageLike) -> Features:
        """Not used."""
        raise NotImplementedError("use encode")

    def encode(self, images: torch.Tensor) -> FeatureMap:
        """The same map for each image."""
        return replace(self._map, features=self._map.features.expand(len(images), -1, -1, -1))


class Clock:
    """Wall-clock seconds and core-seconds per image."""

    def __init__(self, device: str) -> None:
        self._is_gpu = device.startswith("cuda")
        self.walls: dict[str, float] = {}
        self.cores: dict[str, float] = {}

    def time(self, name: str, images: int, work_on: Callable[[], _Result]) -> _Result:
        """Runs and times the work, and returns its result."""
        self._wait()
        begin, begin_core = time.perf_counter(), time.process_time()
        result = work_on()
        self._wait()
        self.walls[name] = (time.perf_counter() - begin) / images
        self.cores[name] = (time.process_time() - begin_core) / images
        return result

    def _wait(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize()


def measure(folder: Path, work: Path, settings: ExtractSettings, device: str, weights: str) -> dict[str, Any]:
    method = METHODS.find_features(weights, engine="auto")  # as the command does
    names, clock, executor = list_image_names(folder), Clock(device), LocalExecutor(device)
    extract_folder(folder, work / "warm.h5", method, settings, executor=executor, limit=WARM * settings.batch)
    clock.time(
        "all", len(names), lambda: extract_folder(folder, work / "f.h5", method, settings, executor=executor)
    )
    extractor = method.load(device).extractor
    if isinstance(extractor, Matcher):
        constant = ConstantEncoder(extractor.extract(folder / names[0]).map, extractor.device)
        fed = replace(method, loader=wrap_extractor(constant))
        clock.time(
            "all but encoding",
            len(names),
            lambda: extract_folder(folder, work / "fed.h5", fed, settings, executor=executor),
        )
    measure_stages(folder, names[:STAGE_IMAGES], work, settings, extractor, clock)
    with open_features(work / "f.h5") as file:
        first, second = file.read(names[0]), file.read(names[1])
    match_image_features(first, second, device=device)
    clock.time("pair", 1, lambda: match_image_features(first, second, device=device))
    pair_wall, pair_core = clock.walls.pop("pair"), clock.cores.pop("pair")
    return {
        "images_per_second": {name: 1 / wall for name, wall in clock.walls.items()},
        "core_seconds_per_image": clock.cores,
        "pairs_per_second": 1 / pair_wall,
        "core_seconds_per_pair": pair_core,
        "kilobytes_per_image": (work / "f.h5").stat().st_size / len(names) / 1000,
        "keypoints": len(first),
        "images": len(names),
    }


def measure_stages(
    folder: Path,
    names: Sequence[str],
    work: Path,
    settings: ExtractSettings,
    extractor: Extractor,
    clock: Clock,
) -> None:
    count, batches = len(names), BatchExtractor(extractor, settings)
    starts = range(0, count, settings.batch)
    with start_threads(1) as alone:  # as in the command, without torch's own threads

        def time_alone(name: str, work_on: Callable[[], _Result]) -> _Result:
            return clock.time(f"{name}, one thread", count, lambda: alone.submit(work_on).result())

        images = time_alone("reading", lambda: [read_resized(folder / n, settings.max_side) for n in names])
        prepared = time_alone("keypoints", lambda: [batches.detect(image) for image in images])
        if isinstance(extractor, Matcher):
            there = [
                torch.stack([image.pixels for image in images[start : start + settings.batch]]).to(
                    extractor.device
                )
                for start in starts
            ]
            extractor.encode(there[0])
            clock.time("encoding", count, lambda: [extractor.encode(batch) for batch in there])
        launched = clock.time(
            "encoding with copies and descriptors",
            count,
            lambda: [batches.submit(prepared[start : start + settings.batch]) for start in starts],
        )
        features = [item for batch in launched for item in batch.result()]
        packed = time_alone("packing", lambda: [pack_features(item) for item in features])
        time_alone(
            "writing", lambda: write_features(work / "s.h5", dict(zip(names, packed, strict=True)), {})
        )
        time_alone("merging", lambda: merge_features(work / "m.h5", [work / "s.h5"]))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--size", default="1024x683", help="width x height")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", default="geometric")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    settings = ExtractSettings(max_side=None, batch=options.batch)
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        make_images(images, max(options.images, options.batch, 2), width, height)
        results = measure(images, Path(folder), settings, options.device, options.weights)
    is_gpu = options.device.startswith("cuda")
    name = torch.cuda.get_device_name(options.device) if is_gpu else f"{torch.get_num_threads()} CPU threads"
    results |= {"device": name, "cores": os.cpu_count(), "size": options.size, "batch": options.batch}
    if options.json:
        print(json.dumps(results, indent=1))
        return
    print(f"{name}, {os.cpu_count()} cores; {options.size}, batches of {options.batch}")
    for stage, speed in results["images_per_second"].items():
        core = results["core_seconds_per_image"][stage]
        print(f"{stage:38} {speed:8.2f} images per second, {core:7.3f} core-seconds each")
    speed, core = results["pairs_per_second"], results["core_seconds_per_pair"]
    print(f"{'matching':38} {speed:8.2f} pairs per second,  {core:7.3f} core-seconds each")
    print(f"{results['kilobytes_per_image']:.0f} kB per image, {results['keypoints']:,} keypoints")


if __name__ == "__main__":
    main()
