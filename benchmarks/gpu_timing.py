"""Times and memory on a CUDA device, for the scripts beside this one."""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

DEVICE = "cuda"

Work = Callable[[], Any]


def require_cuda() -> None:
    """Ends the script where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise SystemExit("this script measures a CUDA device, and this machine has none")


def describe_machine() -> dict[str, str]:
    """What the figures were measured on."""
    versions = {}
    for package in ("torch", "triton"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "device": torch.cuda.get_device_name(),
        "cuda": str(torch.version.cuda),
        "python": sys.version.split()[0],
        **versions,
    }


def time_graphs(works: Sequence[Work], rounds: int = 20, passes: int = 5) -> float:
    """Median milliseconds of one piece of work, captured in CUDA graphs and timed by events.

    Args:
        works: the same work on several inputs, done in turn, so that none finds its input in the cache.
        rounds: how many medians are over.
        passes: over all works, per round.
    """
    graphs = [_capture(work) for work in works]

    def replay() -> None:
        for graph in graphs:
            graph.replay()

    return _time(replay, rounds, passes) / len(works)


def time_eager(work: Work, rounds: int = 10, passes: int = 3) -> float:
    """Median milliseconds of work that is launched from Python each time."""
    for _ in range(3):
        work()
    return _time(work, rounds, passes)


def measure_memory(work: Work) -> float:
    """Most megabytes (10⁶) that work allocates beyond what was there before, results included."""
    work()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = work()
    torch.cuda.synchronize()
    del result
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def measure_product_rate(size: int = 8192) -> float:
    """TFLOP/s of a large product in bfloat16 on random values, the ceiling of what convolutions reach."""
    first, second = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / time_eager(lambda: first @ second) / 1e9


def print_report(title: str, rows: Sequence[Sequence[str]], report: dict[str, Any]) -> None:
    """A short table, then one line of JSON."""
    print(f"\n{title}")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(json.dumps(report))


def _capture(work: Work) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def _time(work: Work, rounds: int, passes: int) -> float:
    work()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(passes):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / passes)
    return float(statistics.median(times))
