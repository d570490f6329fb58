"""Safe reading, atomic writing, locks of outputs, a cache of recent items, and 'did you mean'.

Nothing here knows images or data sets, and nothing imports torch. numpy and h5py are imported where they are
needed, since `ucn.config` imports this module and must stay quick to import.
"""

from __future__ import annotations

import difflib
import errno
import functools
import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from ucn.errors import DataError, OutputError, UcnError

try:
    import fcntl
except ImportError:  # Windows: no locks, and what a killed run left stays
    fcntl = None  # type: ignore[assignment]

MAX_TEXT_BYTES = 256 * 2**20
"""Larger text files are refused unread."""
MAX_BINARY_BYTES = 2**30
"""Larger binary files (flow, scans, .mat) are refused unread."""
QUOTED = 80
"""The most characters of a stranger's file that a message quotes at once."""

_MAX_H5_DEPTH = 64
_MAX_H5_RATIO = 100  # of values in memory to values stored; ucn and hloc do not compress
_MAX_H5_SLACK = 16 * 2**20
_MAX_ATTRIBUTES = 256
_MAX_MEMBERS = 100_000  # of an .npz file

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """Opens a file that a stranger may have made, for reading: the one way to open such a file.

    Pipes, devices, sockets and folders are refused without being opened to the point where they block; links
    to such things, too. What is checked is the opened file itself, which cannot be replaced afterwards.

    Args:
        path: the file, or a link to it.
        limit: the largest size in bytes; None for any.

    Raises:
        NotRegularError: it is no regular file.
        TooLargeError: it is larger than `limit`.
        OSError: it is missing or not readable.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before opening, which has effects on some devices
            raise NotRegularError(path)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0))
    except ValueError as error:  # a null character in the name
        raise OSError(errno.EINVAL, str(error)) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegularError(path)
        if limit is not None and status.st_size > limit:
            raise TooLargeError(status.st_size, limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


class NotRegularError(OSError):
    """A path leads to a folder, a pipe, a device or a socket."""

    def __init__(self, path: Path) -> None:
        reason = "it is a folder" if path.is_dir() else "it is not a regular file"
        super().__init__(errno.EINVAL, f"{reason}; put the file itself in its place")


class TooLargeError(OSError):
    """A file has more bytes than its readers take."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        super().__init__(errno.EFBIG, f"it has {size:,} bytes, the limit is {limit:,}")


def read_binary(path: Path, what: str, limit: int = MAX_BINARY_BYTES) -> bytes:
    """Reads a whole binary file.

    Args:
        path: the file; it must be a regular one.
        what: the kind of file, for errors.
        limit: the largest size in bytes.

    Raises:
        DataError: the file is missing, not readable, not a regular file, or too large.
    """
    with open_data(path, what, limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)


@contextmanager
def open_data(path: Path, what: str, limit: int | None = MAX_BINARY_BYTES) -> Iterator[BinaryIO]:
    """Opens a file as `open_regular` does; arguments and errors are those of `read_binary`."""
    try:
        with open_regular(path, limit) as file:
            yield file
    except TooLargeError as error:
        raise _large_error(path, what, error.size, limit or 0) from error
    except NotRegularError as error:
        raise DataError(f"cannot read {what} {path}: {error.strerror}", path=path) from error
    except OSError as error:
        reason = f"{explain_failure(error)}; check the path and its rights"
        raise DataError(f"cannot read {what} {path}: {reason}", path=path) from error


def check_readable(path: Path, what: str, limit: int = MAX_BINARY_BYTES) -> None:
    """Checks a file without reading it; arguments and errors are those of `read_binary`."""
    with open_data(path, what, limit):
        pass


def _check_size(path: Path, what: str, size: int, limit: int) -> None:
    if size > limit:
        raise _large_error(path, what, size, limit)


def _large_error(path: Path, what: str, size: int, limit: int) -> DataError:
    message = f"{path} has {size:,} bytes, the limit for {what} is {limit:,}"
    return DataError(f"{message}; check that it is the right file", path=path)


def quote(text: object, length: int = QUOTED) -> str:
    """Text of a stranger's file for a message: quoted, on one line, at most `length` characters of it."""
    whole = str(text)
    return repr(whole[:length]) + ("…" if len(whole) > length else "")


def read_text(path: Path, what: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Reads a whole UTF-8 text file, without its byte-order mark.

    Raises:
        DataError: as `read_binary`, or the file is not UTF-8.
    """
    try:
        return read_binary(path, what, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"cannot read {what} {path}: it is not UTF-8 text; save it as UTF-8"
        raise DataError(message, path=path) from error


def read_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file with their numbers from 1, stripped, without blank ones.

    Raises:
        DataError: as `read_text`.
    """
    # Not `str.splitlines`, which also splits at U+2028 and the like: a line of JSON may hold these.
    for number, line in enumerate(read_text(path, what).split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def is_number(text: str) -> bool:
    """Whether text is a number as data files write it; NaN and infinity are."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_0 as 10


def parse_numbers(text: str, count: int | None, where: str) -> list[float]:
    """Parses finite numbers that blanks or commas separate.

    Args:
        text: one line.
        count: the expected number of values; None accepts any.
        where: file and line, for errors.

    Raises:
        DataError: another number of values, or one is not a finite number.
    """
    cells = text.replace(",", " ").split()
    if count is not None and len(cells) != count:
        raise DataError(f"{where}: expected {count} numbers, got {len(cells)}: {text[:60]!r}; correct it")
    numbers = []
    for cell in cells:
        if not is_number(cell):
            raise DataError(f"{where}: expected a number, got {cell[:40]!r}; correct it")
        value = float(cell)
        if not math.isfinite(value):
            raise DataError(f"{where}: expected a finite number, got {cell[:40]!r}; correct it")
        numbers.append(value)
    return numbers


def explain_failure(error: Exception) -> str:
    """The reason of a failed file operation, without the path, which the caller names."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, (NotRegularError, TooLargeError)):
        return str(error.strerror)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return shorten(error) or type(error).__name__


def shorten(text: object, length: int = 2 * QUOTED) -> str:
    """A library's message about a stranger's file, which may quote it: on one line, printable and short."""
    line = " ".join(str(text)[: 4 * length].split())
    line = "".join(each if each.isprintable() else "\ufffd" for each in line)
    return line if len(line) <= length else f"{line[:length]}…"


def find_real_path(path: Path) -> Path:
    """A path without links, as `Path.resolve`, which fails in a loop of links."""
    return Path(os.path.realpath(path))


def check_output(path: str | Path, overwrite: bool = False) -> None:
    """Checks that a file can be written, before the work that makes its content.

    Raises:
        OutputError: the folder is missing or not writable, the path is not a file's, or the file exists and
            `overwrite` is False.
    """
    path = Path(path)
    folder = path.parent
    try:
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist; create it first"
            raise OutputError(f"cannot write {path}: {folder} {what}")
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "not a regular file"
            raise OutputError(f"cannot write {path}: it is {what}; give the name of a file")
        if os.path.lexists(path) and not overwrite:
            raise exists_error(path)
    except OutputError:
        raise
    except OSError as error:  # no rights, a name that is too long
        raise OutputError(f"cannot write {path}: {explain_failure(error)}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"cannot write {path}: folder {folder} is not writable; choose another or change its rights"
        )


def write_bytes_atomically(
    path: str | Path, content: bytes | Callable[[BinaryIO], object], overwrite: bool = False
) -> None:
    """Writes a temporary file in the same folder and renames it, so that no partial file is ever seen.

    Args:
        path: the file to write.
        content: its bytes, or a function that writes them to a binary file (readable and seekable too).
        overwrite: replace an existing file.

    Raises:
        OutputError: as `check_output`, or writing failed (the disk is full, for example); the temporary file
            is removed.
    """
    path = Path(path)
    clean_up(path)
    check_output(path, overwrite)
    try:
        with scratch_file(path) as part:
            with part.open("r+b") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
            if overwrite:
                check_output(path, overwrite)  # a folder of that name may have been made meanwhile
                part.replace(path)
            else:
                _rename_unless_taken(part, path)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {explain_failure(error)}") from error


_SCRATCH_NAME = re.compile(r"\.ucn-[0-9a-f]{12}\.part")
_SCRATCHES = 4  # places beside an output in which the remains of killed runs are looked for
_LOCK_TRIES, _MAX_TRIES = 4, 64
_FOLDER = "folder"  # its lock is as if of a file of that name in it
_MOVES = ".ucn-moves.json"


def is_scratch_name(name: str) -> bool:
    """Whether a name is one that `scratch_file` and `scratch_folder` give."""
    return _SCRATCH_NAME.fullmatch(name) is not None


@contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """Yields a new, empty temporary file beside an output, which is removed in the end.

    It is locked meanwhile. What a killed run leaves has no lock: the next one for this output removes it.
    """
    with _scratch(path, lambda part: part.open("xb").close()) as part:
        yield part


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """The same with a folder."""
    with _scratch(path, Path.mkdir) as part:
        yield part


def clean_up(path: Path) -> None:
    """Removes what killed runs have left beside an output, and what of `write_together` they had moved."""
    parts = [_name_scratch(path, number) for number in range(_SCRATCHES)]
    for part in [*parts, _name_lock(path), _name_lock(path / _FOLDER)]:
        with suppress(OSError):  # held by a run that is alive, no such file, or a link, which is not ours
            held = _hold(part)
            try:
                if held is not None:
                    _undo_moves(part)
                    _remove(part)
            finally:
                _release(held)


@contextmanager
def _scratch(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    clean_up(path)
    for number in itertools.count():
        part = _name_scratch(path, number)
        try:
            make(part)
            held, made = _hold(part, wait=True), part.lstat()
            break
        except FileExistsError:  # another run is writing this output
            continue
        except OSError as error:
            if isinstance(error, FileNotFoundError) and path.parent.is_dir() and number < _MAX_TRIES:
                continue  # another run took it for one of a killed run, before it was locked
            raise OutputError(f"cannot write {path}: {explain_failure(error)}") from error
    try:
        yield part
    finally:
        with suppress(FileNotFoundError):
            if os.path.samestat(made, part.lstat()):  # not where it was renamed, and the name is taken again
                _remove(part)
        _release(held)


def _name_scratch(path: Path, number: int) -> Path:
    """A name that the next run for the same output finds, without reading a folder of many files."""
    digest = hashlib.blake2b(os.fsencode(path.name), digest_size=5).hexdigest()
    return path.with_name(f".ucn-{digest}{number:02x}.part")


def _name_lock(path: Path) -> Path:
    return _name_scratch(path, 0).with_suffix(".lock")


def _remove(part: Path) -> None:
    if stat.S_ISDIR(part.lstat().st_mode):
        shutil.rmtree(part, ignore_errors=True)  # follows no link
    else:
        part.unlink()


_held: set[int] = set()


@functools.cache
def _watch_forks() -> None:
    """A forked process closes its copies of our locks, which would otherwise outlive this process."""

    def forget() -> None:
        while _held:
            os.close(_held.pop())

    os.register_at_fork(after_in_child=forget)


def _hold(path: Path, wait: bool = False, create: bool = False) -> int | None:
    """Locks a file or folder for this process until it ends; `_release` ends it sooner.

    Returns:
        What `_release` takes; None where the file system has no locks.

    Raises:
        BlockingIOError: another run has it.
        OSError: it is gone, or a link or something else that is neither a file nor a folder.
    """
    if fcntl is None:
        return None
    _watch_forks()
    is_folder = not create and stat.S_ISDIR(path.lstat().st_mode)
    access = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_NONBLOCK
    number = os.open(path, access | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o666)
    _held.add(number)
    try:
        if not is_folder and not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(f"{path} is not a regular file")
        try:
            fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            _release(number)
            return None
        if not os.path.samestat(os.fstat(number), path.lstat()):
            raise FileNotFoundError(f"{path} was removed")
    except BaseException:
        _release(number)
        raise
    return number


def _release(number: int | None) -> None:
    if number in _held:
        _held.discard(number)
        os.close(number)


@contextmanager
def lock_output(path: Path, is_folder: bool = False) -> Iterator[None]:
    """Keeps other runs from the same output; the lock ends with its process, however that ends.

    Args:
        path: the output; its folder must exist.
        is_folder: it is a folder that exists, in which the lock lies.

    Raises:
        OutputError: another run has the lock, or the folder cannot be written.
    """
    lock = _name_lock(path / _FOLDER if is_folder else path)
    held: int | None = None
    for attempt in range(1, _MAX_TRIES + 1):
        try:
            held = _hold(lock, create=True)
            break
        except BlockingIOError as error:
            if attempt < _LOCK_TRIES:  # `clean_up` holds a lock for a moment, to remove it
                time.sleep(0.05)
                continue
            raise OutputError(
                f"another run is writing {path}; wait until it has ended, or give another output"
            ) from error
        except FileNotFoundError as error:
            if not lock.parent.is_dir() or attempt == _MAX_TRIES:
                raise OutputError(
                    f"cannot write {path}: {lock.parent} does not exist; create it first"
                ) from error
        except OSError as error:
            raise OutputError(f"cannot lock {path} by {lock}: {explain_failure(error)}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            if held is None or os.path.samestat(os.fstat(held), lock.lstat()):
                lock.unlink()  # first: who opened it meanwhile finds that it is gone
        _release(held)


@contextmanager
def write_together(outputs: Sequence[Path], overwrite: bool) -> Iterator[list[Path]]:
    """Yields temporary paths with the names of the outputs, and moves them into place when all are written.

    After an error no output is changed. Where a run is killed while it moves new outputs, `clean_up` for the
    first of a folder removes those that it had moved. Another run for one of them is refused meanwhile.

    Raises:
        OutputError: the outputs cannot be written, or exist by now.
    """
    folders: dict[Path, Path] = {}
    with ExitStack() as stack:
        try:
            for path in outputs:
                stack.enter_context(lock_output(path))
                if path.parent not in folders:
                    folders[path.parent] = stack.enter_context(scratch_folder(path))
            places = [folders[path.parent] / path.name for path in outputs]
            yield places
            _move_together(places, outputs, overwrite)
        except OutputError as error:  # it names the temporary path, which means nothing to the user
            text = str(error)
            for parent, folder in folders.items():
                text = text.replace(str(folder), str(parent))
            raise OutputError(text) from error


def write_files(writers: Mapping[Path | None, Callable[[Path], object]], overwrite: bool) -> list[Path]:
    """Writes all outputs that are not None, or none; each function writes to the path that it is given.

    Raises:
        OutputError: as `write_together`.
    """
    requested = {path: write for path, write in writers.items() if path is not None}
    with write_together(list(requested), overwrite) as places:
        for write, place in zip(requested.values(), places, strict=True):
            write(place)
    return list(requested)


def _move_together(places: Sequence[Path], outputs: Sequence[Path], overwrite: bool) -> None:
    for path in outputs:  # another process may have written one meanwhile
        check_output(path, overwrite)
    records = {place.parent / _MOVES for place in places}
    if len(outputs) > 1 and not overwrite:
        for record in records:
            moved = {place.name: _identify(place) for place in places if place.parent == record.parent}
            record.write_text(json.dumps(moved), encoding="utf-8")
    for place, path in zip(places, outputs, strict=True):
        try:
            if overwrite:
                place.replace(path)
            else:
                _rename_unless_taken(place, path)
        except OSError as error:
            for record in records:
                _undo_moves(record.parent)
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"cannot write {path}: {explain_failure(error)}") from error
    for record in records:
        record.unlink(missing_ok=True)


def _identify(path: Path) -> list[int]:
    """What a file keeps when it is renamed, and loses when anyone writes it."""
    status = path.lstat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _undo_moves(folder: Path) -> None:
    """Removes the outputs that a killed run had moved out of its temporary folder, if nobody changed them."""
    try:
        moved = json.loads((folder / _MOVES).read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    for name, identity in moved.items() if isinstance(moved, dict) else ():
        path = folder.parent / Path(name).name
        with suppress(OSError):
            if _identify(path) == identity:
                path.unlink()


def exists_error(path: Path) -> OutputError:
    """The error that an output exists and `overwrite` is False."""
    return OutputError(f"{path} exists already and was kept; use overwrite=True or a new name")


def _rename_unless_taken(part: Path, path: Path) -> None:
    """Gives a file its name unless that is taken; the caller removes the old name."""
    try:
        os.link(part, path)  # unlike a renaming, a link never replaces a file that appears at that moment
    except FileExistsError as error:
        raise exists_error(path) from error
    except OSError:  # not every file system has links
        check_output(path)
        part.replace(path)


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


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
                _check_size(path, "arrays", sum(sizes), limit)
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
            _check_size(path, "arrays", sum(each.size * each.dtype.itemsize for each in held.values()), limit)
            if len(group.attrs) > _MAX_ATTRIBUTES:
                raise ValueError(f"it has {len(group.attrs):,} attributes")
            return {**dict(group.attrs), **{name: each[()] for name, each in held.items()}}
    raise DataError(f"{path} does not hold {content}: no group with {array_names[0]}")


def suggest(name: str, legal: Iterable[str]) -> str:
    """The end of an error about an unknown name: "; did you mean 'x'?", or "" where no legal one is close."""
    close = difflib.get_close_matches(name, list(legal), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


class RecentItems(Generic[_Key, _Value]):
    """A cache that drops the least recently used items first.

    Its methods may be called from several threads. A pickled or copied cache is empty.
    """

    def __init__(
        self,
        max_items: int | None = None,
        max_bytes: int | None = None,
        count_bytes: Callable[[_Value], int] | None = None,
        min_items: int = 1,
    ) -> None:
        """Starts empty.

        Args:
            max_items: the most items to keep; None sets no limit.
            max_bytes: the most bytes to keep, by `count_bytes`; None sets no limit.
            count_bytes: the size of a value in bytes; needed with `max_bytes`, and picklable where the cache
                is pickled.
            min_items: the last items that stay even where they exceed `max_bytes`.

        Raises:
            ValueError: a limit below 1, or `max_bytes` without `count_bytes`.
        """
        if min(min_items, min_items if max_items is None else max_items) < 1:
            raise ValueError(f"max_items and min_items must be 1 or more, got {max_items} and {min_items}")
        if max_bytes is not None and count_bytes is None:
            raise ValueError("max_bytes needs count_bytes; give a function from a value to its bytes")
        self._limits = (max_items, max_bytes, count_bytes, min_items)
        self._items: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._limits

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    @property
    def held_bytes(self) -> int:
        """Size of all items by `count_bytes`; 0 without it."""
        return self._bytes

    def get(self, key: _Key) -> _Value | None:
        """The value of a key, which counts as a use; None where it is not kept."""
        with self._lock:
            if key not in self._items:
                return None
            self._items.move_to_end(key)
            return self._items[key][0]

    def put(self, key: _Key, value: _Value) -> None:
        """Keeps a value, and drops the least recently used ones beyond the limits."""
        max_items, max_bytes, count_bytes, min_items = self._limits
        size = count_bytes(value) if count_bytes is not None else 0
        with self._lock:
            self._drop(key)
            self._items[key] = (value, size)
            self._bytes += size
            while (max_items is not None and len(self._items) > max_items) or (
                max_bytes is not None and self._bytes > max_bytes and len(self._items) > min_items
            ):
                self._drop(next(iter(self._items)))

    def get_or_make(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """The value of a key, made and kept where it is not there.

        `make` runs without a lock: two threads that ask for one key at once may both make it.
        """
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key][0]
        value = make()
        self.put(key, value)
        return value

    def remove(self, is_unwanted: Callable[[_Key], bool]) -> None:
        """Drops all items whose key fulfils a condition."""
        with self._lock:
            for key in [key for key in self._items if is_unwanted(key)]:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        if key in self._items:
            self._bytes -= self._items.pop(key)[1]
