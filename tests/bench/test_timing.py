import sys
import time

import pytest
import torch

from bench_cases import CPU
from ucn.bench.timing import Effort, measure_memory, time_in_turns, time_work


def test_works_take_turns() -> None:
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = time_in_turns(works, Effort(3, 0.0, 5))
    assert calls == ["a", "b"] * 4  # once to warm up, then three rounds
    assert set(found) == {"a", "b"}


def test_times_are_medians_in_milliseconds() -> None:
    pauses = iter([0.0, 0.005, 0.005, 0.2])  # the first is to warm up, and one of three is an outlier
    found = time_work(lambda: time.sleep(next(pauses)), CPU, Effort(3, 0.0, 3))
    assert 5.0 <= found < 100.0


def test_more_rounds_are_made_while_there_is_time() -> None:
    calls: list[int] = []
    time_in_turns({"a": lambda: calls.append(0)}, Effort(1, 10.0, 7))
    assert len(calls) == 8


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process watch its own memory")
def test_memory_counts_what_is_freed_again() -> None:
    def work() -> float:
        return float(torch.ones(25_000_000).sum())  # 100 MB

    work()
    found = measure_memory(work, CPU)
    assert found is not None
    assert 90 < found < 130
    nothing = measure_memory(lambda: None, CPU)
    assert nothing is not None
    assert nothing < 5
