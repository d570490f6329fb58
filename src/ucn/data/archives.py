"""Named arrays in .npz and HDF5 files, packed and read back without pickle."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from ucn.errors import DataError


def pack_npz(values: Mapping[str, Any]) -> bytes:
    """The bytes of a compressed .npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **values)
    return buffer.getvalue()


def pack_h5(group_name: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> bytes:
    """The bytes of an HDF5 file with one group."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        group = file.create_group(group_name)
        for name, array in arrays.items():
            group.create_dataset(name, data=array)
        group.attrs.update(attributes)
    return buffer.getvalue()


# What zipfile, numpy and h5py raise on damaged files.
_DAMAGE = (
    *(
        OSError,
        ValueError,
        EOFError,
        TypeError,
        KeyError,
        RuntimeError,
        SyntaxError,
        OverflowError,
        MemoryError,
    ),
    *(zipfile.BadZipFile, zlib.error),
)


def read_npz(path: Path) -> dict[str, Any]:
    """All arrays of an .npz file; raises `DataError` where it is damaged."""
    try:
        with path.open("rb") as file, _load_npz(file) as archive:
            return dict(archive)
    except _DAMAGE as error:
        raise DataError(f"cannot read {path} as .npz: {error}; write it again") from error


def _load_npz(file: BinaryIO) -> np.lib.npyio.NpzFile:
    archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it holds a single array")
    return archive


def read_h5(path: Path, array_names: Sequence[str]) -> dict[str, Any]:
    """Arrays and attributes of the first group with matches; raises `DataError` where there is none."""
    found: list[dict[str, Any]] = []

    def visit(_: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Group) and "points0" in item:
            for name in array_names:
                if name in item and not isinstance(item[name], h5py.Dataset):
                    raise DataError(f"{path} does not hold matches: {name} is a group, not a data set")
            found.append(
                {**dict(item.attrs), **{name: item[name][()] for name in array_names if name in item}}
            )
            return True
        return None

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except DataError:
        raise
    except _DAMAGE as error:
        raise DataError(f"cannot read {path} as .h5: {error}; write it again") from error
    if not found:
        raise DataError(f"{path} does not hold matches: no group with points0")
    return found[0]
