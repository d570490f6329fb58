"""Checks of a name or file of weights, made before torch is imported."""

from __future__ import annotations

from pathlib import Path

from ucn.errors import WeightsError
from ucn.files.reading import open_regular
from ucn.files.suggestions import suggest
from ucn.weights.table import SHIPPED, shipped_path

_MAX_FILE_BYTES = 512 * 2**20
_PICKLE_SUFFIXES = (".pth", ".pt", ".ckpt", ".bin", ".pkl", ".tar")
_FILE_SUFFIXES = (".safetensors", *_PICKLE_SUFFIXES)
_HEAD_BYTES = 256  # holds the name of the first file of a ZIP archive


def check_weights(name_or_path: str | Path) -> None:
    """Checks that there are weights of this name, or a file that may hold weights; it is not read.

    Raises:
        WeightsError: the name is unknown, or the file is missing, too large or a PyTorch pickle.
    """
    info = SHIPPED.get(str(name_or_path))
    check_weights_file(shipped_path(info) if info else Path(name_or_path), str(name_or_path))


def check_weights_file(path: Path, given: str) -> None:
    """As `check_weights`, for the file of a given name or path."""
    try:
        if path.is_dir():
            raise WeightsError(f"weights {path} are a folder; give a .safetensors file")
        if path.exists() and not path.is_file():
            raise WeightsError(f"weights {path} are not a regular file; give a .safetensors file")
        if not path.is_file():
            raise WeightsError(_explain_missing(given))
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise WeightsError(f"{path} has {size} bytes; weights have at most {_MAX_FILE_BYTES}")
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:  # `is_file` raises it for a name that is too long
        raise WeightsError(f"cannot read weights {path}: {error.strerror or error}") from error
    if _is_pickle(head, path.suffix.lower()):
        raise WeightsError(
            f"{path} is a PyTorch pickle, and loading one can run code; expected a .safetensors file of "
            "`ucn train`. To convert a network of ucn, load its tensors with torch.load(…, weights_only=True)"
            " into ucn.build_model(config), and write it with ucn.weights.save_weights"
        )


def _explain_missing(given: str) -> str:
    names = ", ".join(sorted(SHIPPED))
    path = Path(given)
    if path.suffix.lower() in _FILE_SUFFIXES or path.name != given:
        hint = suggest(path.stem, SHIPPED)
        return f"no weights file {given}: it is missing; check the path, or give a name of {names}{hint}"
    return (
        f"no weights '{given}'{suggest(given, SHIPPED)}: expected one of {names}, or the path of a "
        ".safetensors file"
    )


def _is_pickle(head: bytes, suffix: str) -> bool:
    """Whether a file begins as one of torch.save: a ZIP archive with a pickle, or, before 2020, a pickle.

    A .safetensors file begins with the length of its header in 8 bytes, then "{".
    """
    if head[:4] == b"PK\x03\x04":
        name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        return suffix in _PICKLE_SUFFIXES or name.endswith(b".pkl")
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and head[8:9] != b"{"
