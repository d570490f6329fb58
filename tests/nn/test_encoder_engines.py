"""Which encoder an engine takes on which device, and what the fast one does around its graphs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from support.network_cases import make_lively
from ucn.config import ModelConfig
from ucn.nn import encoder as fast
from ucn.nn.cuda.graphs import Captured, CapturePolicy, Captures
from ucn.nn.encoder import PATIENT, FastEncoder, choose_encoder, choose_exact_engine
from ucn.runtime import kernels as acceleration

CONFIG = ModelConfig(dim=8, transformer="none")


class PretendedModel:
    """A network that says it is on some device."""

    def __init__(self, device: str) -> None:
        self._parameter = type("Parameter", (), {"device": torch.device(device)})()

    def parameters(self) -> Any:
        return iter([self._parameter])


def _choose(
    engine: str, device: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any] | None:
    """How the fast encoder would be made; None where the network itself is taken."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(fast, "FastEncoder", lambda model, **options: options)
    monkeypatch.setattr(fast, "_agrees", lambda encoder, model: True)
    model: Any = PretendedModel(device)
    found: Any = choose_encoder(model, engine)  # type: ignore[arg-type]
    return None if found is model else found


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps"])
def test_plain_is_the_network_and_fast_never_is(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choose("plain", device, (9, 0), monkeypatch) is None
    assert _choose("fast", device, (9, 0), monkeypatch) == {}


def test_auto_is_fast_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choose("auto", "cpu", (0, 0), monkeypatch) == {}


@pytest.mark.parametrize(("capability", "is_fast"), [((9, 0), True), ((8, 0), True), ((7, 5), False)])
def test_auto_on_a_gpu_never_compiles(
    capability: tuple[int, int], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _choose("auto", "cuda", capability, monkeypatch)
    assert found == ({"use_compiler": False, "policy": PATIENT} if is_fast else None)


@pytest.mark.parametrize("fault", ["none", "another answer", "no answer", "not a number"])
def test_auto_on_a_gpu_takes_the_fast_encoder_only_where_it_agrees(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_lively(CONFIG)

    def encode(images: Tensor) -> Tensor:
        if fault == "no answer":
            raise RuntimeError("no kernel image is available")
        found: Tensor = model(images)
        return {"another answer": found.roll(1, dims=1), "not a number": found * torch.nan}.get(fault, found)

    encoder: Any = encode
    assert fast._agrees(encoder, model) == (fault == "none")
    assert ("as it stands" in caplog.text) == (fault != "none")
    monkeypatch.setattr(fast, "has_bfloat16_units", lambda device: True)
    monkeypatch.setattr(fast, "FastEncoder", lambda *_, **__: encoder)
    monkeypatch.setattr(fast, "_agrees", lambda *_: fault == "none")
    on_cuda: Any = PretendedModel("cuda")
    assert choose_encoder(on_cuda, "auto") is (encoder if fault == "none" else on_cuda)


def test_auto_is_plain_where_no_one_has_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choose("auto", "mps", (9, 0), monkeypatch) is None
    monkeypatch.undo()
    monkeypatch.setattr(torch.version, "cuda", None)  # another maker's devices are also called cuda
    assert not acceleration.has_bfloat16_units(torch.device("cuda"))


def test_a_pair_alone_is_not_captured_and_no_graph_is_huge() -> None:
    assert PATIENT.after == 2
    assert PATIENT.max_pixels is not None
    assert 640 * 480 < PATIENT.max_pixels < 2048 * 2048


@pytest.mark.parametrize(("device", "engine"), [("cpu", "auto"), ("cuda:1", "plain"), ("mps", "plain")])
def test_engine_for_figures_computes_in_float32(device: str, engine: str) -> None:
    assert choose_exact_engine(device) == engine
    assert choose_exact_engine(torch.device(device)) == engine


def test_programs_are_made_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_ready in (False, True):
        monkeypatch.setattr(acceleration, "_is_ready", is_ready)
        assert acceleration.has_kernels() is is_ready
        with acceleration.without_fused():
            assert not acceleration.has_kernels()


class PretendedGraph:
    """Runs the network again when it is replayed."""

    def __init__(self, encoder: FastEncoder, images: Tensor, descriptors: Tensor) -> None:
        self._encoder, self._images, self._descriptors = encoder, images, descriptors

    def replay(self) -> None:
        self._descriptors.copy_(self._encoder.network(self._images))


@torch.no_grad()
def _pretend(encoder: FastEncoder, policy: CapturePolicy, can_capture: bool = True) -> list[int]:
    """Makes an encoder on a processor behave as on a GPU; the list grows with each capture."""
    widths: list[int] = []

    def record(images: Tensor) -> Captured:
        widths.append(images.shape[-1])
        if not can_capture:
            raise RuntimeError("CUDA out of memory")
        static = images.clone()
        descriptors = torch.empty_like(encoder.network(static))
        return Captured(PretendedGraph(encoder, static, descriptors), static, descriptors)

    encoder._captures = Captures(record, policy)
    return widths


@pytest.mark.parametrize("can_capture", [True, False])
@torch.no_grad()
def test_descriptors_are_the_same_captured_or_not(can_capture: bool) -> None:
    model = make_lively(CONFIG)
    encoder = FastEncoder(model)
    widths = _pretend(encoder, CapturePolicy(after=1), can_capture)
    generator = torch.Generator().manual_seed(0)
    for width in (40, 52, 40, 40, 52):
        images = torch.rand(1, 3, 41, width, generator=generator)
        found = encoder.encode(images)
        torch.testing.assert_close(found.features, model(images), rtol=0, atol=2e-5)
    assert widths == ([40, 52] if can_capture else [40])
    assert encoder(torch.zeros(0, 3, 41, 40)).shape == (0, 8, 10, 10)


@torch.no_grad()
def test_settings_of_the_caller_do_not_matter_and_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = FastEncoder(make_lively(CONFIG))
    _pretend(encoder, CapturePolicy(after=99))
    encoder._use_search = False
    seen: list[bool] = []
    run, describe = encoder._run, encoder._describe

    def watch(images: Tensor) -> Tensor:
        seen.append(torch.backends.cudnn.benchmark)
        return run(images)

    def watch_part(images: Tensor) -> Tensor:
        seen.append(torch.backends.cudnn.benchmark)
        return describe(images)

    encoder._run, encoder._describe = watch, watch_part
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    encoder(torch.rand(1, 3, 40, 40))
    encoder.describe(torch.rand(1, 3, 40, 40))
    assert seen == [False, False]
    assert torch.backends.cudnn.benchmark


def test_a_processor_captures_nothing() -> None:
    with pytest.raises(RuntimeError, match="only a network on a CUDA device can be captured"):
        FastEncoder(make_lively(CONFIG)).capture(torch.rand(1, 3, 40, 40))
