import pytest
import torch
from torch import nn

from ucn.config import ModelConfig
from ucn.errors import ConfigError
from ucn.nn import build_model
from ucn.nn.context import POOL, WIDTH, ContextBranch


def make_plain_branch(channels: int) -> ContextBranch:
    """A branch that only pools and grows back: entry and exit pass the first channels on."""
    branch = ContextBranch(channels, channels, 0, 1, nn.BatchNorm2d)
    with torch.no_grad():
        for layer in (branch.entry, branch.exit):
            layer.weight.zero_()
            layer.weight[: min(channels, WIDTH), : min(channels, WIDTH), 0, 0] = torch.eye(channels)
            assert layer.bias is not None
            layer.bias.zero_()
    return branch


def test_pooled_cells_lie_in_the_middle_of_what_they_pooled() -> None:
    # On a ramp the mean of four cells is the ramp at their middle, and growing back is exact between middles.
    ramp = torch.arange(16.0).expand(1, 1, 8, 16)
    grown = make_plain_branch(1)(ramp)
    torch.testing.assert_close(grown[0, 0, 0, 2:14], ramp[0, 0, 0, 2:14])


@pytest.mark.parametrize("size_hw", [(1, 1), (3, 5), (4, 9), (7, 6)])
def test_a_constant_stays_constant_at_odd_sizes(size_hw: tuple[int, int]) -> None:
    constant = torch.full((2, 3, *size_hw), 2.5)
    torch.testing.assert_close(make_plain_branch(3)(constant), constant)


def test_a_new_network_is_what_it_would_be_without() -> None:
    plain, with_context = (build_model(ModelConfig(dim=8, context_layers=n)).eval() for n in (0, 2))
    for name, value in plain.state_dict().items():
        with_context.state_dict()[name].copy_(value)
    image = torch.rand(1, 3, 40, 56, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(plain(image), with_context(image))


def test_gradients() -> None:
    branch = ContextBranch(2, 3, 1, 1, nn.Identity).double()
    for number, parameter in enumerate(branch.parameters()):
        nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(number))
    x = torch.randn(1, 2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    assert torch.autograd.gradcheck(branch, x.requires_grad_())


def randomise(module: nn.Module) -> None:
    """Gives every weight a value of its own, so that nothing is cancelled or zero."""
    for number, parameter in enumerate(module.parameters()):
        nn.init.uniform_(parameter, 0.01, 0.02, generator=torch.Generator().manual_seed(number))


def measure_reach(branch: ContextBranch, size: int) -> int:
    """How many cells away from a cell, at most, what it gets is changed by a cell, along one axis."""
    features = torch.ones(1, 1, 1, size, dtype=torch.float64, requires_grad=True)
    grown = branch.double()(features)[0, 0, 0]
    reach = 0
    for cell in range(size // 2 - 4, size // 2 + 4):  # all places within a pooled cell
        (gradient,) = torch.autograd.grad(grown[cell], features, retain_graph=True)
        touched = gradient[0, 0, 0].nonzero().flatten()
        reach = max(reach, int(touched.max()) - cell, cell - int(touched.min()))
    return reach


@pytest.mark.parametrize(
    ("layers", "dilation", "expected"),
    # Spacings of 1, 1, 1; of 1, 2, 4; of 1, 3; of 1, 4, 16; none; of 1: each of 4 cells. Five more cells are
    # the way from a cell to the far edge of the next pooled cell, by which it is interpolated.
    [(3, 1, 17), (3, 2, 33), (2, 3, 21), (3, 4, 89), (0, 1, 5), (1, 4, 9)],
)
def test_the_reach_is_that_of_the_gradient(layers: int, dilation: int, expected: int) -> None:
    branch = ContextBranch(1, 1, layers, dilation, nn.Identity)
    randomise(branch)
    reach = measure_reach(branch, 240)
    assert reach == expected
    # What the branch declares is whole pooled cells.
    assert branch.reach_cells - POOL < reach <= branch.reach_cells


@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_a_dilated_branch_looks_at_cells_so_far_apart(dilation: int) -> None:
    # One convolution after another, written out as sums over shifted maps.
    branch = ContextBranch(2, 3, 3, dilation, nn.Identity).double()
    randomise(branch)
    pooled = torch.rand(1, WIDTH, 9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for layer, convolution in enumerate(branch.convolutions):
        assert isinstance(convolution, nn.Conv2d) and convolution.bias is not None
        spacing = dilation**layer
        padded = torch.zeros(1, WIDTH, 9 + 2 * spacing, 11 + 2 * spacing, dtype=torch.float64)
        padded[..., spacing:-spacing, spacing:-spacing] = pooled
        expected = convolution.bias.view(1, -1, 1, 1).expand(1, -1, 9, 11).clone()
        for row in range(3):
            for column in range(3):
                shifted = padded[
                    ..., row * spacing : row * spacing + 9, column * spacing : column * spacing + 11
                ]
                weights = convolution.weight[:, :, row, column]
                expected += torch.einsum("oc,bchw->bohw", weights, shifted)
        torch.testing.assert_close(convolution(pooled), expected)


def test_dilation_changes_no_weights() -> None:
    plain, dilated = (ContextBranch(4, 5, 3, dilation, nn.BatchNorm2d) for dilation in (1, 2))
    assert {n: p.shape for n, p in plain.state_dict().items()} == {
        n: p.shape for n, p in dilated.state_dict().items()
    }


def test_the_network_reaches_as_far_as_its_parts() -> None:
    near, far = (
        build_model(ModelConfig(dim=8, transformer="none", context_layers=3, context_dilation=dilation))
        for dilation in (1, 2)
    )
    # Four more pooled cells of 4 cells of 4 pixels.
    assert far.reach - near.reach == 4 * POOL * 4
    assert near.context is not None and near.reach == near.trunk.reach + near.context.reach_cells * 4


@pytest.mark.parametrize("size_hw", [(1, 1), (3, 5), (9, 4)])
def test_a_dilated_branch_takes_maps_smaller_than_its_reach(size_hw: tuple[int, int]) -> None:
    branch = ContextBranch(3, 4, 3, 4, nn.BatchNorm2d).eval()
    randomise(branch)
    grown = branch(torch.rand(2, 3, *size_hw))
    assert grown.shape == (2, 4, *size_hw) and grown.isfinite().all()


def test_settings_are_checked() -> None:
    for dilation in (0, 5):
        with pytest.raises(ConfigError, match=rf"context_dilation must be in \[1, 4\], got {dilation}"):
            ModelConfig(context_dilation=dilation)
    for layers, dilation in ((4, 4), (6, 2), (4, 3)):
        with pytest.raises(ConfigError, match=r"context_dilation must give at most 16 when raised to the"):
            ModelConfig(context_layers=layers, context_dilation=dilation)
    for layers, dilation in ((3, 4), (5, 2), (3, 3), (8, 1), (0, 4)):
        ModelConfig(context_layers=layers, context_dilation=dilation)
    with pytest.raises(ConfigError, match=r"context_layers must be in \[0, 8\], got 9"):
        ModelConfig(context_layers=9)
    with pytest.raises(
        ConfigError, match="context_layers must be 0 where the strides multiply to more than 8"
    ):
        ModelConfig(strides=(2, 2, 2, 2), context_layers=1)
