"""VGG-16's conv4_3 as ImageNet left it, from weights that the user has: the deep features of Long et al."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ucn.errors import WeightsError
from ucn.features.extractor import make_features, read_pixels
from ucn.types import Features, ImageLike

SUFFIXES = (".safetensors", ".pth")
"""Endings of the files that hold its weights."""

# Torchvision's numbers of the convolutions up to conv4_3, with their channels; a pool stands before a group.
_GROUPS = (
    ((0, 3, 64), (2, 64, 64)),
    ((5, 64, 128), (7, 128, 128)),
    ((10, 128, 256), (12, 256, 256), (14, 256, 256)),
    ((17, 256, 512), (19, 512, 512), (21, 512, 512)),
)
_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of torchvision's training
_STRIDE, _OFFSET = 8, 3.5  # three pools of 2 × 2: cell c sees the pixels 8c to 8c + 7 in its middle
_MAX_BYTES = 2**30  # the whole network has 553 MB


class VggConv4:
    """VGG-16's conv4_3 after its rectifier, one cell per 8 pixels, 512 numbers, of unit length."""

    def __init__(self, path: Path, device: torch.device | str = "cpu") -> None:
        """Loads torchvision's weights.

        Args:
            path: a .safetensors or .pth of torchvision's ``vgg16``, whole or without its classifier.
            device: where the network runs.

        Raises:
            WeightsError: the file is missing, damaged, too large, or not of VGG-16.
        """
        arrays = _read(path)
        layers: list[nn.Module] = []
        for number, group in enumerate(_GROUPS):
            layers += [nn.MaxPool2d(2)] if number else []
            for place, channels_in, channels_out in group:
                convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1)
                _fill(convolution, arrays, place, path)
                layers += [convolution, nn.ReLU(inplace=True)]
        self._model = nn.Sequential(*layers).to(device).eval()
        self.device = torch.device(device)

    @torch.no_grad()
    def extract(self, image: ImageLike) -> Features:
        """Describes an image at every cell."""
        pixels = read_pixels(image).to(self.device)
        mean, spread = (pixels.new_tensor(values).view(3, 1, 1) for values in (_MEAN, _SPREAD))
        found = self._model(((pixels - mean) / spread)[None])[0]
        return make_features(found, (pixels.shape[-2], pixels.shape[-1]), _STRIDE, _OFFSET)


def _read(path: Path) -> dict[str, Tensor]:
    """The arrays of a file; nothing in it is executed."""
    if path.suffix.lower() not in SUFFIXES:
        raise WeightsError(f"{path} does not end in {', '.join(SUFFIXES)}: expected torchvision's vgg16")
    if not path.is_file():
        raise WeightsError(f"no file {path}: expected torchvision's vgg16")
    if path.stat().st_size > _MAX_BYTES:
        raise WeightsError(f"{path} has {path.stat().st_size:,} bytes; VGG-16 has at most {_MAX_BYTES:,}")
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path} is no file of weights: {reason[:200]}; get it again") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds {type(found).__name__}, expected arrays by name; get it again")
    return found


def _fill(convolution: nn.Conv2d, arrays: dict[str, Tensor], place: int, path: Path) -> None:
    for kind, parameter in convolution.named_parameters():
        name = f"features.{place}.{kind}"
        array = arrays.get(name)
        if not isinstance(array, Tensor) or array.shape != parameter.shape:
            came = tuple(array.shape) if isinstance(array, Tensor) else "none"
            wanted = tuple(parameter.shape)
            raise WeightsError(f"{path}: expected {name} of {wanted}, got {came}; is it torchvision's vgg16?")
        if not array.isfinite().all():
            raise WeightsError(f"{path}: {name} holds values that are not finite; get it again")
        with torch.no_grad():
            parameter.copy_(array)
