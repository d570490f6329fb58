"""The CUDA engine against the reference: descriptors, matches; graphs change nothing."""

import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from support.network_cases import make_lively
from ucn.bench.samples import read_example_images
from ucn.config import MatchConfig, ModelConfig
from ucn.matching.matcher import Matcher
from ucn.nn.cuda.encoder import CudaEncoder
from ucn.nn.cuda.graphs import LAZY_CAPTURE, CapturedGraph
from ucn.nn.encoder import choose_encoder
from ucn.runtime.kernels import has_bfloat16_units

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and not has_bfloat16_units(DEVICE),
        reason="needs a CUDA device with fast bfloat16",
    ),
]


def _count_graphs(encoder: CudaEncoder) -> int:
    return len(encoder._graphs._graphs)


@pytest.fixture(scope="module")
def pair() -> Tensor:
    return read_example_images((480, 640), torch.device("cpu"))


@pytest.fixture(scope="module")
def matchers() -> dict[str, Matcher]:
    return {
        engine: Matcher.from_pretrained("geometric", config=MatchConfig(), device="cuda", engine=engine)
        for engine in ("auto", "plain")
    }


def test_auto_takes_the_fast_encoder(matchers: dict[str, Matcher]) -> None:
    encoder = matchers["auto"]._encoder
    assert isinstance(encoder, CudaEncoder)
    assert next(encoder.network.trunk.parameters()).dtype == torch.bfloat16
    assert not isinstance(matchers["plain"]._encoder, CudaEncoder)


def test_descriptors_are_near_those_of_float32(matchers: dict[str, Matcher], pair: Tensor) -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = matchers["plain"].encode(pair).features
    found = matchers["auto"].encode(pair).features
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones_like(found[:, 0]), rtol=0, atol=1e-5)
    # On a CPU bfloat16 gives 0.006 and 0.9998.
    assert float((found - expected).abs().max()) <= 0.03
    assert float((found * expected).sum(dim=1).min()) >= 0.995


def test_matches_are_the_same(matchers: dict[str, Matcher], pair: Tensor) -> None:
    found, expected = (matchers[engine].match(*pair) for engine in ("auto", "plain"))
    places = {tuple(start): end for start, end in zip(found.points0.tolist(), found.points1, strict=True)}
    errors = [
        float(np.hypot(*(end - places[tuple(start)]))) if tuple(start) in places else np.inf
        for start, end in zip(expected.points0.tolist(), expected.points1, strict=True)
    ]
    assert len(expected) > 1000
    assert np.mean(np.array(errors) <= 1.0) >= 0.99


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(dim=16, head_norm="batch"),
        ModelConfig(dim=16, transformer="none", context_layers=1),
        ModelConfig(dim=16, transformer="none", semantic_dim=12),
    ],
    ids=["transformer", "context", "semantic"],
)
def test_a_graph_changes_no_bit(config: ModelConfig) -> None:
    encoder = CudaEncoder(make_lively(config).to(DEVICE), use_compiler=False, policy=LAZY_CAPTURE)
    images = torch.rand(1, 3, 141, 203, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = [encoder(images) for _ in range(5)]  # the third is captured
    assert _count_graphs(encoder) == 1
    for other in found[1:]:
        assert torch.equal(other, found[0])


def test_images_of_any_size_and_of_inference_mode(matchers: dict[str, Matcher], pair: Tensor) -> None:
    for height, width in ((32, 32), (97, 33), (200, 321)):
        part = pair[:1, :, :height, :width].contiguous()
        expected = matchers["plain"].encode(part).features
        for turn in range(4):
            with torch.inference_mode(turn % 2 == 0):
                found = matchers["auto"].encode(part).features
            assert float((found * expected).sum(dim=1).mean()) >= 0.999


def test_large_images_go_in_tiles(matchers: dict[str, Matcher]) -> None:
    image = torch.rand(1, 3, 300, 2400, generator=torch.Generator().manual_seed(0))
    found, expected = (matchers[engine].encode(image).features for engine in ("auto", "plain"))
    assert float((found * expected).sum(dim=1).mean()) >= 0.99


def test_a_failed_capture_restores_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = CudaEncoder(make_lively(ModelConfig(dim=8)).to(DEVICE), use_compiler=False, policy=LAZY_CAPTURE)
    images = torch.rand(1, 3, 64, 64, device=DEVICE)
    expected, stream = encoder(images), torch.cuda.current_stream()
    run = encoder._run

    def run_out_of_memory(given: Tensor) -> Tensor:
        found = run(given)
        if torch.cuda.is_current_stream_capturing():
            raise torch.cuda.OutOfMemoryError("pretended")
        return found

    monkeypatch.setattr(encoder, "_run", run_out_of_memory)
    for _ in range(3):
        assert torch.equal(encoder(images), expected)
    assert _count_graphs(encoder) == 0
    assert torch.cuda.current_stream() == stream


def test_another_thread_may_work_meanwhile() -> None:
    encoder = CudaEncoder(make_lively(ModelConfig(dim=8)).to(DEVICE), use_compiler=False, policy=LAZY_CAPTURE)
    stop, faults = threading.Event(), list[Exception]()

    def allocate() -> None:
        size = 1
        while not stop.is_set():
            try:
                torch.zeros(size * 100_000, device=DEVICE).sum().item()
            except Exception as error:
                faults.append(error)
                return
            size = size % 50 + 1

    other = threading.Thread(target=allocate)
    other.start()
    try:
        for width in (64, 96, 128, 160):
            for _ in range(4):
                encoder(torch.rand(1, 3, 64, width, device=DEVICE))
    finally:
        stop.set()
        other.join(timeout=30)
    assert faults == []


def test_an_explicit_capture_can_be_replayed() -> None:
    encoder = CudaEncoder(make_lively(ModelConfig(dim=8)).to(DEVICE), use_compiler=False, policy=LAZY_CAPTURE)
    images = torch.rand(2, 3, 64, 80, device=DEVICE)
    captured = encoder.capture(images)
    assert isinstance(captured, CapturedGraph)
    captured.images.copy_(images)
    captured.graph.replay()
    assert torch.equal(captured.descriptors, encoder(images))


@pytest.mark.filterwarnings("ignore:.*deprecated")  # torch.compile imports deprecated parts of torch
@pytest.mark.parametrize("use_compiler", [False, True])
@torch.no_grad()
def test_fast_is_compared_with_the_reference(use_compiler: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = make_lively(ModelConfig(dim=16, context_layers=1)).to(DEVICE)
    encoder = choose_encoder(model, "fast", use_compiler=use_compiler)
    assert isinstance(encoder, CudaEncoder)
    assert not [record for record in caplog.records if record.name.startswith("ucn")]
    assert _count_graphs(encoder) == 0  # the comparison takes no graph
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    cosines = (encoder(image) * model.encode(image).features).sum(dim=1)
    assert float(cosines.min()) >= 0.99


@torch.no_grad()
def test_a_changed_module_is_never_ignored() -> None:
    model = make_lively(ModelConfig(dim=16)).to(DEVICE)
    setattr(model, "projection", torch.nn.Sequential(model.projection, torch.nn.ReLU()))  # noqa: B010
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    encoder = choose_encoder(model, "auto")
    cosines = (encoder.encode(image).features * model.encode(image).features).sum(dim=1)
    assert float(cosines.min()) >= 0.99
