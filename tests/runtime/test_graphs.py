"""Which functions are captured; on a CPU none is, so capturing is replaced."""

import pytest
import torch
from torch import Tensor

from ucn.runtime import graphs
from ucn.runtime.graphs import RecurringGraphs


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


class Replayed:
    """In place of a CUDA graph."""

    def __init__(self, run: object) -> None:
        self.replay = run


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sizes that were captured, in order."""
    sizes: list[tuple[int, ...]] = []

    def capture(self: RecurringGraphs, function: object, inputs: tuple[Tensor, ...]) -> graphs._Graph:
        sizes.append(tuple(inputs[0].shape))
        static, output = torch.empty_like(inputs[0]), torch.empty(inputs[0].shape)
        return graphs._Graph(Replayed(lambda: output.copy_(2 * static)), (static,), output)

    monkeypatch.setattr(RecurringGraphs, "_capture", capture)
    return sizes


def double(values: Tensor) -> Tensor:
    return 2 * values


def make(*shape: int) -> Tensor:
    return torch.rand(*shape).as_subclass(OnGpu)


def test_sizes_that_recur_are_captured(captured: list[tuple[int, ...]]) -> None:
    found = RecurringGraphs(2)
    for size in (3, 4, 3, 3, 4):
        values = make(size)
        assert torch.equal(found.run("double", double, (values,)), 2 * values)
    assert captured == [(3,), (4,)] and len(found) == 2
    found.run("other", double, (make(3),))
    assert len(captured) == 2  # another function


def test_graphs_in_use_stay(captured: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MIN_IDLE_PASSES", 3)
    found = RecurringGraphs(1)
    for size in (3, 3, 4, 4, 3, 4):
        found.run("double", double, (make(size),))
    assert captured == [(3,)]
    for _ in range(4):
        found.run("double", double, (make(4),))
    assert captured == [(3,), (4,)] and len(found) == 1


def test_on_a_cpu_nothing_is_captured() -> None:
    found = RecurringGraphs(1)
    for _ in range(3):
        assert torch.equal(found.run("double", double, (torch.ones(2),)), 2 * torch.ones(2))
    assert len(found) == 0
