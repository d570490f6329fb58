"""Steps as CUDA graphs: the same steps, sizes that take turns, and nothing left behind by capturing."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from ucn.config import LossConfig, ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.cuda_graphs import _undisturbed_captures, use_graphs
from ucn.train.step import Precision, training_step
from ucn.types import PairBatch

needs_gpu = pytest.mark.gpu


def make_batch(side: int, seed: int, device: str) -> PairBatch:
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(2, 3, side, side, generator=generator)
    points = torch.rand(2, 30, 2, generator=generator) * (side - 1)
    is_valid = torch.ones(2, 30, dtype=torch.bool)
    image, points, is_valid = image.to(device), points.to(device), is_valid.to(device)
    return PairBatch(
        image0=image, image1=image, points0=points, points1=points, is_valid=is_valid, names=("a", "b")
    )


def make_model(trunk: str, device: str) -> CorrespondenceNetwork:
    config = ModelConfig(dim=16, transformer="after_trunk", head_norm="batch", levels=2)
    if trunk == "lite":
        config = ModelConfig(trunk="lite", dim=16, transformer="none", head_norm="none")
    return build_model(config).to(device).train()


def make_steps(model: CorrespondenceNetwork, device: str, precision: Precision = "float32") -> list[Tensor]:
    """Losses of eight steps, of two sizes by turns."""
    optimiser = SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator(device)
    loss = LossConfig("infonce", radius=6)
    return [
        training_step(
            model, make_batch((64, 96)[step % 2], step, device), loss, optimiser, 1.0, generator, precision
        ).loss
        for step in range(8)
    ]


def test_a_network_on_a_processor_stays_as_it_is() -> None:
    model = make_model("lite", "cpu")
    use_graphs(model)
    assert "forward" not in vars(model)
    assert all(torch.isfinite(torch.stack(make_steps(model, "cpu"))))


@needs_gpu
@pytest.mark.parametrize("trunk", ["googlenet", "lite"])
def test_captured_steps_are_the_same(trunk: str) -> None:
    plain = make_model(trunk, "cuda")
    captured = copy.deepcopy(plain)
    use_graphs(captured)
    expected, found = make_steps(plain, "cuda"), make_steps(captured, "cuda")
    # Of products in another order; gradients of the transformer are summed in no fixed one.
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=2e-3, atol=2e-3)
    for (name, ours), theirs in zip(captured.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-3, msg=name)


@needs_gpu
@pytest.mark.parametrize("trunk", ["googlenet", "lite"])
def test_captured_steps_see_the_weights_of_their_step_in_bfloat16(trunk: str) -> None:
    # Copies of weights that autocast kept from the capture would stay those of the first step.
    plain = make_model(trunk, "cuda")
    captured = copy.deepcopy(plain)
    use_graphs(captured)
    for model in (plain, captured):
        make_steps(model, "cuda", "bf16")
    with torch.no_grad():  # further than eight small steps would bring them
        for ours, theirs in zip(captured.parameters(), plain.parameters(), strict=True):
            theirs.mul_(1.5)
            ours.copy_(theirs)
        for mine, other in zip(captured.buffers(), plain.buffers(), strict=True):
            mine.copy_(other)
    expected, found = (make_steps(model, "cuda", "bf16") for model in (plain, captured))
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=3e-2, atol=3e-2)


@needs_gpu
def test_frozen_norms_stay_frozen() -> None:
    model = make_model("googlenet", "cuda")
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    before = [buffer.clone() for buffer in model.buffers()]
    use_graphs(model)
    make_steps(model, "cuda")
    assert all(torch.equal(*pair) for pair in zip(model.buffers(), before, strict=True))


@needs_gpu
def test_without_gradients_nothing_is_captured() -> None:
    model = make_model("lite", "cuda")
    use_graphs(model)
    images = torch.rand(1, 3, 64, 64, device="cuda")
    with torch.no_grad():
        first = model(images)
        torch.testing.assert_close(model(images), first)
    model.eval()
    assert model(images).requires_grad
    assert not model.forward._captured  # type: ignore[attr-defined]


@needs_gpu
def test_a_network_with_graphs_is_not_copied() -> None:
    model = make_model("lite", "cuda")
    use_graphs(model)
    with pytest.raises(TypeError, match="copy it before"):
        copy.deepcopy(model)


@needs_gpu
def test_batches_are_pinned_while_passes_are_captured(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[RuntimeError] = []
    is_over = threading.Event()

    def pin() -> None:
        size = 2**12
        while not is_over.is_set() and size < 2**28:
            size += 2**12  # so that there is no pinned memory of this size to take again
            try:
                torch.empty(size).pin_memory()
            except RuntimeError as error:
                failures.append(error)
                return

    model = make_model("lite", "cuda")
    use_graphs(model)
    thread = threading.Thread(target=pin)
    thread.start()
    try:
        for side in (64, 96, 128, 160):
            model(torch.rand(2, 3, side, side, device="cuda"))
    finally:
        is_over.set()
        thread.join()
    assert not failures
    assert "cannot be captured" not in caplog.text


@needs_gpu
def test_a_failed_capture_leaves_stream_statistics_and_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model("googlenet", "cuda")
    expected = copy.deepcopy(model)
    use_graphs(model)

    def fail(run: Callable[[Tensor], Tensor], images: tuple[Tensor], **options: Any) -> None:
        # A capture that really fails would leave torch's own random numbers in disorder for other tests.
        run(*images)
        torch.cuda.set_stream(torch.cuda.Stream())
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
    images = torch.rand(2, 3, 64, 64, device="cuda")
    stream = torch.cuda.current_stream()
    found = model(images)
    assert "since the capture failed: out of memory" in caplog.text
    assert torch.cuda.current_stream() == stream
    torch.testing.assert_close(found, expected(images), rtol=1e-3, atol=1e-3)
    for ours, theirs in zip(model.buffers(), expected.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second GPU")
def test_a_device_that_is_not_the_current_one() -> None:
    plain = make_model("lite", "cuda:1")
    captured = copy.deepcopy(plain)
    use_graphs(captured)
    expected, found = make_steps(plain, "cuda:1"), make_steps(captured, "cuda:1")
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=2e-3, atol=2e-3)


def test_captures_bear_what_other_threads_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def graph(graph: object, pool: object = None, capture_error_mode: str = "global") -> None:
        asked.append(capture_error_mode)

    def make_graphed_callables(run: Callable[[], None]) -> None:
        torch.cuda.graph(object(), pool=object())  # type: ignore[arg-type]

    def make_by_mode(run: Callable[[], None], capture_error_mode: str = "global") -> None:
        torch.cuda.graph(object(), capture_error_mode=capture_error_mode)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.cuda, "graph", graph)
    versions: tuple[Callable[..., Any], ...] = (make_graphed_callables, make_by_mode)
    for make in versions:
        monkeypatch.setattr(torch.cuda, "make_graphed_callables", make)
        with _undisturbed_captures() as options:
            torch.cuda.make_graphed_callables(lambda: None, **options)
        assert vars(torch.cuda)["graph"] is graph
    assert asked == ["thread_local", "thread_local"]
