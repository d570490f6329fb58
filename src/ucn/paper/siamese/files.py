"""The file of a Siamese network: safetensors, its configuration in the header, float16 on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ucn.errors import UcnError, WeightsError
from ucn.paper.siamese.network import SiameseConfig, SiameseNetwork, build_siamese
from ucn.weights.store import (
    check_tensors,
    parse_safetensors,
    read_safetensors_header,
    write_safetensors,
)

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
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"cannot read a Siamese network from {path}: {error.strerror or error}") from error
    header, tensors = parse_safetensors(content, path, FORMAT, _FOREIGN)
    config = _parse_config(header, path)
    with torch.device("meta"):
        expected = SiameseNetwork(config).state_dict()
    check_tensors(tensors, expected, path)
    model = build_siamese(config)
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def read_siamese_config(path: Path) -> SiameseConfig:
    """The configuration in the header of a file, without its tensors; raises as `load_siamese`."""
    _check_file(path)
    return _parse_config(read_safetensors_header(path, FORMAT, _FOREIGN), path)


def _check_file(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise WeightsError(f"cannot read a Siamese network from {path}: {error.strerror or error}") from error
    if size > _MAX_FILE_BYTES:
        raise WeightsError(f"{path} has {size:,} bytes, the limit for these is {_MAX_FILE_BYTES:,}")


def _parse_config(header: dict[str, str], path: Path) -> SiameseConfig:
    try:
        return SiameseConfig.from_dict(json.loads(header["model"]))
    except (KeyError, TypeError, ValueError, RecursionError, UcnError) as error:
        raise WeightsError(f"the header of {path} has no usable 'model': {error}") from error
