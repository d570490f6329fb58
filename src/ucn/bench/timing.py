"""Timers and memory meters: medians over rounds, by CUDA events or by the wall clock."""

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
    """How many rounds a median is taken over.

    Attributes:
        rounds: the minimum.
        seconds: rounds go on until this much time has passed.
        max_rounds: the maximum.
    """

    rounds: int = 5
    seconds: float = 4.0
    max_rounds: int = 50


QUICK = Effort(2, 0.0, 2)
FULL = Effort()


def time_in_turns(works: Mapping[str, Work], effort: Effort = FULL) -> dict[str, float]:
    """Median wall-clock milliseconds of several functions that alternate in each round.

    Whatever slows the machine down for a while then slows all of them, so that their ratios hold. Work on a
    CUDA device must end with a copy to the host.
    """
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    begin = time.perf_counter()
    for number in range(effort.max_rounds):
        if number >= effort.rounds and time.perf_counter() - begin >= effort.seconds:
            break
        for name, work in works.items():
            started = time.perf_counter()
            work()
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(each) for name, each in times.items()}


def time_work(work: Work, device: torch.device, effort: Effort = FULL) -> float:
    """Median milliseconds of a function on either kind of device."""
    if device.type == "cuda":
        return time_eager(work, rounds=max(2, effort.rounds * 2))
    return time_in_turns({"work": work}, effort)["work"]


def time_eager(work: Work, rounds: int = 10, passes: int = 3) -> float:
    """Median milliseconds of CUDA work that is launched from Python, by CUDA events."""
    for _ in range(4):
        work()
    torch.cuda.synchronize()
    return statistics.median(_time_round(work, passes) for _ in range(rounds))


def time_graphs_in_turns(
    works: Mapping[str, Sequence[Work]], rounds: int = 20, passes: int = 5
) -> dict[str, float]:
    """Median milliseconds of several functions, captured in CUDA graphs that alternate in each round.

    Args:
        works: name to one function on several inputs, replayed in turn, so that none stays in the L2 cache.
        rounds: number of measurements.
        passes: over all inputs in each round.
    """
    replays = {name: _capture_all(several) for name, several in works.items()}
    for replay in replays.values():
        replay()
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, replay in replays.items():
            times[name].append(_time_round(replay, passes) / len(works[name]))
    return {name: statistics.median(each) for name, each in times.items()}


def measure_matmul_throughput(device: torch.device) -> float:
    """TFLOP/s of a large bfloat16 matrix product, an upper bound for convolutions."""
    size = 8192
    generator = torch.Generator(device).manual_seed(0)
    first, second = (
        torch.randn(size, size, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(2)
    )
    return 2 * size**3 / time_eager(lambda: first @ second) / 1e9


def measure_memory(work: Work, device: torch.device) -> float | None:
    """Peak memory in MB (10⁶ bytes) that a function allocates, its result included.

    Call it after a first run. On a CPU it is the resident memory of the process, which only Linux reports;
    None elsewhere.
    """
    if device.type == "cuda":
        return _measure_device_memory(work, device)
    _trim_heap()
    before = _read_resident("VmRSS")
    try:
        _RESET.write_text("5", encoding="ascii")  # resets the peak, VmHWM
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


def _trim_heap() -> None:
    """Returns freed memory to the system, so that the measured function has to allocate its own."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # only glibc has it
        return


def _read_resident(name: str) -> float | None:
    """Current (VmRSS) or peak (VmHWM) resident bytes of this process."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024.0 * int(found[0]) if found else None


def _capture_all(works: Sequence[Work]) -> Work:
    graphs = [_capture(work) for work in works]

    def replay() -> None:
        for graph in graphs:
            graph.replay()

    return replay


def _capture(work: Work) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def _time_round(work: Work, passes: int) -> float:
    """Milliseconds of one pass."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(passes):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / passes
