"""How many images a second `ucn extract` describes, and where the time goes.

python benchmarks/extract_speed.py [--images 16] [--size 1024x683] [--batch 4] [--device cpu] [--weights NAME]

Images are JPEG files of random blocks and noise, made before the clock starts. "all" is the whole command but
for loading weights: reading, encoding, keypoints, writing, merging. The stages are timed one after another on
the same images; together they may take longer than all, which overlaps them. Core-seconds are the time that
all threads together spend on a core, which a busy machine changes little.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

from ucn.batch.describing import ExtractSettings
from ucn.batch.detectors import detect
from ucn.batch.extraction import LocalEngine, extract_folder
from ucn.batch.images import Reduced, list_images, read_reduced
from ucn.batch.matching import match_images
from ucn.evaluate.reconstruction_methods import load_folder_method
from ucn.export.hloc import open_features
from ucn.predict import Matcher

DISTINCT = 16
"""Images that are made; more have the same content, which changes no time: nothing is kept between images."""


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


def measure(folder: Path, work: Path, settings: ExtractSettings, device: str, weights: str) -> dict[str, Any]:
    method = load_folder_method(weights).method
    names = list_images(folder)
    extractor = method.make(device)
    engine = LocalEngine(device)
    extract_folder(folder, work / "warm.h5", method, settings, engine=engine, limit=settings.batch)

    def timed(work_on: Callable[[], object]) -> tuple[float, float]:
        begin, begin_core = time.perf_counter(), time.process_time()
        work_on()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - begin, time.process_time() - begin_core

    seconds = {"all": timed(lambda: extract_folder(folder, work / "f.h5", method, settings, engine=engine))}
    reduced: list[Reduced] = []
    seconds["reading, one thread"] = timed(
        lambda: reduced.extend(read_reduced(folder / name, settings.max_side) for name in names)
    )
    pixels = torch.stack([image.pixels for image in reduced])
    if isinstance(extractor, Matcher):
        starts = range(0, len(pixels), settings.batch)
        seconds["encoding"] = timed(
            lambda: [extractor.encode(pixels[start : start + settings.batch]) for start in starts]
        )
    found = extractor.extract(pixels[0]).map
    seconds["keypoints, one thread"] = timed(
        lambda: [detect(settings.detector, image, found, settings.max_keypoints) for image in pixels]
    )
    with open_features(work / "f.h5") as file:
        first, second = file.read(names[0]), file.read(names[1])
    match_images(first, second, device=device)
    matching = timed(lambda: match_images(first, second, device=device))
    return {
        "images_per_second": {name: len(names) / wall for name, (wall, _) in seconds.items()},
        "core_seconds_per_image": {name: core / len(names) for name, (_, core) in seconds.items()},
        "pairs_per_second": 1 / matching[0],
        "core_seconds_per_pair": matching[1],
        "kilobytes_per_image": (work / "f.h5").stat().st_size / len(names) / 1000,
        "keypoints": len(first),
    }


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
        print(f"{stage:24} {speed:8.2f} images a second, {core:7.3f} core-seconds each")
    speed, core = figures["pairs_per_second"], figures["core_seconds_per_pair"]
    print(f"{'matching':24} {speed:8.2f} pairs a second,  {core:7.3f} core-seconds each")
    print(f"{figures['kilobytes_per_image']:.0f} kB an image, {figures['keypoints']:,} keypoints")


if __name__ == "__main__":
    main()
