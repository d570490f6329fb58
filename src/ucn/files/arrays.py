"""Arrays in .npz and .h5 files: names and declared sizes are checked before anything is read.

numpy and h5py are imported where they are needed, since `ucn.config` must stay quick to import.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ucn.errors import DataError, UcnError
from ucn.files.reading import MAX_BINARY_BYTES, QUOTED, check_size, open_data, shorten

_MAX_H5_DEPTH = 64
_MAX_H5_RATIO = 100  # of values in memory to values stored; ucn and hloc do not compress
_MAX_H5_SLACK = 16 * 2**20
_MAX_ATTRIBUTES = 256
_MAX_MEMBERS = 100_000  # of an .npz file


def pack_npz(values: Mapping[str, Any]) -> bytes:
    """The bytes of a compressed .npz file with these arrays."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **values)
    return buffer.getvalue()


def pack_h5(group_name: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> bytes:
    """The bytes of an HDF5 file with one group."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        group = file.create_group(group_name)
        for name, array in arrays.items():
            group.create_dataset(name, data=array)
        group.attrs.update(attributes)
    return buffer.getvalue()


def read_npz(
    path: Path, limit: int = MAX_BINARY_BYTES, names: Collection[str] | None = None
) -> dict[str, Any]:
    """Reads the arrays of an .npz file, without pickle.

    Args:
        path: the file.
        limit: the most bytes of the file, and of its arrays.
        names: of the arrays to read, where they are there; None reads all.

    Raises:
        DataError: it is damaged, no regular file, or its arrays have more than `limit` bytes.
    """
    import numpy as np

    with open_data(path, ".npz", limit) as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            with archive:  # a small file may unpack to any size
                wanted = [name for name in archive.files if names is None or name in names]
                if len(wanted) > _MAX_MEMBERS:
                    raise ValueError(f"it has {len(wanted):,} arrays, the limit is {_MAX_MEMBERS:,}")
                members = archive.zip.infolist() if archive.zip is not None else []
                sizes = [each.file_size for each in members if each.filename.removesuffix(".npy") in wanted]
                check_size(path, "arrays", sum(sizes), limit)
                return {name: archive[name] for name in wanted}
        except UcnError:
            raise
        except Exception as error:  # zipfile, zlib and numpy raise about fifteen kinds on damaged files
            raise DataError(f"cannot read {path} as .npz: {shorten(error)}; write it again") from error


@contextmanager
def open_h5(path: Path, what: str, remedy: str, limit: int | None = None) -> Iterator[Any]:
    """Opens an HDF5 file that a stranger may have made, as an `h5py.File` for reading.

    What is done with it belongs into `checked_h5`.

    Args:
        path: the file.
        what: it should hold, for errors.
        remedy: what to do about a damaged file, for errors.
        limit: the largest size in bytes; None for any.

    Raises:
        DataError: it is missing, no regular file, too large or damaged.
    """
    import h5py

    if not os.path.lexists(path):
        raise DataError(f"no file of {what} {path}; {remedy}", path=path)
    with open_data(path, ".h5", limit):
        pass  # the library opens it by name
    with checked_h5(path, what, remedy):
        file = h5py.File(path, "r")
    with file:
        yield file


@contextmanager
def checked_h5(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Turns whatever h5py raises on a damaged file into `DataError`; arguments as in `open_h5`."""
    try:
        yield
    except UcnError:
        raise
    except Exception as error:  # OSError, RuntimeError, KeyError, AttributeError and others
        raise DataError(
            f"cannot read {path}: damaged or no .h5 file of {what} ({shorten(error)}); {remedy}", path=path
        ) from error


def list_h5_groups(file: Any, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[tuple[str, Any]]:
    """Yields the groups of an `h5py.File` with their paths, each once, parents first; follows no links.

    Args:
        file: the file.
        is_leaf: whether the groups in a group are left out.

    Raises:
        ValueError: they are nested too deeply.
    """
    import h5py

    seen, waiting = {h5py.h5o.get_info(file.id).addr}, deque([("", file)])
    while waiting:
        prefix, group = waiting.popleft()
        yield prefix, group
        if is_leaf is not None and is_leaf(group):
            continue
        for key in group:
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                continue
            if group.get(key, getclass=True) is not h5py.Group:
                continue
            child = group[key]
            address = h5py.h5o.get_info(child.id).addr
            if address in seen:
                continue
            seen.add(address)
            name = f"{prefix}/{key}" if prefix else key
            if name.count("/") >= _MAX_H5_DEPTH:
                raise ValueError(f"its groups are nested more than {_MAX_H5_DEPTH} deep")
            waiting.append((name, child))


def find_h5_array(group: Any, name: str, limit: int = MAX_BINARY_BYTES) -> Any:
    """A data set of an `h5py.Group` that may be read: its type and its declared size are sound.

    Raises:
        ValueError: it is no data set, lies in another file, has no numbers, or declares over `limit` bytes
            or far more than the file holds.
        KeyError: it is missing.
    """
    import h5py

    link, item = group.get(name, getlink=True), None
    if isinstance(link, h5py.HardLink):
        item = group[name]
    elif link is None:
        raise KeyError(f"there is no {name}")
    if not isinstance(item, h5py.Dataset):
        raise ValueError(f"{name} is a group or a link, not a data set")
    if item.external or item.is_virtual:
        raise ValueError(f"{name} lies in another file")
    is_text = h5py.check_string_dtype(item.dtype) is not None and item.shape == ()
    if item.dtype.kind not in "biuf" and not is_text:
        raise ValueError(f"{name} has values of type {shorten(item.dtype, QUOTED)}, expected numbers")
    size, stored = (item.size or 0) * item.dtype.itemsize, item.id.get_storage_size()
    if size > limit:
        raise ValueError(f"{name} has {size:,} bytes, the limit for arrays is {limit:,}")
    if size > _MAX_H5_RATIO * stored + _MAX_H5_SLACK:
        raise ValueError(f"{name} declares {size:,} bytes, but the file holds {stored:,} of them")
    return item


def read_h5(
    path: Path, array_names: Sequence[str], content: str, limit: int = MAX_BINARY_BYTES
) -> dict[str, Any]:
    """Reads the first group of an HDF5 file that holds the first of the named arrays.

    Args:
        path: the file.
        array_names: data sets to read; the first one must be there.
        content: what the file should hold, for errors.
        limit: the most bytes of the file, and of these arrays.

    Returns:
        Arrays and attributes of the group by name.

    Raises:
        DataError: the file is damaged or too large, or no group has the first array.
    """
    remedy = "write it again"
    with open_h5(path, content, remedy, limit) as file, checked_h5(path, content, remedy):
        for _, group in list_h5_groups(file):
            if array_names[0] not in group:
                continue
            held = {name: find_h5_array(group, name, limit) for name in array_names if name in group}
            check_size(path, "arrays", sum(each.size * each.dtype.itemsize for each in held.values()), limit)
            if len(group.attrs) > _MAX_ATTRIBUTES:
                raise ValueError(f"it has {len(group.attrs):,} attributes")
            return {**dict(group.attrs), **{name: each[()] for name, each in held.items()}}
    raise DataError(f"{path} does not hold {content}: no group with {array_names[0]}")
