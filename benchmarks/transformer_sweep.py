"""Times block sizes of the fused transformer on a CUDA device.

python benchmarks/transformer_sweep.py [--images 8] [--channels 128]

The grid is that of 640×480 images, 120 × 160 cells. The last line is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from command_line import make_parser
from torch import Tensor

from ucn.bench.machine import describe_machine
from ucn.bench.settings import Settings
from ucn.bench.timing import time_eager
from ucn.bench.transformer import build_inputs, run_both, sample_gradient
from ucn.nn.transformer import MAX_REACH_CELLS, transform_and_convolve


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--channels", type=int, default=128)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this script measures a CUDA device, and this machine has none")
    settings = Settings(torch.device("cuda"))
    inputs = build_inputs(arguments.images, arguments.channels, 120, 160, torch.bfloat16, settings)
    found = sweep(inputs, sample_gradient(inputs, settings))
    for row in found:
        print(f"{row['pass']:32}{row['sizes']:64}{row['milliseconds'] or row['error']}")
    print(json.dumps({"machine": describe_machine(settings.device), "sweep": found}))


def sweep(inputs: list[Tensor], gradient: Tensor) -> list[dict[str, Any]]:
    """Times of block sizes of the forward and backward pass, with errors of those that do not fit."""
    from ucn.nn.triton import transformer as triton_transformer
    from ucn.nn.triton.transformer import BlockSizes, run_forward

    x, theta, weight, bias = (tensor.detach() for tensor in inputs)
    found: list[dict[str, Any]] = []

    def record(name: str, sizes: BlockSizes, work: Callable[[], Any]) -> None:
        row: dict[str, Any] = {"pass": name, "sizes": str(sizes), "milliseconds": None, "error": ""}
        try:
            row["milliseconds"] = time_eager(work)
        except Exception as error:  # Triton raises various errors where registers or memory do not suffice
            row["error"] = f"{type(error).__name__}: {str(error)[:60]}"
        found.append(row)

    for sizes in (
        BlockSizes(64, 64, 128, 8),
        BlockSizes(64, 64, 128, 4),
        BlockSizes(64, 32, 128, 4),
        BlockSizes(128, 32, 128, 8),
        BlockSizes(128, 64, 128, 8),
        BlockSizes(32, 64, 128, 4),
        BlockSizes(64, 128, 128, 8),
    ):
        record("forward", sizes, partial(run_forward, x, theta, weight, bias, MAX_REACH_CELLS, True, sizes))
    candidates = {
        "BACKWARD_MAPS": (
            BlockSizes(64, 32, 128, 4),
            BlockSizes(64, 64, 128, 8),
            BlockSizes(32, 32, 128, 4),
            BlockSizes(32, 64, 128, 4),
        ),
        "BACKWARD_WEIGHT": (
            BlockSizes(64, 64, 128, 4),
            BlockSizes(64, 128, 128, 8),
            BlockSizes(32, 64, 128, 4),
            BlockSizes(128, 64, 128, 8),
        ),
    }
    for name, choices in candidates.items():
        before = getattr(triton_transformer, name)
        for sizes in choices:
            setattr(triton_transformer, name, sizes)
            record(f"both passes, {name}", sizes, partial(run_both, transform_and_convolve, inputs, gradient))
        setattr(triton_transformer, name, before)
    return found


if __name__ == "__main__":
    main()
