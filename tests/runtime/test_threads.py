"""Work shared by threads: all of it done, nothing left changed for others."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from ucn.runtime.threads import _start_threads, share


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_every_part_is_done_once(count: int) -> None:
    done = torch.zeros(count)

    def work(part: int) -> None:
        done[part] += 1

    share(work, range(count))
    assert (done == 1).all()


@pytest.mark.parametrize("most", [1, 2, 3, 9])
@pytest.mark.parametrize("count", [0, 1, 12])
def test_no_more_threads_than_memory_allows(most: int, count: int) -> None:
    torch.set_num_threads(4)
    done, working, peak = torch.zeros(count), 0, 0
    lock = threading.Lock()

    def work(part: int) -> None:
        nonlocal working, peak
        with lock:
            working += 1
            peak = max(peak, working)
        time.sleep(0.005)
        done[part] += 1
        with lock:
            working -= 1

    share(work, range(count), most)
    assert (done == 1).all()
    assert peak <= min(most, 4)
    if count == 12 and most > 1:
        assert peak > 1


def test_an_error_in_limited_threads_reaches_the_caller() -> None:
    torch.set_num_threads(4)

    def work(part: int) -> None:
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        share(work, range(6), 2)


def test_each_thread_computes_alone_and_without_gradients() -> None:
    seen: list[tuple[str, int, bool]] = []
    meet = threading.Barrier(2)  # so that both threads take a part

    def work(_: int) -> None:
        meet.wait(timeout=60)
        seen.append((threading.current_thread().name, torch.get_num_threads(), torch.is_grad_enabled()))

    share(work, range(2))
    assert len({name for name, _, _ in seen}) == 2
    assert {(count, is_recorded) for _, count, is_recorded in seen} == {(1, False)}


def test_torch_keeps_its_number_of_threads_here_and_elsewhere() -> None:
    share(lambda part: None, range(4))
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert (torch.get_num_threads(), found) == (2, [2])


@pytest.mark.parametrize("count", [1, 2])
def test_what_the_caller_computes_in_does_not_matter(count: int) -> None:
    torch.set_num_threads(count)
    found: list[torch.dtype] = []
    matrix = torch.ones(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        share(lambda part: found.append((matrix @ matrix).dtype), range(3))
        assert (matrix @ matrix).dtype == torch.bfloat16
    assert found == [torch.float32] * 3


def test_without_resources_for_threads_the_caller_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ThreadPoolExecutor.submit
    started: list[Any] = []

    def start_one(self: ThreadPoolExecutor, *work: Any) -> Any:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(submit(self, *work))
        return started[0]

    _start_threads.cache_clear()
    monkeypatch.setattr(ThreadPoolExecutor, "submit", start_one)
    done: list[str] = []
    try:
        share(lambda part: done.append(threading.current_thread().name), range(4))
    finally:
        _start_threads.cache_clear()
    assert done == [threading.current_thread().name] * 4
    assert torch.get_num_threads() == 2
    assert started[0].done()  # it does not wait for the others for ever


def test_parts_may_share_work_themselves() -> None:
    done = torch.zeros(3, 4)

    def outer(row: int) -> None:
        def inner(column: int) -> None:
            done[row, column] += 1

        share(inner, range(4))

    share(outer, range(3))
    assert (done == 1).all()


def test_callers_in_several_threads() -> None:
    done = torch.zeros(4, 20)

    def call(row: int) -> None:
        def work(column: int) -> None:
            done[row, column] += 1

        share(work, range(20))

    callers = [threading.Thread(target=call, args=(row,)) for row in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=30)
    assert (done == 1).all()


def test_an_error_reaches_the_caller() -> None:
    def work(part: int) -> None:
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        share(work, range(3))


def _share_in_child(answers: "multiprocessing.Queue[list[int]]") -> None:
    done: list[int] = []
    share(done.append, range(4))
    answers.put(sorted(done))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    share(lambda part: None, range(4))  # threads that the child does not inherit
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_share_in_child, args=(answers,))
    child.start()
    assert answers.get(timeout=30) == [0, 1, 2, 3]
    child.join(timeout=30)
    assert child.exitcode == 0
