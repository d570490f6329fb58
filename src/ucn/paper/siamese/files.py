"""The file of a Siamese network: safetensors, its configuration in the header, float16 on disk."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ucn.data.io import write_bytes_atomically
from ucn.errors import UcnError, WeightsError
from ucn.paper.siamese.network import SiameseConfig, SiameseNetwork, build_siamese
from ucn.weights.store import parse_safetensors

FORMAT = "ucn-siamese-1"
SHIPPED = Path(__file__).with_name("siamese.safetensors")
"""Where the trained network lies in the package."""
_MAX_FILE_BYTES = 128 * 2**20


def save_siamese(
    path: Path, model: SiameseNetwork, training: dict[str, Any], *, overwrite: bool = False
) -> str:
    """Writes a network and returns the file's SHA-256.

    Args:
        path: ends in .safetensors.
        model: the network.
        training: how it was trained, as JSON can hold it, kept for the record.
        overwrite: whether an existing file may be replaced.
    """
    # Vectors stay float32: they are small, and batch variances reach beyond float16.
    tensors = {
        name: value.detach().cpu().contiguous().to(torch.float16 if value.ndim > 1 else value.dtype)
        for name, value in model.state_dict().items()
    }
    header = {
        "format": FORMAT,
        "model": json.dumps(model.config.to_dict(), sort_keys=True),
        "training": json.dumps(training, sort_keys=True),
    }
    content = safetensors.torch.save(tensors, header)
    write_bytes_atomically(path, content, overwrite=overwrite)
    return hashlib.sha256(content).hexdigest()


def load_siamese(path: Path) -> SiameseNetwork:
    """Reads a network, float32, ready to run, on the CPU.

    Raises:
        WeightsError: the file is missing, damaged, or not of a Siamese network.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise WeightsError(f"{path} has {size:,} bytes, the limit for these is {_MAX_FILE_BYTES:,}")
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"cannot read a Siamese network from {path}: {error.strerror or error}") from error
    header, tensors = parse_safetensors(content, path, FORMAT, "holds no Siamese network")
    try:
        config = SiameseConfig.from_dict(json.loads(header["model"]))
    except (KeyError, TypeError, ValueError, RecursionError, UcnError) as error:
        raise WeightsError(f"the header of {path} has no usable 'model': {error}") from error
    _check_tensors(config, tensors, path)
    model = build_siamese(config)
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def _check_tensors(config: SiameseConfig, tensors: dict[str, Tensor], path: Path) -> None:
    """Compares a file with the network its header asks for, before memory is taken for that network."""
    with torch.device("meta"):
        wanted = SiameseNetwork(config).state_dict()
    odd = sorted(
        name
        for name in tensors.keys() | wanted.keys()
        if name not in tensors or name not in wanted or tensors[name].shape != wanted[name].shape
    )
    if odd:
        raise WeightsError(
            f"{path} does not fit its own configuration: {len(odd)} tensors differ, first '{odd[0][:80]}'"
        )
    for name, value in tensors.items():
        is_number = value.dtype in (torch.float16, torch.float32) or value.dtype == wanted[name].dtype
        if not is_number or not value.isfinite().all():
            raise WeightsError(f"tensor '{name}' of {path} must hold finite numbers, got {value.dtype}")
