"""The network layer by layer: output shapes, parameters, strides and receptive fields."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ucn.nn.context import POOL, ContextBranch
from ucn.nn.googlenet import GoogLeNetTrunk, Inception
from ucn.nn.lite import LiteTrunk
from ucn.nn.model import CorrespondenceNetwork
from ucn.nn.pyramid import CoarseLevel
from ucn.nn.semantic import SemanticLevel
from ucn.nn.transformer import ConvolutionalSpatialTransformer


@dataclass(frozen=True)
class Layer:
    """One layer of the network.

    Attributes:
        block: the block it belongs to.
        name: within the block; empty where the block is a single layer.
        kind: its operations.
        shape: (channels, h, w) of its output for one image.
        parameters: number of trained parameters.
        stride: pixels between neighbouring cells of its output.
        receptive_field: side in pixels, where transformers predict the identity.
    """

    block: str
    name: str
    kind: str
    shape: tuple[int, int, int]
    parameters: int
    stride: int
    receptive_field: int

    @property
    def title(self) -> str:
        """Block and name."""
        return f"{self.block}.{self.name}" if self.name else self.block


def list_layers(model: CorrespondenceNetwork, image_hw: tuple[int, int]) -> list[Layer]:
    """The layers of a network in the order of execution; only shapes are computed.

    Args:
        model: the network.
        image_hw: (H, W) of the image, at least 32 px a side.

    Raises:
        ValueError: a side is too short.
    """
    return list(_Walk(model, _record_shapes(model, image_hw)).walk())


def _record_shapes(model: CorrespondenceNetwork, image_hw: tuple[int, int]) -> dict[str, tuple[Any, Any]]:
    """Shapes (C, h, w) of each module's input and output, by the module's name."""
    shadow = copy.deepcopy(model).to("meta").eval()
    shapes: dict[str, tuple[Any, Any]] = {}

    def record(name: str, _module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # The first call counts: later ones are of the reduced images of coarse levels.
        shapes.setdefault(name, (tuple(inputs[0].shape[1:]), tuple(output.shape[1:])))

    for name, module in shadow.named_modules():
        if name:
            module.register_forward_hook(partial(record, name))
    with torch.no_grad():
        shadow.encode(torch.empty(1, 3, *image_hw, device="meta"))
    return shapes


class _Walk:
    """Walks through the network and tracks the stride and the receptive field."""

    def __init__(self, model: CorrespondenceNetwork, shapes: dict[str, tuple[Any, Any]]) -> None:
        self._model, self._shapes = model, shapes
        self._modules = dict(model.named_modules())
        self._stride, self._field = 1, 1

    def walk(self) -> Iterator[Layer]:
        """All layers."""
        model = self._model
        if isinstance(model.trunk, GoogLeNetTrunk):
            yield from self._walk_trunk(model.trunk)
        else:
            yield from self._walk_lite(model.trunk)
        if not isinstance(model.head_norm, nn.Identity):
            yield self._layer("head_norm", "", "head_norm", _name_norm(model.head_norm))
        if not isinstance(model.projection, nn.Identity):
            yield self._layer("projection", "", "projection", "convolution 1×1")
        if model.context is not None:
            yield from self._walk_context(model.context)
        for number, level in enumerate(model.coarse_levels):
            assert isinstance(level, CoarseLevel)
            yield from self._walk_level(level, f"coarse_levels.{number}")
        if isinstance(model.transformer, ConvolutionalSpatialTransformer):
            kernel = model.transformer.weight.shape[-1]
            yield self._layer(
                "transformer", "", "transformer", f"spatial transformer {kernel}×{kernel}", kernel
            )
        _, h, w = self._shapes["trunk"][1]
        fine = model.config.dimensions - model.config.semantic_dim
        yield Layer("normalise", "", "L2 norm", (fine, h, w), 0, self._stride, self._field)
        if model.semantic is not None:
            yield from self._walk_semantic(model.semantic)
            shape = (model.config.dimensions, h, w)
            yield Layer("join", "", "concatenated, L2 norm", shape, 0, self._stride, self._field)

    def _walk_trunk(self, trunk: GoogLeNetTrunk, path: str = "trunk") -> Iterator[Layer]:
        yield self._layer("conv1", "", f"{path}.conv1", "convolution 7×7, ReLU", 7, trunk.strides[0])
        yield self._pool("pool1", f"{path}.conv2_reduce", trunk.strides[1], ", response norm")
        yield self._layer("conv2", "reduce", f"{path}.conv2_reduce", "convolution 1×1, ReLU")
        yield self._layer("conv2", "", f"{path}.conv2", "convolution 3×3, ReLU, response norm", 3)
        yield self._pool("pool2", f"{path}.inception_3a", trunk.strides[2])
        for block in trunk.blocks:
            if block == "inception_4a":
                yield self._pool("pool3", f"{path}.inception_4a", trunk.strides[3])
            yield from self._walk_inception(block, getattr(trunk, block), f"{path}.{block}")

    def _walk_semantic(self, level: SemanticLevel) -> Iterator[Layer]:
        """The semantic level, up to where it is appended to the fine descriptors."""
        stride, field = self._stride, self._field
        self._stride, self._field = 1, 1
        for layer in self._walk_trunk(level.trunk, "semantic.trunk"):
            yield replace(layer, block=f"semantic.{layer.block}")
        self._field += self._stride  # upsampling interpolates between two cells
        for name, further in (("gain", "exponential"), ("projection", "L2 norm, times gain, upsampled")):
            yield self._layer("semantic", name, f"semantic.{name}", f"convolution 1×1, {further}")
        self._stride, self._field = stride, max(field, self._field)

    def _walk_lite(self, trunk: LiteTrunk) -> Iterator[Layer]:
        """Down to the coarsest level and back; blocks are named after the strides of their cells."""
        normed = ", batch norm, ReLU"
        yield self._layer("stem", "1", "trunk.stem1", f"convolution 3×3{normed}", 3, 2)
        yield self._layer("stem", "2", "trunk.stem2", f"convolution 3×3{normed}", 3, 2)
        yield from self._walk_units("trunk.down.0", "down")
        for level in range(1, len(trunk.down)):
            path = f"trunk.halvings.{level - 1}"
            yield replace(
                self._layer("", "downsample", path, f"convolution 2×2{normed}", 2, 2),
                block=f"cells_{self._stride}",
            )
            yield from self._walk_units(f"trunk.down.{level}", "down")
        for level in reversed(range(len(trunk.up))):
            self._field += self._stride  # upsampling interpolates between two coarse cells
            kind = "convolution 1×1, batch norm, upsampled, added, ReLU"
            block = f"cells_{self._stride}"
            yield self._layer(block, "lateral", f"trunk.laterals.{level}", kind)
            self._stride //= 2
            yield from self._walk_units(f"trunk.up.{level}", "up")

    def _walk_units(self, path: str, direction: str) -> Iterator[Layer]:
        kind = "convolution 3×3, batch norm, added, ReLU"
        for number in range(len(self._modules[path])):
            yield self._layer(f"cells_{self._stride}", f"{direction}_{number}", f"{path}.{number}", kind, 3)

    def _walk_inception(self, block: str, module: Inception, path: str) -> Iterator[Layer]:
        """Four parallel branches; the one with the largest kernel sets the receptive field."""
        start = self._field
        kernels = {"reduce_3x3": 1, "conv_3x3": 3, "reduce_5x5": 1, "conv_5x5": 5}
        yield self._layer(block, "conv_1x1", f"{path}.conv_1x1", "convolution 1×1")
        for name, kernel in kernels.items():
            kind = f"convolution {kernel}×{kernel}"
            if isinstance(getattr(module, name), ConvolutionalSpatialTransformer):
                kind = f"spatial transformer {kernel}×{kernel}"
            yield self._layer(block, name, f"{path}.{name}", kind, kernel)
            if kernel > 1:
                self._field = start
        yield self._layer(
            block, "pool_projection", f"{path}.pool_projection", "max pool 3×3, convolution 1×1", 3
        )
        self._field = start + 4 * self._stride
        shape = self._shapes[path][1]
        yield Layer(block, "", "branches concatenated, ReLU", shape, 0, self._stride, self._field)

    def _walk_context(self, branch: ContextBranch) -> Iterator[Layer]:
        """The context branch, up to where it is added to the projection."""
        field, coarse = self._field + (POOL - 1) * self._stride, self._stride * POOL
        yield self._layer("context", "entry", "context.entry", "convolution 1×1, ReLU")
        for number, norm in enumerate(branch.norms):
            path = f"context.convolutions.{number}"
            dilation = self._modules[path].dilation[0]
            pooled = f"average pool {POOL}×{POOL}, " if number == 0 else ""
            dilated = f" dilated {dilation}" if dilation > 1 else ""
            field += 2 * dilation * coarse
            layer = self._layer("context", f"{number}", path, f"{pooled}convolution 3×3{dilated}, added")
            parameters = layer.parameters + _count(norm)
            yield replace(layer, parameters=parameters, stride=coarse, receptive_field=field)
        field += coarse  # upsampling interpolates between two coarse cells
        exit_layer = self._layer("context", "exit", "context.exit", "convolution 1×1, upsampled, added")
        yield replace(exit_layer, stride=coarse, receptive_field=field)
        self._field = field

    def _walk_level(self, level: CoarseLevel, path: str) -> Iterator[Layer]:
        """A coarse level, up to where it is added to the projection."""
        factor, coarse = level.factor, level.factor * self._stride
        before, block = self._field, f"level_{level.factor}"
        self._field = 2 * level.find_reach(self._model.trunk.reach, 0) + 1
        if not isinstance(level.norm, nn.Identity):
            kind = f"trunk at 1/{factor} of the size, {_name_norm(level.norm)}"
            yield replace(self._layer(block, "norm", f"{path}.norm", kind), stride=coarse)
        self._field += coarse  # upsampling interpolates between two coarse cells
        projection = self._layer(
            block, "projection", f"{path}.projection", "convolution 1×1, upsampled, added"
        )
        yield replace(projection, stride=coarse)
        self._field = max(before, self._field)

    def _layer(self, block: str, name: str, path: str, kind: str, kernel: int = 1, stride: int = 1) -> Layer:
        self._field += (kernel - 1) * self._stride
        self._stride *= stride
        shape, parameters = self._shapes[path][1], _count(self._modules[path])
        return Layer(block, name, kind, shape, parameters, self._stride, self._field)

    def _pool(self, block: str, next_path: str, stride: int, after: str = "") -> Layer:
        """Pools are functions, not modules: their output is the next module's input."""
        self._field += 2 * self._stride
        self._stride *= stride
        shape = self._shapes[next_path][0]
        return Layer(block, "", f"max pool 3×3{after}", shape, 0, self._stride, self._field)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _name_norm(module: nn.Module) -> str:
    return "batch norm" if isinstance(module, nn.BatchNorm2d) else "channel norm"
