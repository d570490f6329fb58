"""Which sizes are captured, with fake graphs that need no device."""

import copy
import logging
import pickle
import threading

import pytest
import torch
from torch import Tensor

from ucn.nn.cuda.graphs import CapturedGraph, CapturePolicy, GraphCache


class FakeGraph:
    """Doubles its images when it is replayed."""

    def __init__(self, images: Tensor, descriptors: Tensor) -> None:
        self._images, self._descriptors = images, descriptors

    def replay(self) -> None:
        self._descriptors.copy_(2 * self._images)


class Recorder:
    """Captures fake graphs and records their widths."""

    def __init__(self, failures: int = 0) -> None:
        self.widths: list[int] = []
        self._failures = failures

    def __call__(self, images: Tensor) -> CapturedGraph:
        self.widths.append(images.shape[-1])
        if len(self.widths) <= self._failures:
            raise RuntimeError("operation not permitted when stream is capturing")
        static, descriptors = images.clone(), torch.zeros_like(images)
        return CapturedGraph(FakeGraph(static, descriptors), static, descriptors)


def _image(width: int, value: float = 1.0) -> Tensor:
    return torch.full((1, 3, 4, width), value)


def _run_all(graphs: GraphCache, widths: list[int]) -> list[bool]:
    """Which passes were by a graph."""
    return [graphs.run(_image(width)) is not None for width in widths]


def test_every_size_is_captured_at_its_first_pass_by_default() -> None:
    recorder = Recorder()
    graphs = GraphCache(recorder, CapturePolicy())
    assert _run_all(graphs, [5, 6, 5]) == [True, True, True]
    assert recorder.widths == [5, 6]


def test_results_belong_to_their_images_and_are_not_overwritten() -> None:
    graphs = GraphCache(Recorder(), CapturePolicy())
    first = graphs.run(_image(5, 1.0))
    second = graphs.run(_image(5, 7.0))
    assert first is not None and second is not None
    assert torch.equal(first, _image(5, 2.0))  # not overwritten by the second pass
    assert torch.equal(second, _image(5, 14.0))


def test_rare_sizes_run_eagerly() -> None:
    recorder = Recorder()
    graphs = GraphCache(recorder, CapturePolicy(eager_passes=2))
    assert _run_all(graphs, [5, 5, 6, 5, 6, 5]) == [False, False, False, True, False, True]
    assert recorder.widths == [5]


def test_batch_size_and_type_are_part_of_the_size() -> None:
    recorder = Recorder()
    graphs = GraphCache(recorder, CapturePolicy())
    for images in (_image(5), _image(5).expand(2, 3, 4, 5), _image(5).double()):
        graphs.run(images)
    assert len(recorder.widths) == 3


def test_the_least_recently_used_graph_is_evicted() -> None:
    recorder = Recorder()
    graphs = GraphCache(recorder, CapturePolicy(max_graphs=2))
    assert all(_run_all(graphs, [5, 6, 5, 7, 5, 6]))
    assert recorder.widths == [5, 6, 7, 6]


def test_many_sizes_do_not_evict_each_other() -> None:
    recorder = Recorder()
    graphs = GraphCache(recorder, CapturePolicy(eager_passes=1, max_graphs=2, min_idle_passes=10))
    _run_all(graphs, [5, 6, 7] * 40)
    assert recorder.widths == [5, 6]
    _run_all(graphs, [7] * 10)  # 5 and 6 are idle now
    assert recorder.widths == [5, 6, 7]


def test_large_images_are_not_captured() -> None:
    recorder = Recorder()
    graphs = GraphCache(recorder, CapturePolicy(max_pixels=20))
    assert _run_all(graphs, [5, 6]) == [True, False]
    assert graphs.run(_image(5).expand(2, 3, 4, 5)) is None
    assert recorder.widths == [5]


def test_a_failed_capture_falls_back_to_eager_passes(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(failures=1)
    graphs = GraphCache(recorder, CapturePolicy())
    with caplog.at_level(logging.WARNING):
        assert _run_all(graphs, [5, 5, 6]) == [False, False, False]
    assert recorder.widths == [5]  # it is not tried again
    assert len(caplog.records) == 1
    assert "without CUDA graphs" in caplog.text
    assert "operation not permitted" in caplog.text


def test_errors_of_the_network_are_not_hidden() -> None:
    def fail(images: Tensor) -> CapturedGraph:
        raise ValueError("images must be (B, 3, H, W)")

    with pytest.raises(ValueError, match="images must be"):
        GraphCache(fail, CapturePolicy()).run(_image(5))


def test_get_captures_whatever_the_policy() -> None:
    recorder = Recorder()
    graphs = GraphCache(recorder, CapturePolicy(eager_passes=5, max_graphs=1, max_pixels=1))
    found = graphs.get(_image(5))
    assert graphs.get(_image(5)) is found
    assert graphs.get(_image(6)) is not found
    assert recorder.widths == [5, 6]
    with pytest.raises(RuntimeError, match="capturing"):
        GraphCache(Recorder(failures=1), CapturePolicy()).get(_image(5))


def test_copies_start_without_graphs() -> None:
    graphs = GraphCache(Recorder(), CapturePolicy(eager_passes=1))
    _run_all(graphs, [5, 5])
    for other in (copy.deepcopy(graphs), pickle.loads(pickle.dumps(graphs))):
        assert _run_all(other, [5, 5]) == [False, True]


def test_threads_get_their_own_results() -> None:
    graphs = GraphCache(Recorder(), CapturePolicy())
    wrong: list[float] = []

    def work(value: float) -> None:
        for _ in range(200):
            found = graphs.run(_image(5, value))
            if found is None or not torch.equal(found, _image(5, 2 * value)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert wrong == []


def test_zero_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="max_graphs must be at least 1, got 0"):
        CapturePolicy(max_graphs=0)
