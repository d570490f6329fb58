"""What is measured on: random unit features, the bundled pair, networks, and how right matches of it are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.config import ModelConfig
from ucn.data.example import example_pair
from ucn.data.io import read_image
from ucn.evaluate.core.bundled import Motorcycle
from ucn.geometry.coords import cell_centres, resize_points, resize_scale
from ucn.matching.cells import match_cells
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.nn.transformer import ConvolutionalSpatialTransformer
from ucn.types import FeatureMap
from ucn.weights import load_weights

Encode = Callable[[Tensor], Tensor]
"""Images (B, 3, H, W) to unit descriptors (B, D, h, w)."""

PAPER = "paper"
"""The name of the paper's network with its transformer, of random weights."""
PLAIN_PAPER = "paper, no transformer"
"""The same without its transformer."""

_QUERIES = 3000


@dataclass(frozen=True)
class Accuracy:
    """How right the nearest neighbours of points of the bundled pair are.

    Attributes:
        pck: pixels to the share of points that land within as many pixels of their true place.
        points: how many were asked.
    """

    pck: dict[int, float]
    points: int


def draw_unit(*shape: int, seed: int, device: torch.device) -> Tensor:
    """Random unit vectors along the last axis."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return F.normalize(torch.randn(shape, generator=generator, device=device), dim=-1)


def draw_images(count: int, size_hw: tuple[int, int], seed: int, device: torch.device) -> Tensor:
    """Images (B, 3, H, W) of noise; what they show does not change what encoding costs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, 3, *size_hw), generator=generator).to(device)


def read_example_images(size_hw: tuple[int, int], device: torch.device) -> Tensor:
    """Both views of the bundled pair (2, 3, H, W) at a size."""
    pair = example_pair()
    images = [read_image(path)[None] for path in (pair.image0_path, pair.image1_path)]
    resized = [F.interpolate(image, size_hw, mode="bilinear", antialias=True) for image in images]
    return torch.cat(resized).clamp(0, 1).to(device)


def load_network(name: str, device: torch.device) -> CorrespondenceNetwork:
    """Shipped weights, or the paper's network with windows that have moved, as after training."""
    if name not in (PAPER, PLAIN_PAPER):
        return load_weights(name).model.to(device).eval()
    model = build_model(ModelConfig(transformer="after_trunk" if name == PAPER else "none"))
    if isinstance(model.transformer, ConvolutionalSpatialTransformer):
        last = model.transformer.localiser[2]
        assert isinstance(last, nn.Conv2d)
        nn.init.normal_(last.weight, std=0.05, generator=torch.Generator().manual_seed(0))
    return model.to(device).eval()


@torch.no_grad()
def read_real_rows(
    name: str, settings_hw: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Descriptors (M, D) of all cells of both views of the bundled pair, by shipped weights, and places.

    The places (M, 2) of cells are alike in both views.
    """
    found = load_network(name, device).encode(read_example_images(settings_hw, device))
    rows = found.features.float().flatten(2).transpose(1, 2).contiguous()
    return rows[0], rows[1], cell_centres(found)


@torch.no_grad()
def measure_accuracy(
    encode: Encode,
    network: CorrespondenceNetwork,
    size_hw: tuple[int, int],
    device: torch.device,
) -> Accuracy:
    """PCK at 1, 3, 5 and 10 pixels of nearest neighbours, placed between cells, of the bundled pair.

    Args:
        encode: one image or two at a time, as it likes: both views are given at once.
        network: says where cells lie.
        size_hw: to which the pair is resized; pixels are those of this size.
        device: on which `encode` runs.
    """
    features = encode(read_example_images(size_hw, device)).float()
    maps = [FeatureMap(each[None], network.stride, network.offset, size_hw) for each in features]
    points0, points1 = (points.to(device) for points in read_truth(size_hw))
    found = match_cells(maps[0], maps[1], points0).points1
    errors = (found - points1).norm(dim=-1)
    return Accuracy(
        {limit: float((errors <= limit).double().mean()) for limit in (1, 3, 5, 10)}, len(points0)
    )


@lru_cache(maxsize=4)
def read_truth(size_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Points (N, 2) of both views of the bundled pair, resized, which are one point of the scene."""
    sample = Motorcycle().read(0)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(sample.points0), generator=generator)[:_QUERIES]
    image_hw = (sample.image0.shape[-2], sample.image0.shape[-1])
    scale = resize_scale(image_hw, size_hw)
    return resize_points(sample.points0[chosen], scale), resize_points(sample.points1[chosen], scale)
