"""How many images a second `ucn extract` describes, and where the time goes.

python benchmarks/extract_speed.py [--images 16] [--size 1024x683] [--batch 4] [--device cpu] [--weights NAME]

Images are JPEG files of random blocks and noise, made before the clock starts. "all" is the whole command but
for loading weights: reading, encoding, keypoints, writing, merging; "all but encoding" is the same with a
network that takes no time: what cores could feed to a faster GPU. The stages are timed one after another on
the first images; together they may take longer than all, which overlaps them. "encoding" begins with images
on the device. Core-seconds are the time that all threads together spend on a core, which a busy machine
changes little.
"""

from __future__ import annotations

import argparse
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

from ucn.evaluate.reconstruction.methods import load_folder_method
from ucn.features.extractor import Extractor
from ucn.folders.extraction import LocalEngine, extract_folder
from ucn.folders.image_features import ExtractSettings, ImageDescriber
from ucn.folders.images import list_images, read_reduced
from ucn.folders.pair_matching import match_images
from ucn.formats.hloc import merge_features, open_features, pack_features, write_features
from ucn.matching.matcher import Matcher
from ucn.runtime.threads import start_threads
from ucn.types import FeatureMap, Features, ImageLike

DISTINCT = 16
"""Images that are made; more have the same content, which changes no time: nothing is kept between images."""
STAGE_IMAGES = 64
"""On which the stages are timed, all of them in memory."""
WARM = 4
"""Batches before the clock starts: libraries choose programs and get memory."""

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


class Still:
    """Gives every image the map of one: what is left of the command is all but the network."""

    def __init__(self, feature_map: FeatureMap, device: torch.device) -> None:
        self._map, self.device = feature_map, device

    def extract(self, image: ImageLike) -> Features:
        """Is not asked for."""
        raise NotImplementedError("images come in batches here")

    def encode(self, images: torch.Tensor) -> FeatureMap:
        """The same map for each."""
        return replace(self._map, features=self._map.features.expand(len(images), -1, -1, -1))


class Clock:
    """Seconds, and core-seconds of all threads, that work takes for each image."""

    def __init__(self, device: str) -> None:
        self._is_gpu = device.startswith("cuda")
        self.walls: dict[str, float] = {}
        self.cores: dict[str, float] = {}

    def time(self, name: str, images: int, work_on: Callable[[], _Result]) -> _Result:
        """What the work gives; its times are kept under the name."""
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
    method = load_folder_method(weights, engine="auto").method  # as the command does
    names, clock, engine = list_images(folder), Clock(device), LocalEngine(device)
    extract_folder(folder, work / "warm.h5", method, settings, engine=engine, limit=WARM * settings.batch)
    clock.time(
        "all", len(names), lambda: extract_folder(folder, work / "f.h5", method, settings, engine=engine)
    )
    extractor = method.make(device)
    if isinstance(extractor, Matcher):
        still = Still(extractor.extract(folder / names[0]).map, extractor.device)
        fed = replace(method, make=lambda _device: still)
        clock.time(
            "all but encoding",
            len(names),
            lambda: extract_folder(folder, work / "fed.h5", fed, settings, engine=engine),
        )
    measure_stages(folder, names[:STAGE_IMAGES], work, settings, extractor, clock)
    with open_features(work / "f.h5") as file:
        first, second = file.read(names[0]), file.read(names[1])
    match_images(first, second, device=device)
    clock.time("pair", 1, lambda: match_images(first, second, device=device))
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
    count, describer = len(names), ImageDescriber(extractor, settings)
    starts = range(0, count, settings.batch)
    with start_threads(1) as alone:  # as the threads of the command, which leave no work to torch's own

        def time_alone(name: str, work_on: Callable[[], _Result]) -> _Result:
            return clock.time(f"{name}, one thread", count, lambda: alone.submit(work_on).result())

        images = time_alone("reading", lambda: [read_reduced(folder / n, settings.max_side) for n in names])
        prepared = time_alone("keypoints", lambda: [describer.prepare(image) for image in images])
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
            lambda: [describer.launch(prepared[start : start + settings.batch]) for start in starts],
        )
        features = [item for batch in launched for item in batch.finish()]
        packed = time_alone("packing", lambda: [pack_features(item) for item in features])
        time_alone(
            "writing", lambda: write_features(work / "s.h5", dict(zip(names, packed, strict=True)), {})
        )
        time_alone("merging", lambda: merge_features(work / "m.h5", [work / "s.h5"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
        figures = measure(images, Path(folder), settings, options.device, options.weights)
    is_gpu = options.device.startswith("cuda")
    name = torch.cuda.get_device_name(options.device) if is_gpu else f"{torch.get_num_threads()} CPU threads"
    figures |= {"device": name, "cores": os.cpu_count(), "size": options.size, "batch": options.batch}
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    print(f"{name}, {os.cpu_count()} cores; {options.size}, batches of {options.batch}")
    for stage, speed in figures["images_per_second"].items():
        core = figures["core_seconds_per_image"][stage]
        print(f"{stage:38} {speed:8.2f} images a second, {core:7.3f} core-seconds each")
    speed, core = figures["pairs_per_second"], figures["core_seconds_per_pair"]
    print(f"{'matching':38} {speed:8.2f} pairs a second,  {core:7.3f} core-seconds each")
    print(f"{figures['kilobytes_per_image']:.0f} kB an image, {figures['keypoints']:,} keypoints")


if __name__ == "__main__":
    main()
