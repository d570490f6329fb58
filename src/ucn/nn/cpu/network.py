"""A folded network with a GoogLeNet trunk in bands of rows, on a CPU, in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.context import POOL
from ucn.nn.cpu.bands import ROWS_MULTIPLE, allocate_map, as_image, as_rows, for_each_band
from ucn.nn.cpu.transformer import BandedTransformer
from ucn.nn.cpu.trunk import STRIDES, BandedTrunk
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.model import CorrespondenceNetwork
from ucn.nn.normalise import ChannelNorm, l2_normalise
from ucn.nn.pyramid import CoarseLevel, downsample
from ucn.nn.transformer import ConvolutionalSpatialTransformer
from ucn.runtime.threads import share


class BandedNetwork:
    """What a network computes, to rounding, several times as fast on a CPU; without gradients."""

    def __init__(self, network: CorrespondenceNetwork) -> None:
        """Takes the weights of a folded network; see `can_band`."""
        assert isinstance(network.trunk, GoogLeNetTrunk)
        assert POOL == ROWS_MULTIPLE
        self._network, self._trunk = network, BandedTrunk(network.trunk)
        entries = [] if network.context is None else [network.context.entry]
        self._head = _Head(network.head_norm, [network.projection, *entries])
        self._levels = [
            (level, _Head(level.norm, [level.projection]))
            for level in network.coarse_levels
            if isinstance(level, CoarseLevel)
        ]
        self._transformer = None
        if isinstance(network.transformer, ConvolutionalSpatialTransformer):
            self._transformer = BandedTransformer(network.transformer)

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """Prepared images (B, 3, H, W) to unit descriptors (B, D, h, w), channels-last."""
        if len(images) == 0:
            return self._network.describe(images)
        with torch.autocast("cpu", enabled=False):  # threads do not inherit the caller's autocast
            return torch.cat([self._describe_one(image[None].float()) for image in images])

    def _describe_one(self, whole: Tensor) -> Tensor:
        image = whole
        described, pooled = self._project(self._head, image[0])
        grid_hw = (described.shape[0], described.shape[1])
        coarser: list[tuple[Callable[[Tensor, tuple[int, int]], Tensor], Tensor]] = []
        if self._network.context is not None:
            coarser.append((self._network.context.run_pooled, pooled))
        for level, head in self._levels:
            image = downsample(image)
            coarser.append((level.upsample, self._project(head, image[0])[0]))
        upsampled = [described] * len(coarser)

        def upsample(index: int) -> None:
            finish, rows = coarser[index]
            upsampled[index] = as_rows(finish(as_image(rows), grid_hw))

        def add(first: int, stop: int) -> None:
            for rows in upsampled:
                described[first:stop] += rows[first:stop]

        share(upsample, range(len(coarser)))
        if coarser:
            for_each_band(add, *grid_hw)
        if self._transformer is not None:
            described = self._transformer(described)

        def normalise(first: int, stop: int) -> None:
            described[first:stop] = l2_normalise(described[first:stop], dim=-1)

        for_each_band(normalise, *grid_hw)
        if self._network.semantic is None:
            return as_image(described)
        return as_image(self._append(described, as_rows(self._network.semantic(whole, grid_hw))))

    def _append(self, fine: Tensor, semantic: Tensor) -> Tensor:
        """Unit descriptors (h, w, D) of both levels."""
        h, w, width = fine.shape
        joined = fine.new_empty(h, w, width + semantic.shape[2])

        def join(first: int, stop: int) -> None:
            joined[first:stop, :, :width] = fine[first:stop]
            joined[first:stop, :, width:] = semantic[first:stop]
            joined[first:stop] = l2_normalise(joined[first:stop], dim=-1)

        for_each_band(join, h, w)
        return joined

    def _project(self, head: _Head, image: Tensor) -> tuple[Tensor, Tensor]:
        """Projected features (h, w, D) of an image (3, H, W), and the pooled input of the context branch."""
        maps: list[Tensor] = []
        own, *rest = head.widths

        def start(h: int, w: int) -> Callable[[int, int, Tensor], None]:
            described = allocate_map(h, w, own)
            pooled = allocate_map(-(-h // POOL), -(-w // POOL), sum(rest))
            maps.extend((described, pooled))

            def take(first: int, stop: int, band: Tensor) -> None:
                parts = head(band)
                described[first:stop] = parts[0]
                for part in parts[1:]:
                    entered = F.relu(as_image(part))
                    means = F.avg_pool2d(entered, POOL, ceil_mode=True, count_include_pad=False)
                    pooled[first // POOL : -(-stop // POOL)] = as_rows(means)

            return take

        self._trunk.run(image, start)
        return maps[0], maps[1]


def can_band(network: CorrespondenceNetwork) -> bool:
    """Whether `BandedNetwork` takes a network."""
    is_known = isinstance(network.trunk, GoogLeNetTrunk) and network.trunk.strides == STRIDES
    return is_known and isinstance(network.projection, nn.Conv2d)


class _Head:
    """A norm and the 1×1 convolutions that read it, as one matrix product.

    Attributes:
        widths: output channels of each convolution.
    """

    def __init__(self, norm: nn.Module, convolutions: list[nn.Module]) -> None:
        parts = [part for part in convolutions if isinstance(part, nn.Conv2d)]
        self.widths = [part.out_channels for part in parts]
        weight = torch.cat([part.weight[:, :, 0, 0] for part in parts]).double()
        bias = torch.cat([part.bias for part in parts if part.bias is not None]).double()
        self._epsilon = None
        if isinstance(norm, ChannelNorm):
            # Centring the input equals centring the weights.
            bias = bias + weight @ norm.bias.double()
            weight = weight * norm.weight.double()
            weight = weight - weight.mean(dim=1, keepdim=True)
            self._epsilon = norm.epsilon
        self._weight, self._bias = weight.float()[:, :, None, None], bias.float()

    def __call__(self, rows: Tensor) -> tuple[Tensor, ...]:
        """(n, w, C) to (n, w, C') for each convolution."""
        if self._epsilon is None:
            products = as_rows(F.conv2d(as_image(rows), self._weight, self._bias))
            return torch.split(products, self.widths, dim=-1)
        products = as_rows(F.conv2d(as_image(rows), self._weight))
        squares = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).square_().div_(rows.shape[-1])
        variance = squares.sub_(rows.mean(dim=-1, keepdim=True).square_()).clamp_min_(0)
        scale = variance.add_(self._epsilon).rsqrt_()
        return torch.split(torch.addcmul(self._bias, products, scale), self.widths, dim=-1)
