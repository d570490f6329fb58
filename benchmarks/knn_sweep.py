"""Other ways to cut the work of the fused search on a CUDA device, timed; `ucn bench knn` measures the rest.

python benchmarks/knn_sweep.py [--queries 3000] [--rows 22000] [--dim 128]

Times are of captured CUDA graphs, conversion and exact ranking included, over inputs that do not stay in the
cache, and of each launch. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ucn.acceleration import without_fused
from ucn.bench.machine import describe_machine
from ucn.bench.samples import draw_unit
from ucn.bench.timing import time_graphs
from ucn.knn import nearest

if TYPE_CHECKING:
    from ucn.knn.triton_search import Tuning

DEVICE = torch.device("cuda")

# Together several times as large as the L2 cache of an H200, 60 MB.
_SETS = 12
_LAUNCHES = ("prepare", "rank", "settle")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=22000)
    parser.add_argument("--dim", type=int, default=128)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this script measures a CUDA device, and this machine has none")
    found = sweep(arguments.queries, arguments.rows, arguments.dim)
    print(json.dumps({"machine": describe_machine(DEVICE), "sweep": found}))


def list_tunings() -> list[dict[str, Any]]:
    """What differs from the default in other ways to cut the work, the most telling first.

    All but the first are timed one launch after the other, as their launches are, and so compiled once.
    """
    return [
        {"use_chain": True},
        {},
        {"settle_values": 1024},
        {"fold": 4},
        {"prepare_values": 4096},
        {"columns": 64, "fold": 1, "stages": 4},
        {"prepare_warps": 8},
    ]


def sweep(N: int, M: int, D: int) -> list[dict[str, Any]]:
    """Times of other cuts and of their launches; those that do not fit on the device say so."""
    from ucn.knn.triton_search import Tuning, search_fused

    def draw(count: int, seed: int) -> Tensor:
        return draw_unit(1, count, D, seed=seed, device=DEVICE)

    sets = [(draw(N, 2 * i), draw(M, 2 * i + 1)) for i in range(_SETS)]
    with without_fused():
        expected = nearest(*sets[0]).indices
    print("µs:   all prepare   rank settle  equal  cut", flush=True)
    report = []
    for changes in list_tunings():
        tuning = Tuning(**{"use_chain": False, **changes})
        try:
            found = search_fused(*sets[0], 1, None, tuning)
            ms = time_graphs([partial(search_fused, q, b, 1, None, tuning) for q, b in sets])
            launches = time_launches(*sets[0], tuning)
        except Exception as error:  # Triton raises its own kinds where shared memory does not suffice
            print(f"{changes}: {type(error).__name__}: {str(error)[:90]}", flush=True)
            continue
        equal = float((found.indices == expected).double().mean())
        columns = " ".join(f"{1e3 * part:7.2f}" for part in (ms, *(launches[name] for name in _LAUNCHES)))
        print(f"{columns}  {equal:.4f}  {changes}", flush=True)
        report.append({"tuning": changes, "milliseconds": ms, "launches": launches, "equal": equal})
    return report


def time_launches(queries: Tensor, database: Tensor, tuning: Tuning) -> dict[str, float]:
    """Milliseconds of each launch, one after the other."""
    from ucn.knn.triton_search import search_fused

    tuning = replace(tuning, use_chain=False)
    search_fused(queries, database, 1, None, tuning)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(20):
            search_fused(queries, database, 1, None, tuning)
        torch.cuda.synchronize()
    return {
        event.key: event.self_device_time_total / event.count / 1e3
        for event in profile.key_averages()
        if event.key in _LAUNCHES
    }


if __name__ == "__main__":
    main()
