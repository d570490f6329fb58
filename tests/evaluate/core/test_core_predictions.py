"""Work shared by processes gives what one process gives."""

import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from support.evaluation_cases import ColourExtractor, make_method, write_sequence
from ucn.errors import ConfigError, DataError, UcnError
from ucn.evaluate.core.benchmark_pairs import ORIGINAL_SIZE
from ucn.evaluate.core.predictions import share_work
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.predictions import Predictions, predict_points


@dataclass(frozen=True)
class Doubling:
    """Doubles numbers; says in which process."""

    fatal: int = -1

    def __call__(self, task: int) -> tuple[int, int]:
        if task == self.fatal:
            time.sleep(1)  # so that what was done before is told before
            raise DataError(f"{task} is wrong")
        if task == 666:
            os._exit(3)
        return 2 * task, os.getpid()


class Locked:
    """Cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, task: int) -> int:
        return task


def test_one_process_works_here_in_order() -> None:
    assert list(share_work(Doubling(), [3, 1], 1)) == [(3, (6, os.getpid())), (1, (2, os.getpid()))]
    assert list(share_work(Locked(), [7], 4)) == [(7, 7)]  # not worth a process
    assert list(share_work(Doubling(), [], 4)) == []


@pytest.mark.slow
def test_several_processes_and_an_error_in_one() -> None:
    done: dict[int, tuple[int, int]] = {}
    with pytest.raises(DataError, match="11 is wrong"):
        for task, result in share_work(Doubling(fatal=11), list(range(12)), 2):
            done[task] = result
    # Four pieces of three tasks; the last fails, and of the others one process has done two at least.
    assert len(done) >= 6
    assert all(value == 2 * task for task, (value, _) in done.items())
    assert os.getpid() not in {process for _, process in done.values()}


def test_what_cannot_be_copied() -> None:
    with pytest.raises(ConfigError, match=r"a method cannot be copied into other processes .*; use jobs=1"):
        list(share_work(Locked(), [1, 2], 2))


@pytest.mark.slow
def test_a_process_that_dies() -> None:
    with pytest.raises(UcnError, match=r"ended by itself.*fewer jobs"):
        list(share_work(Doubling(), [666, 666], 2))


@pytest.mark.slow
def test_predictions_do_not_depend_on_processes(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    benchmark = replace(find_benchmark("hpatches"), preparation=ORIGINAL_SIZE, points=20)
    pairs = benchmark.open(tmp_path / "data")

    def run(cache: str, chosen: list[int], jobs: int) -> tuple[Predictions, list[tuple[int, int]]]:
        seen: list[tuple[int, int]] = []
        found = predict_points(
            benchmark,
            pairs,
            chosen,
            [make_method()],
            tmp_path / cache,
            jobs=jobs,
            progress=lambda *counts: seen.append(counts),
        )
        return found, seen

    alone, _ = run("alone", [0, 1, 2, 3], 1)
    run("shared", [0], 1)
    together, seen = run("shared", [0, 1, 2, 3], 2)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]  # the first was there already
    assert together.points_sha256 == alone.points_sha256
    for one, other in zip(alone.pairs, together.pairs, strict=True):
        assert all(map(np.array_equal, one.predicted, other.predicted))


def test_processes_share_pairs_on_any_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sequence(tmp_path / "data", "v_one")
    benchmark = replace(find_benchmark("hpatches"), preparation=ORIGINAL_SIZE, points=20)
    pairs = benchmark.open(tmp_path / "data")
    here = ColourExtractor()
    here.device = "meta"  # type: ignore[attr-defined]
    asked: list[tuple[int, int]] = []

    def share(work: object, tasks: list[object], jobs: int) -> object:
        asked.append((len(tasks), jobs))
        return share_work(work, tasks, 1)  # type: ignore[arg-type]

    monkeypatch.setattr("ucn.evaluate.core.predictions.share_work", share)
    methods = [make_method("a"), make_method("b", here), make_method("c")]
    found = predict_points(benchmark, pairs, [0, 1], methods, tmp_path / "cache", jobs=3)
    assert asked == [(2, 3)]
    assert [variant.method.name for variant in found.variants] == ["a", "a", "b", "b", "c", "c"]
    assert here.calls == 2
