"""How fast images become descriptors on a CUDA device, how near that is to the floor, and what it changes.

python benchmarks/forward_speed.py [--model paper|geometric] [--images 8] [--mode MODE_OF_TORCH_COMPILE]

Images have 640×480 pixels. The floor is the time of all multiplications at the rate of a large product in
bfloat16, measured in the same run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import time
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from gpu_timing import (
    DEVICE,
    describe_machine,
    measure_memory,
    measure_product_rate,
    print_report,
    require_cuda,
    time_eager,
)
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ucn.acceleration import without_fused
from ucn.config import ModelConfig
from ucn.data.example import example_pair
from ucn.data.io import to_tensor
from ucn.knn import nearest
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.nn.fast import FastEncoder
from ucn.weights import load_weights

_SIZE = (480, 640)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="paper", help="'paper' (random weights) or the name of shipped ones"
    )
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--mode", default=None, help="of torch.compile")
    arguments = parser.parse_args()
    require_cuda()
    model = load_model(arguments.model)
    images = torch.rand((arguments.images, 3, *_SIZE), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    with without_fused(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    flops = counter.get_total_flops()
    rate = measure_product_rate()
    started = time.perf_counter()
    encoder = FastEncoder(model, compile_mode=arguments.mode)
    encoder(images)
    torch.cuda.synchronize()
    compile_seconds = time.perf_counter() - started
    times = measure(model, encoder, images)
    report = {
        "machine": describe_machine(),
        "model": arguments.model,
        "images": arguments.images,
        "gflop": flops / 1e9,
        "product_tflops": rate,
        "floor_ms": flops / rate / 1e9,
        "compile_seconds": compile_seconds,
        "milliseconds": times,
        "fast_megabytes": measure_memory(partial(encoder, images)),
        "difference": compare(model, encoder),
    }
    print_table(report)


def load_model(name: str) -> CorrespondenceNetwork:
    """Shipped weights, or the paper's network with windows that have moved, as after training."""
    if name != "paper":
        return load_weights(name).model.to(DEVICE).eval()
    model = build_model(ModelConfig())
    localiser = model.transformer.localiser[2]  # type: ignore[index]
    nn.init.normal_(localiser.weight, std=0.05, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr]
    return model.to(DEVICE).eval()


@torch.no_grad()
def measure(model: CorrespondenceNetwork, encoder: FastEncoder, images: Tensor) -> dict[str, float]:
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run_half() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return last(images)  # type: ignore[no-any-return]

    def run_plain_half() -> Tensor:
        with without_fused():
            return run_half()

    def run_plain() -> Tensor:
        with without_fused():
            return model(images)  # type: ignore[no-any-return]

    captured = encoder.capture(images)
    return {
        "eager float32, plain": time_eager(run_plain),
        "eager float32, fused transformer": time_eager(lambda: model(images)),
        "eager bfloat16 channels-last, plain": time_eager(run_plain_half),
        "eager bfloat16 channels-last, fused transformer": time_eager(run_half),
        "fast, copies in and out included": time_eager(lambda: encoder(images)),
        "fast, the graph alone": time_eager(captured.graph.replay),
    }


@torch.no_grad()
def compare(model: CorrespondenceNetwork, encoder: FastEncoder) -> dict[str, float]:
    """What the fast path changes on a real pair: cosines with float32, nearest cells that stay."""
    pair = example_pair()
    pixels = [to_tensor(path)[None].to(DEVICE) for path in (pair.image0_path, pair.image1_path)]
    images = torch.cat([F.interpolate(each, _SIZE, mode="bilinear", antialias=True) for each in pixels])
    with without_fused(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = model(images)
    found = encoder(images)
    cosines = (found * expected).sum(dim=1)
    cells, nearest_cells = [], []
    for features in (found, expected):
        rows = features.flatten(2).transpose(1, 2).contiguous()
        nearest_cells.append(nearest(rows[0], rows[1]).indices[:, 0])
        cells.append(features.shape[-1])
    column = [each % cells[0] for each in nearest_cells]
    row = [each // cells[0] for each in nearest_cells]
    moved = torch.maximum((column[0] - column[1]).abs(), (row[0] - row[1]).abs())
    return {
        "mean_cosine": float(cosines.mean()),
        "least_cosine": float(cosines.min()),
        "same_nearest_cell": float((moved == 0).double().mean()),
        "nearest_cell_within_one": float((moved <= 1).double().mean()),
    }


def print_table(report: dict[str, Any]) -> None:
    rows = [("way", "ms", "TFLOP/s", "times the floor")]
    for name, ms in report["milliseconds"].items():
        rows.append((name, f"{ms:.3f}", f"{report['gflop'] / ms:.0f}", f"{ms / report['floor_ms']:.1f}"))
    rows.append(("floor", f"{report['floor_ms']:.3f}", f"{report['product_tflops']:.0f}", "1.0"))
    for name, value in report["difference"].items():
        rows.append((name, f"{value:.5f}", "", ""))
    rows.append(("seconds to compile and capture", f"{report['compile_seconds']:.1f}", "", ""))
    print_report(f"{report['model']}, {report['images']} images of 640×480", rows, report)


if __name__ == "__main__":
    main()
