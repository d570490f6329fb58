"""The network's trunk with its ImageNet weights: the baseline that shows what training adds."""

from __future__ import annotations

from pathlib import Path

import torch

from ucn.config import ModelConfig
from ucn.features.extractor import make_features, read_pixels
from ucn.nn import build_model
from ucn.nn.tiling import encode_in_tiles
from ucn.nn.trunk_files import load_imagenet_trunk
from ucn.types import Features, ImageLike

_TILE_SIDE = 1536


class UntrainedTrunk:
    """GoogLeNet's inception_4a at one cell per 4 pixels, normalised.

    Attributes:
        device: where the network runs.
    """

    dim, stride = 512, 4
    title = "GoogLeNet's inception_4a as trained on ImageNet, one cell per 4 px, 512 dimensions"

    def __init__(self, path: Path, device: torch.device | str = "cpu") -> None:
        """Loads BVLC's arrays.

        Args:
            path: a file that `ucn train` starts from, such as an .npz of ``NAME_w``, ``NAME_b`` arrays.
            device: where the network runs.

        Raises:
            WeightsError: the file is missing, damaged, or not of GoogLeNet.
        """
        # Without head and transformer the network is its trunk, normalised.
        model = build_model(ModelConfig(dim=None, head_norm="none", transformer="none"))
        load_imagenet_trunk(model.trunk, path)
        self._model = model.to(device).eval()
        self.device = torch.device(device)

    @torch.no_grad()
    def extract(self, image: ImageLike) -> Features:
        """Computes the descriptors of an image at every cell."""
        pixels = read_pixels(image).to(self.device)
        found = encode_in_tiles(self._model, pixels[None], _TILE_SIDE)
        return make_features(found.features[0], found.image_hw, found.stride, found.offset)
