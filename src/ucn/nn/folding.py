"""Folding: a copy of a network for inference alone, with fewer and larger convolutions.

Batch norms go into the convolutions beside them, the 1×1 convolutions of an inception block become one, and a
residual sum becomes part of its kernel (RepVGG, Ding et al. 2021). All fast engines start from this copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.context import ContextBranch
from ucn.nn.googlenet import GoogLeNetTrunk, Inception, max_pool
from ucn.nn.lite import NormedConvolution, ResidualUnit
from ucn.nn.model import CorrespondenceNetwork, check_images
from ucn.nn.pyramid import CoarseLevel
from ucn.nn.transformer import ConvolutionalSpatialTransformer
from ucn.types import FeatureMap


class FoldedEncoder:
    """Runs a folded copy of a network, in plain torch; the CPU and CUDA engines derive from it.

    The copy is made once: later changes of the network's weights have no effect here.

    Attributes:
        network: the folded copy.
        stride: pixels between neighbouring cells.
        offset: pixel coordinate of cell 0.
        reach: radius in pixels of a cell's receptive field.
        semantic_dim: dimensions of the semantic level.
    """

    def __init__(
        self,
        model: CorrespondenceNetwork,
        dtype: torch.dtype = torch.float32,
        *,
        for_tensor_cores: bool = False,
    ) -> None:
        """Folds a network on the device where it is; see `fold`."""
        self.network = fold(model, dtype, for_tensor_cores=for_tensor_cores)
        self.stride, self.offset, self.reach = model.stride, model.offset, model.reach
        self.semantic_dim = model.semantic_dim

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to unit descriptors (B, D, h, w) in float32."""
        return self.describe(self.prepare(images))

    def encode(self, images: Tensor) -> FeatureMap:
        """As `CorrespondenceNetwork.encode`."""
        check_images(images)
        size_hw = (images.shape[-2], images.shape[-1])
        return FeatureMap(self(images), self.stride, self.offset, size_hw, self.semantic_dim)

    def prepare(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.prepare`."""
        return self.network.prepare(images)

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.describe`."""
        return self.network.describe(images)

    def list_code_paths(self) -> list[Callable[[Tensor], Tensor]]:
        """Every code path from images (B, 3, H, W) to descriptors, to be compared with the reference."""
        return [self]


class CastingConvolution(nn.Conv2d):
    """A convolution that casts its input to the type of its weights."""

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


class SpaceToDepthConvolution(nn.Module):
    """The 7×7 convolution of stride 2 over RGB, as a 4×4 convolution of stride 1 over 2×2 blocks of pixels.

    Tensor cores multiply blocks of 8 or 16 channels; with 3 they would be mostly idle. The kernel is padded
    with a row and a column of zeros to 8×8, and the 12 channels of a 2×2 block with 4 of zeros to 16.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        kernel = F.pad(convolution.weight, (1, 0, 1, 0))  # (C', 3, 8, 8)
        blocks = F.pixel_unshuffle(kernel, 2)  # (C', 12, 4, 4)
        self.convolution = nn.Conv2d(16, convolution.out_channels, 4)
        self.convolution.weight = nn.Parameter(F.pad(blocks, (0, 0, 0, 0, 0, 4)), requires_grad=False)
        self.convolution.bias = nn.Parameter(_bias(convolution), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, C', H / 2, W / 2), rounded up."""
        height, width = x.shape[-2:]
        padded = F.pad(x, (4, 2 + width % 2, 4, 2 + height % 2))
        h, w = padded.shape[-2] // 2, padded.shape[-1] // 2
        # torch's pixel_unshuffle leaves the shape of an empty batch as it is.
        blocks = F.pixel_unshuffle(padded, 2) if len(x) else padded.view(0, 12, h, w)
        return self.convolution(F.pad(blocks, (0, 0, 0, 0, 0, 4)))  # type: ignore[no-any-return]


@torch.no_grad()
def fold(
    model: CorrespondenceNetwork, dtype: torch.dtype, *, for_tensor_cores: bool = False
) -> CorrespondenceNetwork:
    """A copy that computes the same descriptors, without gradients, in channels-last memory.

    Weights and activations get the given type; norms and descriptors stay in float32. The copy is not for
    training or saving.

    Args:
        model: stays as it is.
        dtype: float32, bfloat16 or float16.
        for_tensor_cores: give the first convolution the form in which tensor cores are fast.
    """
    folded = copy.deepcopy(model).eval()
    folded.requires_grad_(False)
    trunks = [folded.trunk, *([] if folded.semantic is None else [folded.semantic.trunk])]
    for trunk in trunks:
        if isinstance(trunk, GoogLeNetTrunk):
            if for_tensor_cores and trunk.conv1.stride == (2, 2):
                setattr(trunk, "conv1", SpaceToDepthConvolution(trunk.conv1))  # noqa: B010
            for block in trunk.blocks:
                setattr(trunk, block, JoinedInception(getattr(trunk, block)))
    _fold_norms(folded)
    for module in folded.modules():
        # Beside a 1, half types would round the kernel away.
        if isinstance(module, ResidualUnit) and dtype == torch.float32:
            nn.init.dirac_(identity := torch.empty_like(module.body.convolution.weight))
            module.body.convolution.weight += identity
            module.has_sum = False
        if type(module) is nn.Conv2d:
            module.__class__ = CastingConvolution
        if isinstance(module, (nn.Conv2d, ConvolutionalSpatialTransformer)):
            module.weight.data = module.weight.to(dtype, memory_format=torch.channels_last)
            if module.bias is not None:
                module.bias.data = module.bias.to(dtype)
    return folded


def _fold_norms(model: CorrespondenceNetwork) -> None:
    if isinstance(model.head_norm, nn.BatchNorm2d) and isinstance(model.projection, nn.Conv2d):
        _fold_norm_before(model.projection, model.head_norm)
        if model.context is not None:
            _fold_norm_before(model.context.entry, model.head_norm)
        model.head_norm = nn.Identity()
    for module in model.modules():
        if isinstance(module, NormedConvolution) and isinstance(module.norm, nn.BatchNorm2d):
            _fold_norm_after(module.convolution, module.norm)
            module.norm = nn.Identity()
        if isinstance(module, ContextBranch):
            for index, norm in enumerate(module.norms):
                if isinstance(norm, nn.BatchNorm2d):
                    _fold_norm_after(module.convolutions[index], norm)
                    module.norms[index] = nn.Identity()
        if isinstance(module, CoarseLevel) and isinstance(module.norm, nn.BatchNorm2d):
            _fold_norm_before(module.projection, module.norm)
            module.norm = nn.Identity()


def _bias(convolution: nn.Conv2d) -> Tensor:
    if convolution.bias is None:
        return convolution.weight.new_zeros(convolution.out_channels)
    return convolution.bias


def _scale_and_shift(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """A norm in evaluation mode as x * scale + shift, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()
    return scale, norm.bias.double() - norm.running_mean.double() * scale


def _fold_norm_before(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    """Folds a norm before a 1×1 convolution; larger ones pad with zeros, which the norm would shift."""
    scale, shift = _scale_and_shift(norm)
    weight = convolution.weight.double()
    bias = _bias(convolution).double() + (weight[:, :, 0, 0] * shift).sum(dim=1)
    convolution.weight = nn.Parameter((weight * scale.view(1, -1, 1, 1)).float(), requires_grad=False)
    convolution.bias = nn.Parameter(bias.float(), requires_grad=False)


def _fold_norm_after(convolution: nn.Module, norm: nn.BatchNorm2d) -> None:
    assert isinstance(convolution, nn.Conv2d)
    scale, shift = _scale_and_shift(norm)
    weight = convolution.weight.double() * scale.view(-1, 1, 1, 1)
    bias = _bias(convolution).double() * scale + shift
    convolution.weight = nn.Parameter(weight.float(), requires_grad=False)
    convolution.bias = nn.Parameter(bias.float(), requires_grad=False)
