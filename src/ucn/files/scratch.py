"""Temporary files beside outputs, locks of outputs, and what killed runs leave of both."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ucn.errors import OutputError
from ucn.files.reading import explain_failure

try:
    import fcntl
except ImportError:  # Windows: no locks, and what a killed run left stays
    fcntl = None  # type: ignore[assignment]

_SCRATCH_NAME = re.compile(r"\.ucn-[0-9a-f]{12}\.part")
_SCRATCHES = 4  # places beside an output in which the remains of killed runs are looked for
_LOCK_TRIES, _MAX_TRIES = 4, 64
_FOLDER = "folder"  # its lock is as if of a file of that name in it
MOVES = ".ucn-moves.json"


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
                    undo_moves(part)
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


def identify(path: Path) -> list[int]:
    """What a file keeps when it is renamed, and loses when anyone writes it."""
    status = path.lstat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def undo_moves(folder: Path) -> None:
    """Removes the outputs that a killed run had moved out of its temporary folder, if nobody changed them."""
    try:
        moved = json.loads((folder / MOVES).read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    for name, identity in moved.items() if isinstance(moved, dict) else ():
        path = folder.parent / Path(name).name
        with suppress(OSError):
            if identify(path) == identity:
                path.unlink()
