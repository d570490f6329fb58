import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import ModelConfig
from ucn.nn import ConvolutionalSpatialTransformer, build_model
from ucn.nn.transformer import transform_and_convolve


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _away_from_identity(batch: int, h: int, w: int, seed: int = 1) -> Tensor:
    identity = torch.tensor([1.0, 0, 0, 1], dtype=torch.float64).view(1, 4, 1, 1)
    return identity + 0.2 * _random(batch, 4, h, w, seed=seed)


def _slow_reference(x: Tensor, theta: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Loops over the paper's equations: V = Σ_n Σ_m U_nm max(0, 1 - |x_s - m|) max(0, 1 - |y_s - n|)."""
    batch, channels, h, w = x.shape
    out_channels, _, k, _ = weight.shape
    out = bias.view(1, -1, 1, 1).repeat(batch, 1, h, w)
    for b in range(batch):
        for row in range(h):
            for column in range(w):
                (t11, t12), (t21, t22) = theta[b, :, row, column].view(2, 2).tolist()
                for i in range(k):
                    for j in range(k):
                        xt, yt = j - k // 2, i - k // 2
                        xs, ys = column + t11 * xt + t12 * yt, row + t21 * xt + t22 * yt
                        value = torch.zeros(channels, dtype=x.dtype)
                        for n in range(math.floor(ys), math.floor(ys) + 2):
                            for m in range(math.floor(xs), math.floor(xs) + 2):
                                if 0 <= n < h and 0 <= m < w:
                                    value += x[b, :, n, m] * max(0, 1 - abs(xs - m)) * max(0, 1 - abs(ys - n))
                        out[b, :, row, column] += weight[:, :, i, j] @ value
    assert out.shape == (batch, out_channels, h, w)
    return out


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("size", [(5, 7), (1, 1)])
def test_equals_a_loop_over_the_papers_equations(kernel: int, size: tuple[int, int]) -> None:
    x, theta = _random(2, 3, *size), _away_from_identity(2, *size)
    weight, bias = _random(4, 3, kernel, kernel, seed=2), _random(4, seed=3)
    torch.testing.assert_close(
        transform_and_convolve(x, theta, weight, bias), _slow_reference(x, theta, weight, bias)
    )


def test_quarter_turn_by_hand() -> None:
    # θ turns offsets by 90°: (x, y) reads at (-y, x). A kernel's only tap, at (1, 0), then reads at (0, 1).
    x = torch.arange(9.0).view(1, 1, 3, 3)
    theta = torch.tensor([0.0, -1, 1, 0]).view(1, 4, 1, 1).expand(1, 4, 3, 3)
    weight = torch.zeros(1, 1, 3, 3)
    weight[0, 0, 1, 2] = 1
    assert transform_and_convolve(x, theta, weight, None)[0, 0].tolist() == [[3, 4, 5], [6, 7, 8], [0, 0, 0]]


@pytest.mark.parametrize("kernel", [3, 5])
def test_starts_as_an_ordinary_convolution_borders_included(kernel: int) -> None:
    layer = ConvolutionalSpatialTransformer(6, 4, kernel).double()
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(1))
    layer.initialise_as_convolution()
    x = _random(2, 6, 9, 11)
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias, padding=kernel // 2))


def test_gradients_away_from_the_identity() -> None:
    inputs = [
        _random(2, 2, 4, 5),
        _away_from_identity(2, 4, 5),
        _random(3, 2, 3, 3, seed=2),
        _random(3, seed=3),
    ]
    for tensor in inputs:
        tensor.requires_grad_(True)
    assert torch.autograd.gradcheck(transform_and_convolve, inputs)


def test_gradients_of_the_whole_layer() -> None:
    layer = ConvolutionalSpatialTransformer(2, 3, 3).double()
    for index, parameter in enumerate(layer.parameters()):
        torch.nn.init.normal_(parameter, std=0.15, generator=torch.Generator().manual_seed(index))
    x = _random(1, 2, 4, 4).requires_grad_(True)
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


def test_equals_deformable_convolution_where_torchvision_is_installed() -> None:
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not a dependency of ucn")
    x, theta = _random(2, 3, 6, 7), _away_from_identity(2, 6, 7)
    weight, bias = _random(4, 3, 3, 3, seed=2), _random(4, seed=3)
    offsets = []
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            t11, t12, t21, t22 = theta.unbind(1)
            offsets += [t21 * j + t22 * i - i, t11 * j + t12 * i - j]  # deform_conv2d wants dy, dx
    expected = ops.deform_conv2d(x, torch.stack(offsets, dim=1), weight, bias, padding=1)
    torch.testing.assert_close(transform_and_convolve(x, theta, weight, bias), expected)


def test_even_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="kernel must be odd and positive, got 4"):
        ConvolutionalSpatialTransformer(2, 2, 4)


def test_in_branch_network_starts_equal_to_the_plain_one() -> None:
    plain = build_model(ModelConfig(transformer="none"))
    branch = build_model(ModelConfig(transformer="in_branch"))
    missing = branch.load_state_dict(plain.state_dict(), strict=False)
    assert not missing.unexpected_keys
    assert all("localiser" in key for key in missing.missing_keys)
    image = torch.rand(1, 3, 40, 52, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(branch(image), plain(image), atol=1e-4, rtol=0)
