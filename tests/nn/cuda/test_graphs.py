"""Which sizes are captured, by pretended graphs that need no device."""

import copy
import logging
import pickle
import threading

import pytest
import torch
from torch import Tensor

from ucn.nn.cuda.graphs import Captured, CapturePolicy, Captures


class PretendedGraph:
    """Doubles what its images hold when it is replayed."""

    def __init__(self, images: Tensor, descriptors: Tensor) -> None:
        self._images, self._descriptors = images, descriptors

    def replay(self) -> None:
        self._descriptors.copy_(2 * self._images)


class Recorder:
    """Captures by pretending, and remembers the widths it was asked for."""

    def __init__(self, failures: int = 0) -> None:
        self.widths: list[int] = []
        self._failures = failures

    def __call__(self, images: Tensor) -> Captured:
        self.widths.append(images.shape[-1])
        if len(self.widths) <= self._failures:
            raise RuntimeError("operation not permitted when stream is capturing")
        static, descriptors = images.clone(), torch.zeros_like(images)
        return Captured(PretendedGraph(static, descriptors), static, descriptors)


def _image(width: int, value: float = 1.0) -> Tensor:
    return torch.full((1, 3, 4, width), value)


def _run_all(captures: Captures, widths: list[int]) -> list[bool]:
    """Which passes were by a graph."""
    return [captures.run(_image(width)) is not None for width in widths]


def test_every_size_is_captured_at_once_by_default() -> None:
    recorder = Recorder()
    captures = Captures(recorder, CapturePolicy())
    assert _run_all(captures, [5, 6, 5]) == [True, True, True]
    assert recorder.widths == [5, 6]


def test_results_are_of_the_images_given_and_stay() -> None:
    captures = Captures(Recorder(), CapturePolicy())
    first = captures.run(_image(5, 1.0))
    second = captures.run(_image(5, 7.0))
    assert first is not None
    assert second is not None
    assert torch.equal(first, _image(5, 2.0))  # the second pass has not written over it
    assert torch.equal(second, _image(5, 14.0))


def test_sizes_that_come_seldom_run_as_they_are() -> None:
    recorder = Recorder()
    captures = Captures(recorder, CapturePolicy(after=2))
    assert _run_all(captures, [5, 5, 6, 5, 6, 5]) == [False, False, False, True, False, True]
    assert recorder.widths == [5]


def test_batches_and_types_are_sizes_of_their_own() -> None:
    recorder = Recorder()
    captures = Captures(recorder, CapturePolicy())
    for images in (_image(5), _image(5).expand(2, 3, 4, 5), _image(5).double()):
        captures.run(images)
    assert len(recorder.widths) == 3


def test_the_size_used_least_lately_makes_room() -> None:
    recorder = Recorder()
    captures = Captures(recorder, CapturePolicy(max_sizes=2))
    assert all(_run_all(captures, [5, 6, 5, 7, 5, 6]))
    assert recorder.widths == [5, 6, 7, 6]


def test_many_sizes_are_not_captured_over_and_over() -> None:
    recorder = Recorder()
    captures = Captures(recorder, CapturePolicy(after=1, max_sizes=2, rest=10))
    _run_all(captures, [5, 6, 7] * 40)
    assert recorder.widths == [5, 6]
    _run_all(captures, [7] * 10)  # 5 and 6 do not come any more
    assert recorder.widths == [5, 6, 7]


def test_large_images_are_not_captured() -> None:
    recorder = Recorder()
    captures = Captures(recorder, CapturePolicy(max_pixels=20))
    assert _run_all(captures, [5, 6]) == [True, False]
    assert captures.run(_image(5).expand(2, 3, 4, 5)) is None
    assert recorder.widths == [5]


def test_where_a_capture_fails_images_run_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(failures=1)
    captures = Captures(recorder, CapturePolicy())
    with caplog.at_level(logging.WARNING):
        assert _run_all(captures, [5, 5, 6]) == [False, False, False]
    assert recorder.widths == [5]  # it is not tried again
    assert len(caplog.records) == 1
    assert "without CUDA graphs" in caplog.text
    assert "operation not permitted" in caplog.text


def test_faults_of_the_network_are_not_hidden() -> None:
    def fail(images: Tensor) -> Captured:
        raise ValueError("images must be (B, 3, H, W)")

    with pytest.raises(ValueError, match="images must be"):
        Captures(fail, CapturePolicy()).run(_image(5))


def test_a_graph_that_is_asked_for_is_captured_whatever_the_policy() -> None:
    recorder = Recorder()
    captures = Captures(recorder, CapturePolicy(after=5, max_sizes=1, max_pixels=1))
    found = captures.get(_image(5))
    assert captures.get(_image(5)) is found
    assert captures.get(_image(6)) is not found
    assert recorder.widths == [5, 6]
    with pytest.raises(RuntimeError, match="capturing"):
        Captures(Recorder(failures=1), CapturePolicy()).get(_image(5))


def test_copies_begin_without_graphs() -> None:
    captures = Captures(Recorder(), CapturePolicy(after=1))
    _run_all(captures, [5, 5])
    for other in (copy.deepcopy(captures), pickle.loads(pickle.dumps(captures))):
        assert _run_all(other, [5, 5]) == [False, True]


def test_threads_do_not_take_each_others_images() -> None:
    captures = Captures(Recorder(), CapturePolicy())
    wrong: list[float] = []

    def work(value: float) -> None:
        for _ in range(200):
            found = captures.run(_image(5, value))
            if found is None or not torch.equal(found, _image(5, 2 * value)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert wrong == []


def test_no_sizes_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="max_sizes must be at least 1, got 0"):
        CapturePolicy(max_sizes=0)
