"""Medians of many: on a CUDA device by events, in captured graphs where asked; on a CPU in turns."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], Any]

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Effort:
    """How long a measurement may take.

    Attributes:
        rounds: fewest that a median is over.
        seconds: more rounds are made until so much time has gone.
        most: rounds at most.
    """

    rounds: int = 5
    seconds: float = 4.0
    most: int = 50


QUICK = Effort(2, 0.0, 2)
THOROUGH = Effort()


def time_in_turns(works: Mapping[str, Work], effort: Effort = THOROUGH) -> dict[str, float]:
    """Median milliseconds of several kinds of work on a CPU, done in turns.

    What slows the machine for a while then slows all of them, and their ratios stay.
    """
    for work in works.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    begin = time.perf_counter()
    for number in range(effort.most):
        if number >= effort.rounds and time.perf_counter() - begin >= effort.seconds:
            break
        for name, work in works.items():
            started = time.perf_counter()
            work()
            found[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(times) for name, times in found.items()}


def time_work(work: Work, device: torch.device, effort: Effort = THOROUGH) -> float:
    """Median milliseconds of work that is launched from Python each time."""
    if device.type == "cuda":
        return time_eager(work, rounds=max(2, effort.rounds * 2))
    return time_in_turns({"work": work}, effort)["work"]


def time_eager(work: Work, rounds: int = 10, passes: int = 3) -> float:
    """Median milliseconds of work on a CUDA device that is launched from Python each time."""
    for _ in range(3):
        work()
    return _time_by_events(work, rounds, passes)


def time_graphs(works: Sequence[Work], rounds: int = 20, passes: int = 5) -> float:
    """Median milliseconds of one piece of work, captured in CUDA graphs and timed by events.

    Args:
        works: the same work on several inputs, done in turn, so that none finds its input in the cache.
        rounds: how many medians are over.
        passes: over all works, per round.
    """
    return time_graphs_in_turns({"work": works}, rounds, passes)["work"]


def time_graphs_in_turns(
    works: Mapping[str, Sequence[Work]], rounds: int = 20, passes: int = 5
) -> dict[str, float]:
    """As `time_graphs`, of several kinds of work, whose rounds take turns.

    A device that is cold, or that others slow, then gives all of them the same clock.
    """
    replays = {name: _capture_all(several) for name, several in works.items()}
    for replay in replays.values():
        replay()
    torch.cuda.synchronize()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, replay in replays.items():
            found[name].append(_time_round(replay, passes) / len(works[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def measure_product_rate(device: torch.device, size: int = 8192) -> float:
    """TFLOP/s of a large product in bfloat16 on random values, the ceiling of what convolutions reach."""
    generator = torch.Generator(device).manual_seed(0)
    first, second = (
        torch.randn(size, size, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(2)
    )
    return 2 * size**3 / time_eager(lambda: first @ second) / 1e9


def measure_memory(work: Work, device: torch.device) -> float | None:
    """Most megabytes (10⁶) that work, done before, takes beyond what was there before, results included.

    On a CPU this is the process's resident memory, which Linux alone lets a process watch; None elsewhere.
    """
    if device.type == "cuda":
        return _measure_device_memory(work, device)
    _give_back_memory()
    before = _read_resident("VmRSS")
    try:
        _RESET.write_text("5", encoding="ascii")  # the peak begins anew
    except OSError:
        return None
    result = work()
    peak = _read_resident("VmHWM")
    del result
    return None if before is None or peak is None else max(0.0, (peak - before) / 1e6)


def _measure_device_memory(work: Work, device: torch.device) -> float:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = work()
    torch.cuda.synchronize(device)
    del result
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6


def _give_back_memory() -> None:
    """Hands freed memory back to the system, so that work does not find it there."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # glibc alone has it
        return


def _read_resident(name: str) -> float | None:
    """Bytes that the process holds (VmRSS) or held at most (VmHWM)."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024.0 * int(found[0]) if found else None


def _capture_all(works: Sequence[Work]) -> Work:
    """Replays all works, one after the other, each in memory of its own."""
    graphs = [_capture(work) for work in works]

    def replay() -> None:
        for graph in graphs:
            graph.replay()

    return replay


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


def _time_by_events(work: Work, rounds: int, passes: int) -> float:
    work()
    torch.cuda.synchronize()
    return statistics.median(_time_round(work, passes) for _ in range(rounds))


def _time_round(work: Work, passes: int) -> float:
    """Milliseconds of one of some passes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(passes):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / passes
