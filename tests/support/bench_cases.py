"""Shared by tests of the benchmark: settings with tiny inputs, and fake timings."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from ucn.bench.report import Part
from ucn.bench.settings import Settings

CPU = torch.device("cpu")


class FakeCuda(Settings):
    """Claims a CUDA device while the work runs on a CPU."""

    @property
    def is_cuda(self) -> bool:
        return True


def make_settings(**changes: Any) -> Settings:
    """Tiny inputs on a CPU."""
    return Settings(CPU, is_quick=True, **changes)


def make_fake_cuda(**changes: Any) -> Settings:
    """Tiny inputs for code that only runs with a CUDA device."""
    return FakeCuda(CPU, is_quick=True, **changes)


def replace_timings(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function runs once and takes 2 ms, so that CUDA events are not needed."""

    def call(work: Callable[[], Any]) -> float:
        work()
        return 2.0

    def call_all(works: Iterable[Callable[[], Any]]) -> float:
        return max(call(work) for work in works)

    def call_in_turns(works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        return {name: call(work) for name, work in works.items()}

    replacements: dict[str, Callable[..., Any]] = {
        "time_eager": lambda work, *_, **__: call(work),
        "time_work": lambda work, *_, **__: call(work),
        "time_graphs_in_turns": lambda works, *_, **__: {name: call_all(own) for name, own in works.items()},
        "time_in_turns": lambda works, *_, **__: call_in_turns(works),
        "measure_memory": lambda work, *_, **__: (work(), 8.0)[1],
        "measure_matmul_throughput": lambda *_, **__: 500.0,
    }
    for name, replacement in replacements.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, replacement)


def check_part(part: Part) -> None:
    """Every table has a title and rows."""
    assert part.tables
    for table in part.tables:
        assert table.title
        assert table.rows
        assert table.format_rows()
