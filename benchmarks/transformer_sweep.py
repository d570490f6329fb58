"""Other ways to cut the work of the fused transformer on a CUDA device, timed; `ucn bench` measures the rest.

python benchmarks/transformer_sweep.py [--images 8] [--channels 128]

The grid is that of 640×480 images, 120 × 160 cells. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ucn.bench.machine import describe_machine
from ucn.bench.settings import Settings
from ucn.bench.timing import time_eager
from ucn.bench.transformer import build_inputs, draw_gradient, run_both
from ucn.nn.transformer import MAX_REACH_CELLS, transform_and_convolve


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--channels", type=int, default=128)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this script measures a CUDA device, and this machine has none")
    settings = Settings(torch.device("cuda"))
    inputs = build_inputs(arguments.images, arguments.channels, 120, 160, torch.bfloat16, settings)
    found = sweep(inputs, draw_gradient(inputs, settings))
    for row in found:
        print(f"{row['pass']:32}{row['cut']:64}{row['milliseconds'] or row['error']}")
    print(json.dumps({"machine": describe_machine(settings.device), "sweep": found}))


def sweep(inputs: list[Tensor], gradient: Tensor) -> list[dict[str, Any]]:
    """Times of other cuts of the forward and the backward pass; those that do not fit say why."""
    from ucn.nn.triton import transformer as triton_transformer
    from ucn.nn.triton.transformer import Cut, run_forward

    x, theta, weight, bias = (tensor.detach() for tensor in inputs)
    found: list[dict[str, Any]] = []

    def note(name: str, cut: Cut, work: Callable[[], Any]) -> None:
        row: dict[str, Any] = {"pass": name, "cut": str(cut), "milliseconds": None, "error": ""}
        try:
            row["milliseconds"] = time_eager(work)
        except Exception as error:  # Triton raises its own kinds where registers or memory do not suffice
            row["error"] = f"{type(error).__name__}: {str(error)[:60]}"
        found.append(row)

    for cut in (
        Cut(64, 64, 128, 8),
        Cut(64, 64, 128, 4),
        Cut(64, 32, 128, 4),
        Cut(128, 32, 128, 8),
        Cut(128, 64, 128, 8),
        Cut(32, 64, 128, 4),
        Cut(64, 128, 128, 8),
    ):
        note("forward", cut, partial(run_forward, x, theta, weight, bias, MAX_REACH_CELLS, True, cut))
    cuts = {
        "BACKWARD_MAPS": (Cut(64, 32, 128, 4), Cut(64, 64, 128, 8), Cut(32, 32, 128, 4), Cut(32, 64, 128, 4)),
        "BACKWARD_WEIGHT": (
            Cut(64, 64, 128, 4),
            Cut(64, 128, 128, 8),
            Cut(32, 64, 128, 4),
            Cut(128, 64, 128, 8),
        ),
    }
    for name, choices in cuts.items():
        before = getattr(triton_transformer, name)
        for cut in choices:
            setattr(triton_transformer, name, cut)
            note(f"both passes, {name}", cut, partial(run_both, transform_and_convolve, inputs, gradient))
        setattr(triton_transformer, name, before)
    return found


if __name__ == "__main__":
    main()
