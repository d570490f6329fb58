"""Throughput of synthetic pairs, by kind and mixed, illumination change included.

python benchmarks/synthetic_speed.py [--images FOLDER] [--device cuda] [--sides 256 320] [--batches 16 64]

Without a folder of photographs, random textures are used; speed does not depend on the content. Each
result is the median of several runs, with the device idle before and after.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from command_line import make_parser

from ucn.config import SyntheticConfig
from ucn.data.io import write_image
from ucn.data.synthetic import ImageBank, list_images, make_pairs

KINDS = {
    "homography": SyntheticConfig(),
    "affine": SyntheticConfig(affine_share=1.0),
    "spline": SyntheticConfig(spline_share=1.0),
    "parallax": SyntheticConfig(parallax_share=1.0),
    "mixed": SyntheticConfig(affine_share=0.25, spline_share=0.25, parallax_share=0.25),
}
CANVAS_SIDE = 448
RUNS = 5


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=Path, help="folder of photographs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sides", type=int, nargs="+", default=[256, 320], help="sides of the views, px")
    parser.add_argument("--batches", type=int, nargs="+", help="pairs per batch; 16 and 64, on a CPU 4")
    parser.add_argument("--seconds", type=float, default=0.5, help="shortest time per result")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    batches = arguments.batches or ([4] if device.type == "cpu" else [16, 64])
    bank = _open_bank(arguments.images, device)
    results = {
        f"{side} px, batches of {batch}": {
            kind: round(_pairs_per_second(bank, batch, replace(config, side=side), arguments.seconds), 1)
            for kind, config in KINDS.items()
        }
        for side in arguments.sides
        for batch in batches
    }
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    if arguments.json:
        print(json.dumps({"device": name, "photographs": len(bank), "pairs_per_second": results}))
        return
    print(f"{name}, torch {torch.__version__}, {len(bank)} photographs; pairs per second")
    print(f"{'':<26}" + "".join(f"{kind:>12}" for kind in KINDS))
    for row, speeds in results.items():
        print(f"{row:<26}" + "".join(f"{speeds[kind]:>12,.0f}" for kind in KINDS))


def _open_bank(folder: Path | None, device: torch.device) -> ImageBank:
    if folder is not None:
        return ImageBank(list_images(folder)[:1000], CANVAS_SIDE, device)
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        for index in range(8):
            coarse = torch.rand(1, 3, 40, 40, generator=generator)
            texture = F.interpolate(coarse, (CANVAS_SIDE, CANVAS_SIDE), mode="bilinear", align_corners=False)
            pixels = (texture[0] * 255).byte().permute(1, 2, 0).contiguous().numpy()
            write_image(Path(name) / f"{index}.png", pixels, overwrite=True)
        return ImageBank(list_images(Path(name)), CANVAS_SIDE, device)


def _pairs_per_second(bank: ImageBank, batch: int, config: SyntheticConfig, seconds: float) -> float:
    device = bank.canvases.device
    generator = torch.Generator(device).manual_seed(0)

    def run(count: int) -> float:
        _wait(device)
        started = time.perf_counter()
        for _ in range(count):
            make_pairs(bank, batch, config, generator)
        _wait(device)
        return time.perf_counter() - started

    run(1)
    count = max(1, round(seconds / RUNS / max(run(1), 1e-4)))
    return batch * count / statistics.median(run(count) for _ in range(RUNS))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
