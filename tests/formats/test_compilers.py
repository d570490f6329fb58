"""torch's own compilers take the network whole, and give what it gives."""

import pytest
import torch
from torch.export import Dim

from ucn.config import ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model


@pytest.fixture(scope="module")
def model() -> CorrespondenceNetwork:
    return build_model(ModelConfig(dim=8, levels=2)).eval()


def make_images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@torch.no_grad()
def test_compile_takes_the_network_whole(model: CorrespondenceNetwork) -> None:
    torch.compiler.reset()
    # Without graph breaks, and without a C++ compiler, which not every machine has.
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    images = make_images(1, 3, 40, 52)
    torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.slow
@torch.no_grad()
def test_export_holds_for_other_sizes() -> None:
    model = build_model(ModelConfig(dim=8)).eval()
    sizes = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    program = torch.export.export(model, (make_images(2, 3, 45, 59),), dynamic_shapes=sizes)
    for shape in ((2, 3, 45, 59), (1, 3, 64, 37), (3, 3, 50, 80)):
        images = make_images(*shape)
        torch.testing.assert_close(program.module()(images), model(images))
