import sys
import time
from collections.abc import Callable

import pytest
import torch

from support.bench_cases import CPU
from ucn.bench import timing
from ucn.bench.timing import Effort, measure_memory, time_in_turns, time_work


def test_works_take_turns() -> None:
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = time_in_turns(works, Effort(3, 0.0, 5))
    assert calls == ["a", "b"] * 4  # once to warm up, then three rounds
    assert set(found) == {"a", "b"}


def test_rounds_of_graphs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    durations = iter([6.0, 8.0, 6.0, 80.0, 600.0, 8.0])  # of a and b in turn, with outliers

    def capture(works: list[str]) -> Callable[[], None]:
        return lambda: order.append(works[0])

    def time_round(replay: Callable[[], None], passes: int) -> float:
        assert passes == 4
        replay()
        return next(durations)

    monkeypatch.setattr(timing, "_capture_all", capture)
    monkeypatch.setattr(timing, "_time_round", time_round)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = timing.time_graphs_in_turns({"a": ["a", "a"], "b": ["b"]}, rounds=3, passes=4)  # type: ignore[list-item]
    assert order == ["a", "b"] * 4
    assert found == {"a": 3.0, "b": 8.0}


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
    assert found is not None and 90 < found < 130
    nothing = measure_memory(lambda: None, CPU)
    assert nothing is not None and nothing < 5
