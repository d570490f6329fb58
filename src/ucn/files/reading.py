"""Safe reading of files that strangers may have made: regular files only, within limits."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ucn.errors import DataError

MAX_TEXT_BYTES = 256 * 2**20
"""Larger text files are refused unread."""
MAX_BINARY_BYTES = 2**30
"""Larger binary files (flow, scans, .mat) are refused unread."""
QUOTED = 80
"""The most characters of a stranger's file that a message quotes at once."""

_QUOTATION = re.compile(rf"([\"'`].{{{QUOTED}}}).+")  # too long, in a message of a library


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


def check_size(path: Path, what: str, size: int, limit: int) -> None:
    """Raises `DataError` where a file, or what it declares, is larger than `limit` bytes."""
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
    line = _QUOTATION.sub(r"\1…", line)
    return line if len(line) <= length else f"{line[:length]}…"


def find_real_path(path: Path) -> Path:
    """A path without links, as `Path.resolve`, which fails in a loop of links."""
    return Path(os.path.realpath(path))


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
