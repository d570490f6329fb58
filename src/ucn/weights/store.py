"""The weights file: safetensors, its configuration in the header, float16 on disk and float32 in memory."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ucn.config import Calibration, ModelConfig
from ucn.data.io import write_bytes_atomically
from ucn.errors import UcnError, WeightsError
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.weights.table import SHIPPED, WeightsInfo, shipped_path

FORMAT = "ucn-weights-1"
DEFAULT_MAX_SIDE = 1024
"""Longest side of images in pixels for weights that do not say otherwise."""
_MAX_FILE_BYTES = 512 * 2**20

_Built = TypeVar("_Built")


@dataclass(frozen=True)
class LoadedWeights:
    """A network ready to run, how to use it, and where it came from.

    Attributes:
        model: the network.
        calibration: how its similarities become probabilities.
        info: what a user must know of it.
        training: the record of its training.
        max_side: longest side, in pixels, to which larger images should be reduced before it sees them.
    """

    model: CorrespondenceNetwork
    calibration: Calibration
    info: WeightsInfo
    training: dict[str, Any]
    max_side: int = DEFAULT_MAX_SIDE


def save_weights(
    path: Path,
    model: CorrespondenceNetwork,
    *,
    calibration: Calibration | None = None,
    training: dict[str, Any] | None = None,
    max_side: int = DEFAULT_MAX_SIDE,
    overwrite: bool = False,
) -> str:
    """Writes a network as float16 safetensors and returns the file's SHA-256.

    Args:
        path: ends in .safetensors.
        model: the network.
        calibration: how its similarities become probabilities.
        training: the resolved training configuration, kept for the record.
        max_side: longest side, in pixels, to which larger images should be reduced before it sees them.
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
        "calibration": json.dumps((calibration or Calibration()).to_dict(), sort_keys=True),
        "training": json.dumps(training or {}, sort_keys=True),
        "max_side": json.dumps(max_side),
    }
    content = _sort_header(safetensors.torch.save(tensors, header))
    write_bytes_atomically(path, content, overwrite=overwrite)
    return hashlib.sha256(content).hexdigest()


def load_weights(name_or_path: str | Path) -> LoadedWeights:
    """Loads shipped weights by name, or any weights file by path.

    Raises:
        WeightsError: the name is unknown, or the file is missing, damaged, not ours, or has another hash
            than the table of shipped weights says.
    """
    info = SHIPPED.get(str(name_or_path))
    path = shipped_path(info) if info else Path(name_or_path)
    content = _read_checked(path, str(name_or_path), info)
    header, tensors = parse_safetensors(content, path, FORMAT, "is a .safetensors file but not of ucn")
    model_config = _read_header(header, "model", ModelConfig.from_dict, path)
    calibration = _read_header(header, "calibration", Calibration.from_dict, path)
    training = _read_header(header, "training", _check_mapping, path)
    # The first weights were written before this key, all for the usual side.
    max_side = _read_header({"max_side": f"{DEFAULT_MAX_SIDE}"} | header, "max_side", _check_side, path)
    _check_tensors(model_config, tensors, path)
    model = build_model(model_config)
    model.load_state_dict(tensors, strict=True)
    if info is None:
        info = WeightsInfo.of_file(path, hashlib.sha256(content).hexdigest(), len(content))
    else:
        info = replace(info, file_bytes=len(content))
    return LoadedWeights(model.eval(), calibration, info, training, max_side)


def _read_checked(path: Path, given: str, info: WeightsInfo | None) -> bytes:
    try:
        if not path.is_file():
            names = ", ".join(sorted(SHIPPED))
            raise WeightsError(
                f"no weights '{given}': expected one of {names}, or the path of a .safetensors file"
            )
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise WeightsError(f"{path} has {size} bytes; weights have at most {_MAX_FILE_BYTES}")
        content = path.read_bytes()
    except OSError as error:  # is_file too raises it, of a name that is too long, say
        raise WeightsError(f"cannot read weights {path}: {error.strerror or error}") from error
    if info is not None:
        found = hashlib.sha256(content).hexdigest()
        if found != info.sha256:
            raise WeightsError(
                f"weights '{info.name}' at {path} have the hash {found[:16]}…, expected {info.sha256[:16]}…: "
                "the file was changed or damaged; reinstall ucn"
            )
    return content


def _sort_header(content: bytes) -> bytes:
    """The same file with its header in a fixed order, so that equal weights have equal hashes.

    The format (8 bytes of length, JSON padded with blanks to a multiple of 8, then data at offsets that count
    from the header's end) leaves the order open, and the library writes a new one each time.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]


def parse_safetensors(
    content: bytes, path: Path, wanted: str, mistaken: str
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header's words and the arrays of a file of ours.

    Args:
        content: of the file.
        path: its name, for messages.
        wanted: the format that its header must name.
        mistaken: what is said of a file of another format.

    Raises:
        WeightsError: it cannot be read, or is of another format.
    """
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise WeightsError(f"{path} is not a readable .safetensors file: {error}") from error
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    if header.get("format") != wanted:
        raise WeightsError(
            f"{path} {mistaken}: expected format '{wanted}' in its header, "
            f"got {reprlib.repr(header.get('format'))}"
        )
    return header, tensors


def _read_header(header: dict[str, str], key: str, build: Callable[[Any], _Built], path: Path) -> _Built:
    try:
        return build(json.loads(header[key]))
    except RecursionError:
        raise WeightsError(f"the header of {path} has no usable '{key}': it is nested too deeply") from None
    except (KeyError, TypeError, ValueError, OverflowError, UcnError) as error:
        raise WeightsError(f"the header of {path} has no usable '{key}': {error}") from error


def _check_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WeightsError(f"expected a mapping, got {type(value).__name__}")
    return value


def _check_side(value: Any) -> int:
    if type(value) is not int or not 32 <= value <= 1_000_000:
        raise WeightsError(f"expected a whole number of pixels from 32 on, got {reprlib.repr(value)}")
    return value


def _check_tensors(config: ModelConfig, tensors: dict[str, Tensor], path: Path) -> None:
    """Compares a file with the network its header asks for, before memory is taken for that network."""
    with torch.device("meta"):
        wanted = CorrespondenceNetwork(config).state_dict()
    if tensors.keys() != wanted.keys():
        odd = sorted(tensors.keys() ^ wanted.keys())
        raise WeightsError(
            f"{path} does not fit its own configuration: {len(odd)} tensors differ, first '{odd[0][:80]}'"
        )
    for name, value in tensors.items():
        if value.shape != wanted[name].shape:
            came = reprlib.repr(tuple(value.shape))
            raise WeightsError(f"tensor '{name}' of {path} must be {tuple(wanted[name].shape)}, got {came}")
        dtype = wanted[name].dtype
        legal = (torch.float16, torch.float32) if dtype.is_floating_point else (dtype,)
        if value.dtype not in legal:
            expected = " or ".join(map(str, legal))
            raise WeightsError(f"tensor '{name}' of {path} must be {expected}, got {value.dtype}")
        if not value.isfinite().all():
            raise WeightsError(f"tensor '{name}' of {path} holds values that are not finite")
