"""What tests of the measurements share: settings for tiny inputs, and timings that cost nothing."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from ucn.bench.report import Part
from ucn.bench.settings import Settings

CPU = torch.device("cpu")


class PretendCuda(Settings):
    """Settings of a machine with a CUDA device, whose work nevertheless runs on a CPU."""

    @property
    def is_cuda(self) -> bool:
        return True


def make_settings(**changes: Any) -> Settings:
    """Tiny inputs on a CPU."""
    return Settings(CPU, is_quick=True, **changes)


def make_pretended(**changes: Any) -> Settings:
    """The same for code that only a CUDA device reaches."""
    return PretendCuda(CPU, is_quick=True, **changes)


def replace_timings(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is done once, and takes 2 ms; so CUDA's events are not needed."""

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
        "time_graphs": lambda works, *_, **__: call_all(works),
        "time_graphs_in_turns": lambda works, *_, **__: {name: call_all(own) for name, own in works.items()},
        "time_in_turns": lambda works, *_, **__: call_in_turns(works),
        "measure_memory": lambda work, *_, **__: (work(), 8.0)[1],
        "measure_product_rate": lambda *_, **__: 500.0,
    }
    for name, replacement in replacements.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, replacement)


def check_part(part: Part) -> None:
    """Every table has rows and a title, and says how it was measured."""
    assert part.tables
    for table in part.tables:
        assert table.title
        assert table.rows
        assert table.format_rows()
