"""Steps as CUDA graphs: the same steps, sizes that take turns, and nothing left behind by capturing."""

import copy

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from ucn.config import LossConfig, ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.graphs import use_graphs
from ucn.train.step import training_step
from ucn.types import PairBatch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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


def make_steps(model: CorrespondenceNetwork, device: str) -> list[Tensor]:
    """Losses of eight steps, of two sizes by turns."""
    optimiser = SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator(device)
    loss = LossConfig("infonce", radius=6)
    return [
        training_step(
            model, make_batch((64, 96)[step % 2], step, device), loss, optimiser, 1.0, generator, "float32"
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
