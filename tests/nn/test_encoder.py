"""Which encoder an engine takes on which device; the comparison with the reference; graphs without a GPU."""

import copy
import logging
import re
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.network_cases import make_lively
from ucn.config import ModelConfig
from ucn.nn import encoder as door
from ucn.nn.cpu.bands import cut_bands
from ucn.nn.cpu.encoder import CpuEncoder
from ucn.nn.cpu.lite import BandedLite
from ucn.nn.cuda.encoder import CudaEncoder
from ucn.nn.cuda.graphs import LAZY_CAPTURE, CapturedGraph, CapturePolicy, GraphCache
from ucn.nn.encoder import ReferenceEncoder, choose_encoder, choose_exact_engine
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.lite import LiteTrunk
from ucn.nn.model import CorrespondenceNetwork
from ucn.runtime import kernels

CONFIG = ModelConfig(dim=8, transformer="none")
CONFIGS = {
    "googlenet": CONFIG,
    "transformer": ModelConfig(dim=8, head_norm="batch"),
    "context and levels": ModelConfig(dim=8, context_layers=1, levels=2, use_standard_light=True),
    "semantic": ModelConfig(dim=8, transformer="none", semantic_dim=6),
    "folded": ModelConfig(dim=None, strides=(2, 2, 2, 1)),
    "lite": ModelConfig(dim=8, trunk="lite", transformer="none", head_norm="none"),
}


class FakeModel:
    """A network that claims to be on some device."""

    stride, offset, reach, semantic_dim = 4, 1.5, 100, 0

    def __init__(self, device: str) -> None:
        self._parameter = type("Parameter", (), {"device": torch.device(device)})()

    def parameters(self) -> Any:
        return iter([self._parameter])


def _choose(
    engine: str, device: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, dict[str, Any]] | None:
    """The class and the options of the chosen encoder; None for the reference."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    for module in ("cpu.encoder.CpuEncoder", "cuda.encoder.CudaEncoder", "encoder.FoldedEncoder"):
        name = module.rpartition(".")[2]
        monkeypatch.setattr(f"ucn.nn.{module}", lambda model, name=name, **options: (name, options))
    monkeypatch.setattr(door, "_find_change", lambda model: None)
    monkeypatch.setattr(door, "_find_difference", lambda encoder, model: None)
    model: Any = FakeModel(device)
    found: Any = choose_encoder(model, engine)  # type: ignore[arg-type]
    if device.startswith("cuda") and isinstance(found, ReferenceEncoder):
        return None
    return None if found is model else found


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps"])
def test_plain_is_the_network_and_fast_never_is(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choose("plain", device, (9, 0), monkeypatch) is None
    found = _choose("fast", device, (9, 0), monkeypatch)
    assert found is not None
    assert found[0] == {"cpu": "CpuEncoder", "cuda:0": "CudaEncoder", "mps": "FoldedEncoder"}[device]
    assert found[1] == ({"use_compiler": None} if device == "cuda:0" else {})


def test_auto_is_fast_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choose("auto", "cpu", (0, 0), monkeypatch) == ("CpuEncoder", {})


@pytest.mark.parametrize(("capability", "is_fast"), [((9, 0), True), ((8, 0), True), ((7, 5), False)])
def test_auto_on_a_gpu_never_compiles(
    capability: tuple[int, int], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _choose("auto", "cuda", capability, monkeypatch)
    expected = ("CudaEncoder", {"use_compiler": False, "policy": LAZY_CAPTURE})
    assert found == (expected if is_fast else None)


def test_auto_is_plain_where_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choose("auto", "mps", (9, 0), monkeypatch) is None
    monkeypatch.undo()
    monkeypatch.setattr(torch.version, "cuda", None)  # ROCm devices are also called cuda
    assert not kernels.has_bfloat16_units(torch.device("cuda"))


@pytest.mark.parametrize(("device", "engine"), [("cpu", "auto"), ("cuda:1", "plain"), ("mps", "plain")])
def test_exact_engine_computes_in_float32(device: str, engine: str) -> None:
    assert choose_exact_engine(device) == engine
    assert choose_exact_engine(torch.device(device)) == engine


@pytest.mark.parametrize("engine", ["auto", "fast"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_networks_as_built_are_fast_without_a_warning(
    config: ModelConfig, engine: door.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(choose_encoder(make_lively(config), engine), CpuEncoder)
    assert not caplog.records


class Negated(CorrespondenceNetwork):
    def describe(self, images: Tensor) -> Tensor:
        return -super().describe(images)


class Unchanged(CorrespondenceNetwork):
    """What it overrides gives the same on every image that a check could take."""

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = super().forward(images)
        return found if images.shape[-1] < 1000 else -found


class Brightened(CorrespondenceNetwork):
    def prepare(self, images: Tensor) -> Tensor:
        return images + 0.2


class NegatedTrunk(GoogLeNetTrunk):
    def forward(self, images: Tensor) -> Tensor:
        return -super().forward(images)


class NegatedLiteTrunk(LiteTrunk):
    def forward(self, images: Tensor) -> Tensor:
        return -super().forward(images)


class WideTrunk(LiteTrunk):
    """Differs from its base on wide images only, which the image of the comparison does not show."""

    def forward(self, images: Tensor) -> Tensor:
        features = super().forward(images)
        return -features if images.shape[-1] > 700 else features


class Wrapper(nn.Module):
    """A trunk whose features are changed after it."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, images: Tensor) -> Tensor:
        return self.trunk(images).roll(1, dims=-1)  # type: ignore[no-any-return]


def _subclass(model: Any, network: type[CorrespondenceNetwork]) -> None:
    model.__class__ = network


def _replace_describe(model: Any) -> None:
    describe = model.describe
    model.describe = lambda images: -describe(images)


def _replace_trunk_class(model: Any) -> None:
    model.trunk.__class__ = NegatedTrunk if isinstance(model.trunk, GoogLeNetTrunk) else NegatedLiteTrunk


def _replace_convolution(model: Any) -> None:
    name = "conv2" if isinstance(model.trunk, GoogLeNetTrunk) else "stem2"
    setattr(model.trunk, name, nn.Sequential(getattr(model.trunk, name), nn.Tanh()))


def _replace_forward(model: Any) -> None:
    forward = model.trunk.forward
    model.trunk.forward = lambda images: -forward(images)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "subclass with another describe": lambda model: _subclass(model, Negated),
    "subclass with another forward": lambda model: _subclass(model, Unchanged),
    "subclass with another prepare": lambda model: _subclass(model, Brightened),
    "describe set on the instance": _replace_describe,
    "trunk's forward set on the instance": _replace_forward,
    "subclass of the trunk": _replace_trunk_class,
    "layer of the trunk": _replace_convolution,
    "wrapped trunk": lambda model: setattr(model, "trunk", Wrapper(model.trunk)),
    "projection": lambda model: setattr(model, "projection", nn.Sequential(model.projection, nn.Tanh())),
    "3×3 projection": lambda model: (
        setattr(model, "projection", nn.Conv2d(64, 8, 3, padding=1))
        if isinstance(model.trunk, LiteTrunk)
        else setattr(model, "projection", nn.Conv2d(512, 8, 3, padding=1))
    ),
    "hook that changes": lambda model: model.trunk.register_forward_hook(lambda *call: -call[2]),
    "hook that looks": lambda model: model.head_norm.register_forward_hook(lambda *call: None),
    "hook before": lambda model: model.trunk.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 0.2,)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(("name", "engine"), [("googlenet", "auto"), ("lite", "fast")])
@torch.no_grad()
def test_a_changed_network_is_never_ignored(
    name: str,
    change: Callable[[Any], Any],
    engine: door.Engine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make_lively(CONFIGS[name])
    original = copy.deepcopy(model)
    change(model)
    with caplog.at_level(logging.WARNING):
        encoder = choose_encoder(model, engine)
    images = torch.rand(1, 3, 45, 1001, generator=torch.Generator().manual_seed(3))
    expected = model.encode(images).features
    torch.testing.assert_close(encoder.encode(images).features, expected, rtol=0, atol=1e-3)
    if change is not CHANGES["hook that looks"]:
        assert (expected - original(images)).abs().max() > 0.01
    if encoder is model:
        (record,) = caplog.records
        assert "the network runs in plain torch, which is slower: its" in record.getMessage()
    else:
        assert not caplog.records


@pytest.mark.parametrize("change", [name for name in CHANGES if "subclass with" in name or "hook" in name])
def test_overridden_methods_and_hooks_take_the_reference(change: str) -> None:
    """Also those that leave the descriptors of a small image as they are."""
    model = make_lively(CONFIGS["lite"])
    CHANGES[change](model)
    assert choose_encoder(model, "auto") is model


def test_a_module_of_another_class_takes_the_reference(caplog: pytest.LogCaptureFixture) -> None:
    model = make_lively(CONFIGS["lite"])
    model.trunk.__class__ = WideTrunk
    assert choose_encoder(model, "auto") is model
    assert "its module 'trunk' is of the class WideTrunk" in caplog.text


def test_the_bands_of_the_lite_network_are_compared_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exact = BandedLite.describe_in_bands
    monkeypatch.setattr(BandedLite, "describe_in_bands", lambda *given, **options: -exact(*given, **options))
    model = make_lively(CONFIGS["lite"])
    assert choose_encoder(model, "auto") is model
    assert "descriptors differ by 2" in caplog.text


def test_the_image_of_the_comparison_has_three_bands() -> None:
    model = make_lively(CONFIG)
    h, w = model(torch.zeros(1, 3, *door._CHECK_HW)).shape[-2:]
    assert cut_bands(h, w) == [(0, 4), (4, 8), (8, 9)]
    assert door._CHECK_HW[0] % 2 == door._CHECK_HW[1] % 2 == w % 2 == 1


class FakeEncoder:
    """An engine with one code path."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        self._run = run

    def list_code_paths(self) -> list[Callable[[Tensor], Tensor]]:
        return [self._run]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("none", ""),
        ("other values", "descriptors differ by .*, expected at most 0.001"),
        ("other lengths", "descriptors differ by 1, expected"),
        ("other shape", r"descriptors are \(1, 7, 9, 161\), not \(1, 8, 9, 161\)"),
        ("not a number", "differ by nan, expected"),
        ("failure", "its fast engine fails: no kernel image is available"),
    ],
)
def test_the_fast_engine_is_taken_only_where_it_agrees(
    fault: str, message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_lively(CONFIG)

    def run(images: Tensor) -> Tensor:
        if fault == "failure":
            raise RuntimeError("no kernel image is available")
        found: Tensor = model(images)
        faults = {
            "other values": found.roll(1, dims=1),
            "other lengths": 2 * found,
            "other shape": found[:, 1:],
            "not a number": found * torch.nan,
        }
        return faults.get(fault, found)

    encoder: Any = FakeEncoder(run)
    monkeypatch.setattr("ucn.nn.cpu.encoder.CpuEncoder", lambda model: encoder)
    assert choose_encoder(model, "auto") is (encoder if fault == "none" else model)
    if fault == "none":
        assert not caplog.records
    else:
        (record,) = caplog.records
        assert re.search(message, record.getMessage())


def test_the_callers_autocast_and_default_type_do_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    model = make_lively(CONFIG)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert isinstance(choose_encoder(model, "auto"), CpuEncoder)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not caplog.records


class OnCuda(CorrespondenceNetwork):
    """A network on the CPU that says it is on a CUDA device."""

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        return iter([SimpleNamespace(device=torch.device("cuda"))])


@pytest.mark.parametrize("engine", ["plain", "fast"])
@torch.no_grad()
def test_the_reference_on_cuda_has_no_fused_layers(
    engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In place of a GPU, each layer takes a fused kernel wherever they are on; here it raises."""

    def fuse(*_arguments: object) -> Tensor:
        raise AssertionError("a fused layer")

    def fail(*_arguments: object) -> Any:
        raise RuntimeError("no kernel image is available")

    for layer in ("googlenet", "transformer"):
        monkeypatch.setattr(f"ucn.nn.{layer}._can_fuse", lambda *_: kernels._is_on)
    monkeypatch.setattr("ucn.nn.transformer._fuse", fuse)
    layers = SimpleNamespace(fused_response_norm=fuse, fused_max_pool=fuse)
    monkeypatch.setitem(sys.modules, "ucn.nn.triton.trunk_layers", layers)
    monkeypatch.setattr(door, "_make_fast_encoder", fail)
    model = make_lively(CONFIG)
    images = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    with kernels.without_fused():
        expected = model.encode(images)
    model.__class__ = OnCuda
    with pytest.raises(AssertionError, match="a fused layer"):
        model.encode(images)
    encoder = choose_encoder(model, engine)
    assert isinstance(encoder, ReferenceEncoder)
    assert len(caplog.records) == (engine == "fast")
    found = encoder.encode(images)
    torch.testing.assert_close(found.features, expected.features, rtol=0, atol=0)
    assert (found.stride, found.offset) == (encoder.stride, encoder.offset)
    in_two = encoder.describe(encoder.prepare(images))
    torch.testing.assert_close(in_two, expected.features, rtol=0, atol=0)
    assert kernels._is_on


def test_plain_torch_in_overlapping_threads() -> None:
    first, second = kernels.without_fused(), kernels.without_fused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not kernels._is_on
    second.__exit__(None, None, None)
    assert kernels._is_on


# Graphs, on a CPU, where fake ones take their place.


def test_a_pair_alone_is_not_captured_and_no_graph_is_huge() -> None:
    assert LAZY_CAPTURE.eager_passes == 2
    assert LAZY_CAPTURE.max_pixels is not None and 640 * 480 < LAZY_CAPTURE.max_pixels < 2048 * 2048


def test_kernels_are_compiled_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_ready in (False, True):
        monkeypatch.setattr(kernels, "_is_ready", is_ready)
        assert kernels.has_kernels() is is_ready
        with kernels.without_fused():
            assert not kernels.has_kernels()


class FakeGraph:
    """Runs the network again when it is replayed."""

    def __init__(self, encoder: CudaEncoder, images: Tensor, descriptors: Tensor) -> None:
        self._encoder, self._images, self._descriptors = encoder, images, descriptors

    def replay(self) -> None:
        self._descriptors.copy_(self._encoder.network(self._images))


@torch.no_grad()
def _fake_graphs(encoder: CudaEncoder, policy: CapturePolicy, can_capture: bool = True) -> list[int]:
    """Gives an encoder on a CPU fake graphs; the list grows with each capture."""
    widths: list[int] = []

    def capture(images: Tensor) -> CapturedGraph:
        widths.append(images.shape[-1])
        if not can_capture:
            raise RuntimeError("CUDA out of memory")
        static = images.clone()
        descriptors = torch.empty_like(encoder.network(static))
        return CapturedGraph(FakeGraph(encoder, static, descriptors), static, descriptors)

    encoder._graphs = GraphCache(capture, policy)
    return widths


@pytest.mark.parametrize("can_capture", [True, False])
@torch.no_grad()
def test_descriptors_are_the_same_captured_or_not(can_capture: bool) -> None:
    model = make_lively(CONFIG)
    encoder = CudaEncoder(model, use_compiler=False)
    widths = _fake_graphs(encoder, CapturePolicy(eager_passes=1), can_capture)
    generator = torch.Generator().manual_seed(0)
    for width in (40, 52, 40, 40, 52):
        images = torch.rand(1, 3, 41, width, generator=generator)
        found = encoder.encode(images)
        torch.testing.assert_close(found.features, model(images), rtol=0, atol=2e-5)
    assert widths == ([40, 52] if can_capture else [40])
    assert encoder(torch.zeros(0, 3, 41, 40)).shape == (0, 8, 10, 10)


@torch.no_grad()
def test_settings_of_the_caller_do_not_matter_and_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = CudaEncoder(make_lively(CONFIG), use_compiler=False, policy=CapturePolicy(eager_passes=99))
    seen: list[bool] = []
    run, describe = encoder._run, encoder.network.describe

    def watch(images: Tensor) -> Tensor:
        seen.append(torch.backends.cudnn.benchmark)
        return run(images)

    def watch_tile(images: Tensor) -> Tensor:
        seen.append(torch.backends.cudnn.benchmark)
        return describe(images)

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    encoder._run = watch
    encoder(torch.rand(1, 3, 40, 40))
    monkeypatch.setattr(encoder.network, "describe", watch_tile)
    encoder.describe(torch.rand(1, 3, 40, 40))
    assert seen == [False, False]
    assert torch.backends.cudnn.benchmark


def test_nothing_is_captured_on_a_cpu() -> None:
    encoder = CudaEncoder(make_lively(CONFIG), use_compiler=False)
    with pytest.raises(RuntimeError, match="CUDA graphs need images on a CUDA device, got cpu"):
        encoder.capture(torch.rand(1, 3, 40, 40))
