"""The Siamese patch-similarity network (Zagoruyko and Komodakis 2015): two patches in, one similarity out.

Both patches pass one branch, GoogLeNet's trunk; decision layers take both descriptors. A similarity is
defined for pairs only, so the best of n patches for each of n others takes n² passes of the decision layers,
and of the whole network where descriptors are not cached.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.config import Config
from ucn.config.base import require, require_at_most
from ucn.errors import UcnError, WeightsError
from ucn.files.reading import open_regular, shorten
from ucn.geometry.sampling import sample_image
from ucn.nn import GoogLeNetTrunk
from ucn.weights.store import (
    assign_tensors,
    parse_safetensors,
    read_safetensors_header,
    write_safetensors,
)

STRIDES = (2, 2, 2, 2)
"""Strides of the trunk, as in GoogLeNet: a few cells per patch suffice."""
_CELL_PIXELS = 16


@dataclass(frozen=True)
class SiameseConfig(Config):
    """Architecture of the network."""

    patch: int = 64
    """Side of the square patches in pixels, a multiple of 16, at least 32; 64 in the paper."""
    cell_channels: int = 64
    """Channels to which each of the (patch / 16)² cells of the trunk is reduced."""
    dim: int = 128
    """Dimensions of the descriptor of a patch."""
    fusion: Literal["comparison", "concatenation"] = "comparison"
    """Input of the decision layers: element-wise products and differences of the two descriptors, or their
    concatenation, as in the paper, which trains more slowly."""
    hidden: tuple[int, int] = (256, 128)
    """Widths of the hidden decision layers."""

    def __post_init__(self) -> None:
        """Checks ranges."""
        super().__post_init__()
        is_whole = self.patch >= 32 and self.patch % _CELL_PIXELS == 0
        require(is_whole, f"patch must be a multiple of {_CELL_PIXELS} and at least 32", self.patch)
        require(min(self.cell_channels, self.dim, *self.hidden) >= 1, "widths must be at least 1", self)
        require_at_most(self, patch=512, cell_channels=4096, dim=8192)
        require(max(self.hidden) <= 8192, "hidden must be at most 8192", self.hidden)


class PatchBranch(nn.Module):
    """Patches to descriptors; both patches use the same weights."""

    def __init__(self, config: SiameseConfig) -> None:
        super().__init__()
        self.trunk = GoogLeNetTrunk(STRIDES)
        self.norm = nn.BatchNorm2d(self.trunk.channels_out)
        self.reduction = nn.Conv2d(self.trunk.channels_out, config.cell_channels, 1)
        cells = (config.patch // _CELL_PIXELS) ** 2
        self.projection = nn.Linear(cells * config.cell_channels, config.dim)

    def forward(self, patches: Tensor) -> Tensor:
        """(N, 3, P, P) RGB in [0, 1] to (N, D) of unit length."""
        cells = F.relu(self.reduction(self.norm(self.trunk(patches))))
        return F.normalize(self.projection(cells.flatten(1)).float(), dim=1)


class DecisionNetwork(nn.Module):
    """Two descriptors to a similarity."""

    def __init__(self, config: SiameseConfig) -> None:
        super().__init__()
        first, second = config.hidden
        self.fusion = config.fusion
        self.scale = config.dim**0.5  # brings the values of a unit descriptor to about 1
        self.first = nn.Linear(2 * config.dim, first)
        self.second = nn.Linear(first, second)
        self.last = nn.Linear(second, 1)

    def forward(self, descriptors0: Tensor, descriptors1: Tensor) -> Tensor:
        """Similarities (...) of descriptors (..., D) and (..., D), which are broadcast."""
        own, other = descriptors0 * self.scale, descriptors1 * self.scale
        if self.fusion == "comparison":
            fused = own * other, (own - other).abs()
        else:
            fused = torch.broadcast_tensors(own, other)
        hidden = F.relu(self.first(torch.cat(fused, dim=-1)))
        similarities: Tensor = self.last(F.relu(self.second(hidden)))
        return similarities[..., 0]


class SiameseNetwork(nn.Module):
    """The whole network.

    Attributes:
        config: its architecture.
        branch: patches to descriptors.
        decision: two descriptors to a similarity.
    """

    def __init__(self, config: SiameseConfig) -> None:
        super().__init__()
        self.config = config
        self.branch = PatchBranch(config)
        self.decision = DecisionNetwork(config)

    def forward(self, patches0: Tensor, patches1: Tensor) -> Tensor:
        """Similarities (N,) of patches (N, 3, P, P) and (N, 3, P, P)."""
        descriptors = self.branch(torch.cat([patches0, patches1]))
        similarities: Tensor = self.decision(*descriptors.split([len(patches0), len(patches1)]))
        return similarities


def build_siamese(config: SiameseConfig, generator: torch.Generator | None = None) -> SiameseNetwork:
    """A network with random weights, sampled from `generator` (seed 0 when None), on the CPU."""
    generator = generator or torch.Generator().manual_seed(0)
    # Construction samples from the global generator, except on the meta device.
    with torch.device("meta"):
        model = SiameseNetwork(config)
    model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
            module.reset_running_stats()
    return model


def cut_patches(images: Tensor, points: Tensor, side: int) -> Tensor:
    """Cuts square patches out of images, bilinearly; border pixels are repeated outside.

    Args:
        images: (B, 3, H, W).
        points: (B, N, 2) pixels; each becomes the pixel (side / 2, side / 2) of its patch.
        side: of the patches in pixels, P, even.

    Returns:
        (B, N, 3, P, P).
    """
    B, N = points.shape[:2]
    steps = torch.arange(side, device=images.device, dtype=points.dtype) - side // 2
    offsets = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).view(1, 1, -1, 2)
    if N == 0:  # grid_sample refuses an empty grid on some devices
        return images.new_zeros(B, 0, 3, side, side)
    patches = sample_image(images, points[:, :, None] + offsets, "border")  # (B, 3, N, P * P)
    return patches.transpose(1, 2).reshape(B, N, 3, side, side)


FORMAT = "ucn-siamese-1"
SHIPPED = Path(__file__).with_name("siamese.safetensors")
"""The trained network in the package."""
_MAX_FILE_BYTES = 128 * 2**20
_FOREIGN = "holds no Siamese network"


def save_siamese(
    path: Path, model: SiameseNetwork, training: dict[str, Any], *, overwrite: bool = False
) -> str:
    """Writes a network and returns the file's SHA-256.

    Args:
        path: ends in .safetensors.
        model: the network.
        training: the training settings as plain JSON values, for the record.
        overwrite: replace an existing file.
    """
    header = {"model": model.config.to_dict(), "training": training}
    return write_safetensors(path, model, FORMAT, header, overwrite)


def load_siamese(path: Path) -> SiameseNetwork:
    """Reads a network, float32, ready to run, on the CPU.

    Raises:
        WeightsError: the file is missing, damaged, or not of a Siamese network.
    """
    _check_file(path)
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise WeightsError(f"cannot read a Siamese network from {path}: {error.strerror or error}") from error
    header, tensors = parse_safetensors(content, path, FORMAT, _FOREIGN)
    config = _parse_config(header, path)
    with torch.device("meta"):
        model = SiameseNetwork(config)
    assign_tensors(model, tensors, path)
    return model.eval()


def read_siamese_config(path: Path) -> SiameseConfig:
    """The configuration in the header of a file, without its tensors; raises as `load_siamese`."""
    _check_file(path)
    return _parse_config(read_safetensors_header(path, FORMAT, _FOREIGN), path)


def _check_file(path: Path) -> None:
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise WeightsError(f"cannot read a Siamese network from {path}: {error.strerror or error}") from error
    if size > _MAX_FILE_BYTES:
        raise WeightsError(f"{path} has {size:,} bytes, the limit for these is {_MAX_FILE_BYTES:,}")


def _parse_config(header: dict[str, str], path: Path) -> SiameseConfig:
    try:
        return SiameseConfig.from_dict(json.loads(header["model"]))
    except (KeyError, TypeError, ValueError, RecursionError, UcnError) as error:
        raise WeightsError(f"the header of {path} has no usable 'model': {shorten(error)}") from error
