"""The weights file: safetensors with the configuration in the header, float16 on disk, float32 in memory."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ucn.config import Calibration, ModelConfig
from ucn.errors import UcnError, WeightsError
from ucn.files.reading import hash_file, open_regular, shorten
from ucn.files.writing import write_bytes_atomically
from ucn.nn import CorrespondenceNetwork
from ucn.weights.checking import check_weights_file
from ucn.weights.table import SHIPPED, WeightsInfo, shipped_path

FORMAT = "ucn-weights-1"
DEFAULT_MAX_SIDE = 1024
"""Longest side of images in pixels for weights without one in their header."""
_FOREIGN = "is a .safetensors file but not of ucn"

_Built = TypeVar("_Built")


@dataclass(frozen=True)
class LoadedWeights:
    """A network ready to run, how to use it, and where it came from.

    Attributes:
        model: the network.
        calibration: how its similarities become probabilities.
        info: task, data, licence, restrictions and metrics.
        training: the configuration of its training.
        max_side: longest side, in pixels, to which larger images should be reduced before encoding.
    """

    model: CorrespondenceNetwork
    calibration: Calibration
    info: WeightsInfo
    training: dict[str, Any]
    max_side: int = DEFAULT_MAX_SIDE


@dataclass(frozen=True)
class WeightsHeader:
    """The header of a weights file.

    Attributes:
        info: its record in the table of shipped weights, or its path, SHA-256 and size.
        model: configuration of the network.
        calibration: as in `LoadedWeights`.
        max_side: as in `LoadedWeights`.
        training: as in `LoadedWeights`.
    """

    info: WeightsInfo
    model: ModelConfig
    calibration: Calibration
    max_side: int
    training: dict[str, Any]


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
        training: the resolved training configuration.
        max_side: longest side, in pixels, to which larger images should be reduced before encoding.
        overwrite: replace an existing file.
    """
    header = {
        "model": model.config.to_dict(),
        "calibration": (calibration or Calibration()).to_dict(),
        "training": training or {},
        "max_side": max_side,
    }
    return write_safetensors(path, model, FORMAT, header, overwrite)


def write_safetensors(
    path: Path, model: nn.Module, file_format: str, header: Mapping[str, Any], overwrite: bool
) -> str:
    """Writes the parameters and buffers of a module as float16 and returns the file's SHA-256.

    Args:
        path: ends in .safetensors.
        model: the module.
        file_format: name of the format, for the header.
        header: more values for the header, as JSON can hold them.
        overwrite: replace an existing file.
    """
    # Vectors stay float32: they are small, and batch variances exceed the range of float16.
    tensors = {
        name: value.detach().cpu().contiguous().to(torch.float16 if value.ndim > 1 else value.dtype)
        for name, value in model.state_dict().items()
    }
    strings = {name: json.dumps(value, sort_keys=True) for name, value in header.items()}
    content = _sort_header(safetensors.torch.save(tensors, {"format": file_format, **strings}))
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
    header, tensors = parse_safetensors(content, path, FORMAT, _FOREIGN)
    model_config = _read_header(header, "model", ModelConfig.from_dict, path)
    calibration = _read_header(header, "calibration", Calibration.from_dict, path)
    training = _read_header(header, "training", _check_mapping, path)
    max_side = _read_max_side(header, path)
    with torch.device("meta"):
        model = CorrespondenceNetwork(model_config)
    assign_tensors(model, tensors, path)
    if info is None:
        info = WeightsInfo.of_file(path, hashlib.sha256(content).hexdigest(), len(content))
    else:
        info = replace(info, file_bytes=len(content))
    return LoadedWeights(model.eval(), calibration, info, training, max_side)


def read_weights_header(name_or_path: str | Path) -> WeightsHeader:
    """Reads the header of shipped weights by name, or of any weights file by path, without its tensors.

    The SHA-256 of shipped weights is that of the table; `load_weights` compares it with the file.

    Raises:
        WeightsError: the name is unknown, or the file is missing, not readable, or not of ucn.
    """
    info = SHIPPED.get(str(name_or_path))
    path = shipped_path(info) if info else Path(name_or_path)
    check_weights_file(path, str(name_or_path))
    header = read_safetensors_header(path, FORMAT, _FOREIGN)
    if info is None:
        info = WeightsInfo.of_file(path, hash_file(path), 0)
    info = replace(info, file_bytes=path.stat().st_size)
    model = _read_header(header, "model", ModelConfig.from_dict, path)
    calibration = _read_header(header, "calibration", Calibration.from_dict, path)
    training = _read_header(header, "training", _check_mapping, path)
    return WeightsHeader(info, model, calibration, _read_max_side(header, path), training)


def _read_max_side(header: dict[str, str], path: Path) -> int:
    # The first weights were written before this key, all for the default side.
    return _read_header({"max_side": f"{DEFAULT_MAX_SIDE}"} | header, "max_side", _check_side, path)


def _read_checked(path: Path, given: str, info: WeightsInfo | None) -> bytes:
    check_weights_file(path, given)
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
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

    The format (8 bytes of length, JSON padded with spaces to a multiple of 8, then data at offsets from the
    header's end) leaves the order open, and the library writes another one each time.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]


def read_safetensors_header(path: Path, file_format: str, mistake: str) -> dict[str, str]:
    """Reads the header of a file without its tensors; arguments as in `parse_safetensors`.

    Raises:
        WeightsError: it cannot be read, or is of another format.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = file.metadata() or {}
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path} is not a readable .safetensors file: {shorten(error)}") from error
    _check_format(header, path, file_format, mistake)
    return header


def parse_safetensors(
    content: bytes, path: Path, file_format: str, mistake: str
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Parses the header and the tensors of a file.

    Args:
        content: of the file.
        path: its name, for errors.
        file_format: the format that its header must name.
        mistake: what an error calls a file of another format.

    Raises:
        WeightsError: it cannot be read, or is of another format.
    """
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise WeightsError(f"{path} is not a readable .safetensors file: {shorten(error)}") from error
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    _check_format(header, path, file_format, mistake)
    return header, tensors


def _check_format(header: dict[str, str], path: Path, file_format: str, mistake: str) -> None:
    if header.get("format") != file_format:
        raise WeightsError(
            f"{path} {mistake}: expected format '{file_format}' in its header, "
            f"got {reprlib.repr(header.get('format'))}"
        )


def _read_header(header: dict[str, str], key: str, build: Callable[[Any], _Built], path: Path) -> _Built:
    try:
        return build(json.loads(header[key]))
    except RecursionError:
        raise WeightsError(f"the header of {path} has no usable '{key}': it is nested too deeply") from None
    except (KeyError, TypeError, ValueError, OverflowError, UcnError) as error:
        raise WeightsError(f"the header of {path} has no usable '{key}': {shorten(error)}") from error


def _check_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WeightsError(f"expected a mapping, got {type(value).__name__}")
    return value


def _check_side(value: Any) -> int:
    if type(value) is not int or not 32 <= value <= 1_000_000:
        raise WeightsError(f"expected an integer of at least 32 pixels, got {reprlib.repr(value)}")
    return value


def assign_tensors(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Gives a network on the meta device the tensors of a file, in the types of its own, on the CPU.

    Raises:
        WeightsError: as `check_tensors`.
    """
    expected = model.state_dict()
    check_tensors(tensors, expected, path)
    # Copies, as parsed tensors may share the memory of the file's content.
    own = {name: value.to(expected[name].dtype, copy=True) for name, value in tensors.items()}
    model.load_state_dict(own, strict=True, assign=True)


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path) -> None:
    """Compares the tensors of a file with those of a network, which may be on the meta device.

    Raises:
        WeightsError: names, shapes or types differ, or a value is not finite.
    """
    if tensors.keys() != expected.keys():
        odd = sorted(tensors.keys() ^ expected.keys())
        raise WeightsError(
            f"{path} does not fit its own configuration: {len(odd)} tensors differ, first '{odd[0][:80]}'"
        )
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            got = reprlib.repr(tuple(value.shape))
            raise WeightsError(f"tensor '{name}' of {path} must be {tuple(expected[name].shape)}, got {got}")
        dtype = expected[name].dtype
        legal = (torch.float16, torch.float32) if dtype.is_floating_point else (dtype,)
        if value.dtype not in legal:
            types = " or ".join(map(str, legal))
            raise WeightsError(f"tensor '{name}' of {path} must be {types}, got {value.dtype}")
        if not value.isfinite().all():
            raise WeightsError(f"tensor '{name}' of {path} holds values that are not finite")
