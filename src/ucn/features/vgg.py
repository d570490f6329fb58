"""VGG-16's conv4_3 with ImageNet weights that the user supplies: the deep features of Long et al. (2014)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ucn.errors import WeightsError
from ucn.features.extractor import make_features, read_pixels
from ucn.files.reading import open_regular, shorten
from ucn.types import Features, ImageLike

SUFFIXES = (".safetensors", ".pth")
"""File name extensions of its weights."""

# Indices of torchvision's convolutions up to conv4_3, with their channels; a pooling precedes each group.
_GROUPS = (
    ((0, 3, 64), (2, 64, 64)),
    ((5, 64, 128), (7, 128, 128)),
    ((10, 128, 256), (12, 256, 256), (14, 256, 256)),
    ((17, 256, 512), (19, 512, 512), (21, 512, 512)),
)
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of torchvision's training
_OFFSET = 3.5  # three poolings of 2 × 2: the receptive field of cell c is centred on pixels 8c to 8c + 7
_MAX_BYTES = 2**30  # the whole network has 553 MB


class VggConv4:
    """VGG-16's conv4_3 after its ReLU, one cell per 8 pixels, normalised.

    Attributes:
        device: where the network runs.
    """

    dim, stride = 512, 8
    title = "VGG-16's conv4_3 as trained on ImageNet, one cell per 8 px, 512 dimensions"

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
        for i, group in enumerate(_GROUPS):
            layers += [nn.MaxPool2d(2)] if i else []
            for layer, channels_in, channels_out in group:
                convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1)
                _copy_weights(convolution, arrays, layer, path)
                layers += [convolution, nn.ReLU(inplace=True)]
        self._model = nn.Sequential(*layers).to(device).eval()
        self.device = torch.device(device)

    @torch.no_grad()
    def extract(self, image: ImageLike) -> Features:
        """Computes the descriptors of an image at every cell."""
        pixels = read_pixels(image).to(self.device)
        mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (_MEAN, _STD))
        found = self._model(((pixels - mean) / std)[None])[0]
        return make_features(found, (pixels.shape[-2], pixels.shape[-1]), self.stride, _OFFSET)


def _read(path: Path) -> dict[str, Tensor]:
    """The arrays of a file; no code in it is executed."""
    if path.suffix.lower() not in SUFFIXES:
        raise WeightsError(f"{path} does not end in {', '.join(SUFFIXES)}: expected torchvision's vgg16")
    if not path.is_file():
        raise WeightsError(f"no file {path}: expected torchvision's vgg16")
    if path.stat().st_size > _MAX_BYTES:
        raise WeightsError(f"{path} has {path.stat().st_size:,} bytes; VGG-16 has at most {_MAX_BYTES:,}")
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        with open_regular(path) as file:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen classes on damaged files
        raise WeightsError(f"{path} is not a file of weights: {shorten(error)}; download it again") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds {type(found).__name__}, expected arrays by name; download it again")
    return found


def _copy_weights(convolution: nn.Conv2d, arrays: dict[str, Tensor], layer: int, path: Path) -> None:
    for kind, parameter in convolution.named_parameters():
        name = f"features.{layer}.{kind}"
        array = arrays.get(name)
        if not isinstance(array, Tensor) or array.shape != parameter.shape:
            got = tuple(array.shape) if isinstance(array, Tensor) else "none"
            shape = tuple(parameter.shape)
            raise WeightsError(f"{path}: expected {name} of {shape}, got {got}; is it torchvision's vgg16?")
        if not array.isfinite().all():
            raise WeightsError(f"{path}: {name} holds values that are not finite; download it again")
        with torch.no_grad():
            parameter.copy_(array)
