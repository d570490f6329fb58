"""A copy of a network for use alone: constants folded, convolutions of one input joined, one type."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.context import ContextBranch
from ucn.nn.googlenet import GoogLeNetTrunk, Inception
from ucn.nn.lite import NormedConvolution, ResidualUnit
from ucn.nn.model import CorrespondenceNetwork
from ucn.nn.pyramid import CoarseLevel
from ucn.nn.transformer import ConvolutionalSpatialTransformer
from ucn.nn.trunk_layers import max_pool


class TypedConvolution(nn.Conv2d):
    """A convolution that brings its input to the type of its weights."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) of any float type to the type of the weights."""
        return super().forward(input.to(self.weight.dtype))


class JoinedInception(nn.Module):
    """An inception block whose three 1×1 convolutions of the same input are one."""

    def __init__(self, block: Inception) -> None:
        super().__init__()
        parts = [block.conv_1x1, block.reduce_3x3, block.reduce_5x5]
        self.widths = [part.out_channels for part in parts]
        self.entry = nn.Conv2d(parts[0].in_channels, sum(self.widths), 1)
        self.entry.weight = nn.Parameter(torch.cat([part.weight for part in parts]))
        self.entry.bias = nn.Parameter(torch.cat([_bias(part) for part in parts]))
        self.conv_3x3, self.conv_5x5 = block.conv_3x3, block.conv_5x5
        self.pool_projection = block.pool_projection

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to (B, sum of branch channels, h, w)."""
        own, reduced_3x3, reduced_5x5 = torch.split(F.relu(self.entry(x)), self.widths, dim=1)
        branches = [
            self.conv_3x3(reduced_3x3),
            self.conv_5x5(reduced_5x5),
            self.pool_projection(max_pool(x, 1)),
        ]
        return torch.cat([own, *(F.relu(branch) for branch in branches)], dim=1)


class QuarteredConvolution(nn.Module):
    """The 7×7 convolution of stride 2 over 3 colours, as one of 4×4 and stride 1 over squares of 2×2 pixels.

    Tensor cores multiply blocks of 8 or 16 channels at a time, of which 3 colours would leave most empty. The
    kernel gets a row and a column of zeros first, and the 12 channels of a square 4 of zeros behind them.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        kernel = F.pad(convolution.weight, (1, 0, 1, 0))  # (C', 3, 8, 8)
        squares = F.pixel_unshuffle(kernel, 2)  # (C', 12, 4, 4)
        self.convolution = nn.Conv2d(16, convolution.out_channels, 4)
        self.convolution.weight = nn.Parameter(F.pad(squares, (0, 0, 0, 0, 0, 4)), requires_grad=False)
        self.convolution.bias = nn.Parameter(_bias(convolution), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, C', H / 2, W / 2), rounded up."""
        height, width = x.shape[-2:]
        padded = F.pad(x, (4, 2 + width % 2, 4, 2 + height % 2))
        return self.convolution(F.pad(F.pixel_unshuffle(padded, 2), (0, 0, 0, 0, 0, 4)))  # type: ignore[no-any-return]


@torch.no_grad()
def fold(
    model: CorrespondenceNetwork, dtype: torch.dtype, *, for_tensor_cores: bool = False
) -> CorrespondenceNetwork:
    """A copy that computes the same descriptors, for use without gradients, in channels-last memory.

    Batch norms go into the convolutions beside them. Weights get the given type, and so do activations, but
    for norms and the descriptors, which stay in float32. The copy is not for training or saving.

    Args:
        model: stays as it is.
        dtype: float32, bfloat16 or float16.
        for_tensor_cores: give the first convolution the form that they are quick at; a processor is not.
    """
    folded = copy.deepcopy(model).eval()
    folded.requires_grad_(False)
    if isinstance(folded.trunk, GoogLeNetTrunk):
        if for_tensor_cores and folded.trunk.conv1.stride == (2, 2):
            setattr(folded.trunk, "conv1", QuarteredConvolution(folded.trunk.conv1))  # noqa: B010
        for block in ("inception_3a", "inception_3b", "inception_4a"):
            setattr(folded.trunk, block, JoinedInception(getattr(folded.trunk, block)))
    _fold_head(folded)
    for module in folded.modules():
        if isinstance(module, NormedConvolution) and isinstance(module.norm, nn.BatchNorm2d):
            _fold_behind(module.convolution, module.norm)
            module.norm = nn.Identity()
        if isinstance(module, ContextBranch):
            for index, norm in enumerate(module.norms):
                if isinstance(norm, nn.BatchNorm2d):
                    _fold_behind(module.convolutions[index], norm)
                    module.norms[index] = nn.Identity()
        if isinstance(module, CoarseLevel) and isinstance(module.norm, nn.BatchNorm2d):
            _fold_before(module.projection, module.norm)
            module.norm = nn.Identity()
    for module in folded.modules():
        # After the norms, which the sum goes round; beside a 1 half types would round the kernel away.
        if isinstance(module, ResidualUnit) and dtype == torch.float32:
            nn.init.dirac_(identity := torch.empty_like(module.body.convolution.weight))
            module.body.convolution.weight += identity
            module.has_sum = False
        if isinstance(module, nn.Conv2d):
            module.__class__ = TypedConvolution
        if isinstance(module, (nn.Conv2d, ConvolutionalSpatialTransformer)):
            module.weight.data = module.weight.to(dtype, memory_format=torch.channels_last)
            if module.bias is not None:
                module.bias.data = module.bias.to(dtype)
    return folded


def _fold_head(model: CorrespondenceNetwork) -> None:
    """The norm of the head goes into all convolutions that read it, where there are such."""
    if not isinstance(model.head_norm, nn.BatchNorm2d) or not isinstance(model.projection, nn.Conv2d):
        return
    _fold_before(model.projection, model.head_norm)
    if model.context is not None:
        _fold_before(model.context.entry, model.head_norm)
    model.head_norm = nn.Identity()


def _bias(convolution: nn.Conv2d) -> Tensor:
    if convolution.bias is None:
        return convolution.weight.new_zeros(convolution.out_channels)
    return convolution.bias


def _scale_and_shift(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """What a norm in use does, in float64: x * scale + shift."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()
    return scale, norm.bias.double() - norm.running_mean.double() * scale


def _fold_before(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    """A norm before a 1×1 convolution; larger ones pad with zeros, which a norm would have moved."""
    scale, shift = _scale_and_shift(norm)
    weight = convolution.weight.double()
    bias = _bias(convolution).double() + (weight[:, :, 0, 0] * shift).sum(dim=1)
    convolution.weight = nn.Parameter((weight * scale.view(1, -1, 1, 1)).float(), requires_grad=False)
    convolution.bias = nn.Parameter(bias.float(), requires_grad=False)


def _fold_behind(convolution: nn.Module, norm: nn.BatchNorm2d) -> None:
    """A norm behind a convolution."""
    assert isinstance(convolution, nn.Conv2d)
    scale, shift = _scale_and_shift(norm)
    weight = convolution.weight.double() * scale.view(-1, 1, 1, 1)
    bias = _bias(convolution).double() * scale + shift
    convolution.weight = nn.Parameter(weight.float(), requires_grad=False)
    convolution.bias = nn.Parameter(bias.float(), requires_grad=False)
