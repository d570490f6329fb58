"""Adds an untrained semantic level to trained weights, to be fine-tuned by `ucn train`.

    UCN_DATA=DIR python benchmarks/semantic_start.py universal -o start.safetensors

The semantic trunk is BVLC GoogLeNet (`$UCN_DATA/googlenet`). Its projection holds the principal directions
of its features, less their mean, on training images (`voc_objects`, `caltech101` and `photos`). Both levels
weigh the same.
"""

from __future__ import annotations

import argparse
import os
import random
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.io import read_image
from ucn.nn.model import CorrespondenceNetwork, build_model
from ucn.nn.trunk_files import load_imagenet_trunk
from ucn.weights import load_weights
from ucn.weights.store import save_weights

_IMAGES = {"voc_objects/*/*.webp": 300, "caltech101/*/*": 100, "photos/*.jpg": 100}
_SIDE = 192


def main() -> None:
    """Reads the arguments, and writes the weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", help="name or file of trained weights without a semantic level")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--dim", type=int, default=128, help="dimensions of the semantic level")
    arguments = parser.parse_args()
    data = Path(os.environ["UCN_DATA"])
    loaded = load_weights(arguments.weights)
    model = build_model(replace(loaded.model.config, semantic_dim=arguments.dim)).eval()
    assert model.semantic is not None
    own = {f"semantic.{name}": value for name, value in model.semantic.state_dict().items()}
    model.load_state_dict(loaded.model.state_dict() | own)
    first, further = (
        data / f"googlenet/bvlc_googlenet_{part}.npz"
        for part in ("conv1_to_inception_4a", "inception_4b_to_4e")
    )
    load_imagenet_trunk(model.semantic.trunk, first, further)
    set_projection(model, list_images(data))
    digest = save_weights(
        arguments.output, model, calibration=loaded.calibration, max_side=loaded.max_side, overwrite=True
    )
    print(f"{arguments.output}: sha256 {digest}")


def list_images(data: Path) -> list[Path]:
    """Training images, sampled by a fixed seed."""
    sample = random.Random(0).sample
    return [path for pattern, count in _IMAGES.items() for path in sample(sorted(data.glob(pattern)), count)]


@torch.no_grad()
def set_projection(model: CorrespondenceNetwork, paths: list[Path]) -> None:
    """Sets the projection of the semantic level to the principal directions of its features."""
    level = model.semantic
    assert level is not None
    found: list[Tensor] = []
    for path in paths:
        image = read_image(path)[None]
        height, width = image.shape[-2:]
        size = tuple(max(32, round(side * _SIDE / max(height, width))) for side in (height, width))
        image = F.interpolate(image, size, mode="bilinear", antialias=True)
        found.append(level.describe_cells(model.prepare(image))[0].flatten(1).t())
    features = torch.cat(found).double()
    mean = features.mean(dim=0)
    _, directions = torch.linalg.eigh((features - mean).t() @ (features - mean))
    kept = directions.flip(1)[:, : level.projection.out_channels].t()  # (dim, 512)
    level.projection.weight.copy_(kept[:, :, None, None])
    assert level.projection.bias is not None
    level.projection.bias.copy_(-kept @ mean)


if __name__ == "__main__":
    main()
