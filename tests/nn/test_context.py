import pytest
import torch
from torch import nn

from ucn.config import ModelConfig
from ucn.errors import ConfigError
from ucn.nn import build_model
from ucn.nn.context import WIDTH, ContextBranch


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


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"context_layers must be 0\.\.8, got 9"):
        ModelConfig(context_layers=9)
    with pytest.raises(
        ConfigError, match="context_layers must be 0 where the strides multiply to more than 8"
    ):
        ModelConfig(strides=(2, 2, 2, 2), context_layers=1)
