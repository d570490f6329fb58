"""Inputs of the benchmark: random descriptors and images, the bundled pair, networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.config import ModelConfig
from ucn.data.bundled import Motorcycle
from ucn.data.example import example_pair
from ucn.data.io import read_image
from ucn.geometry.coords import cell_centres, resize_points, resize_scale
from ucn.matching.cells import match_forward
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.nn.transformer import ConvolutionalSpatialTransformer
from ucn.types import FeatureMap
from ucn.weights import load_weights

Encode = Callable[[Tensor], Tensor]
"""Images (B, 3, H, W) to unit descriptors (B, D, h, w)."""

PAPER = "paper"
"""The paper's network with its spatial transformer, with random weights."""
PLAIN_PAPER = "paper, no transformer"
"""The paper's network without its spatial transformer, with random weights."""

QUERIES = 3000
"""Largest number of query points of the bundled pair."""


def sample_unit_vectors(*shape: int, seed: int, device: torch.device) -> Tensor:
    """Random unit vectors along the last axis."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return F.normalize(torch.randn(shape, generator=generator, device=device), dim=-1)


def sample_images(count: int, size_hw: tuple[int, int], seed: int, device: torch.device) -> Tensor:
    """Noise images (B, 3, H, W); the cost of encoding does not depend on the content."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, 3, *size_hw), generator=generator).to(device)


def read_example_images(size_hw: tuple[int, int], device: torch.device) -> Tensor:
    """Both views of the bundled pair (2, 3, H, W), resized."""
    pair = example_pair()
    images = [read_image(path)[None] for path in (pair.image0_path, pair.image1_path)]
    resized = [F.interpolate(image, size_hw, mode="bilinear", antialias=True) for image in images]
    return torch.cat(resized).clamp(0, 1).to(device)


def load_network(name: str, device: torch.device) -> CorrespondenceNetwork:
    """Shipped weights by name, or the paper's network with a transformer that is not the identity."""
    if name not in (PAPER, PLAIN_PAPER):
        return load_weights(name).model.to(device).eval()
    model = build_model(ModelConfig(transformer="after_trunk" if name == PAPER else "none"))
    if isinstance(model.transformer, ConvolutionalSpatialTransformer):
        last = model.transformer.localiser[2]
        assert isinstance(last, nn.Conv2d)
        nn.init.normal_(last.weight, std=0.05, generator=torch.Generator().manual_seed(0))
    return model.to(device).eval()


@torch.no_grad()
def read_real_descriptors(
    name: str, size_hw: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Descriptors (M, D) of all cells of both views of the bundled pair, and cell centres (M, 2)."""
    found = load_network(name, device).encode(read_example_images(size_hw, device))
    rows = found.features.float().flatten(2).transpose(1, 2).contiguous()
    return rows[0], rows[1], cell_centres(found)


@torch.no_grad()
def measure_accuracy(
    encode: Encode, network: CorrespondenceNetwork, size_hw: tuple[int, int], device: torch.device
) -> dict[int, float]:
    """PCK at 1, 3, 5 and 10 pixels of sub-cell nearest neighbours on the bundled pair.

    Args:
        encode: called once with both views.
        network: gives stride and offset of the feature map.
        size_hw: size to which the pair is resized; thresholds are in its pixels.
        device: of `encode`.
    """
    features = encode(read_example_images(size_hw, device)).float()
    maps = [FeatureMap(each[None], network.stride, network.offset, size_hw) for each in features]
    points0, points1 = (points.to(device) for points in read_ground_truth(size_hw))
    errors = (match_forward(maps[0], maps[1], points0).points - points1).norm(dim=-1)
    return {limit: float((errors <= limit).double().mean()) for limit in (1, 3, 5, 10)}


@lru_cache(maxsize=4)
def read_ground_truth(size_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Corresponding points (N, 2) of both views of the bundled pair at a size."""
    sample = Motorcycle().read(0)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(sample.points0), generator=generator)[:QUERIES]
    scale = resize_scale((sample.image0.shape[-2], sample.image0.shape[-1]), size_hw)
    return resize_points(sample.points0[chosen], scale), resize_points(sample.points1[chosen], scale)
