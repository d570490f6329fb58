"""The network as a local feature of kornia: images to local affine frames, responses and descriptors.

kornia is not imported: its interface is three tensors, and the tests check it against kornia's functions.
Both libraries have the centre of the top-left pixel at (0, 0).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ucn.geometry.sampling import sample_descriptors
from ucn.matching.keypoints import strongest_corners
from ucn.nn.model import drop_semantic
from ucn.weights import LoadedWeights, load_weights


class LocalFeature(nn.Module):
    """Corners with the descriptors of the network, in the form of ``kornia.feature.LocalFeature``.

    Images are encoded at full size; reduce them to `max_side` first, as `Matcher` does. Gradients flow
    through descriptors; use ``torch.inference_mode()`` for inference.

    Attributes:
        network: encodes images; it moves with ``.to(device)``.
        max_side: longest side in pixels that the weights were trained for.
    """

    def __init__(
        self,
        weights: str | Path | LoadedWeights = "geometric",
        num_features: int = 2048,
        laf_scale: float = 16.0,
    ) -> None:
        """Loads the network.

        Args:
            weights: as `load_weights` takes them, or its result.
            num_features: keypoints per image; missing ones are padded with zeros, as in kornia.
            laf_scale: size in pixels of the frames, all upright; descriptors have no scale, but functions
                that draw or filter frames need one.

        Raises:
            WeightsError: the weights are unknown or damaged.
            ValueError: `num_features` or `laf_scale` is out of range.
        """
        super().__init__()
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {num_features}")
        if not laf_scale > 0:
            raise ValueError(f"laf_scale must be above 0 pixels, got {laf_scale}")
        loaded = weights if isinstance(weights, LoadedWeights) else load_weights(weights)
        self.network = drop_semantic(loaded.model).eval()
        self.max_side = loaded.max_side
        self.num_features, self.laf_scale = num_features, laf_scale

    def forward(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Detects corners and computes their descriptors.

        Args:
            images: (B, 3, H, W) RGB or (B, 1, H, W) grey in [0, 1], at least 32 px a side.
            mask: (B, 1, H, W), at least 0, by which responses are multiplied.

        Returns:
            (B, N, 2, 3) local affine frames, (B, N) responses and (B, N, D) unit descriptors, N being
            `num_features`, strongest first; padding is 0.

        Raises:
            ValueError: a shape or the type of the images is wrong.
        """
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"images must be (B, 3, H, W) or (B, 1, H, W), got {tuple(images.shape)}")
        if not images.is_floating_point():
            raise ValueError(f"images must be floating point in [0, 1], got {images.dtype}")
        expected = (images.shape[0], 1, *images.shape[2:])
        if mask is not None and tuple(mask.shape) != expected:
            raise ValueError(f"mask must be (B, 1, H, W) = {expected}, got {tuple(mask.shape)}")
        images = images.expand(-1, 3, -1, -1)
        with torch.no_grad():
            points, responses = strongest_corners(images, self.num_features, mask)
        is_filled = (responses > 0).to(images.dtype)
        descriptors = sample_descriptors(self.network.encode(images), points) * is_filled[..., None]
        shape = torch.eye(2, dtype=images.dtype, device=images.device) * self.laf_scale
        frames = torch.cat([shape.expand(*points.shape, 2), points[..., None]], dim=-1)
        return frames * is_filled[..., None, None], responses, descriptors
