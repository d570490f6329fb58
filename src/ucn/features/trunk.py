"""The network's trunk as ImageNet left it: what training on correspondences adds shows against this."""

from __future__ import annotations

from pathlib import Path

import torch

from ucn.config import ModelConfig
from ucn.features.extractor import make_features, read_pixels
from ucn.nn import build_model, load_imagenet_trunk
from ucn.nn.tiling import encode_in_tiles
from ucn.types import Features, ImageLike

_TILE_SIDE = 1536


class UntrainedTrunk:
    """GoogLeNet's inception_4a at one cell per 4 pixels, 512 numbers, of unit length."""

    def __init__(self, path: Path, device: torch.device | str = "cpu") -> None:
        """Loads BVLC's arrays.

        Args:
            path: the file that `ucn train` starts from: an .npz of ``NAME_w``, ``NAME_b`` arrays, say.
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
        """Describes an image at every cell."""
        pixels = read_pixels(image).to(self.device)
        found = encode_in_tiles(self._model, pixels[None], _TILE_SIDE)
        return make_features(found.features[0], found.image_hw, found.stride, found.offset)
