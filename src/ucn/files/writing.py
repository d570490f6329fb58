"""Atomic writing: of one file, and of several together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from ucn.errors import OutputError
from ucn.files.reading import explain_failure
from ucn.files.scratch import MOVES, clean_up, identify, lock_output, scratch_file, scratch_folder, undo_moves


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
    records = {place.parent / MOVES for place in places}
    if len(outputs) > 1 and not overwrite:
        for record in records:
            moved = {place.name: identify(place) for place in places if place.parent == record.parent}
            record.write_text(json.dumps(moved), encoding="utf-8")
    for place, path in zip(places, outputs, strict=True):
        try:
            if overwrite:
                place.replace(path)
            else:
                _rename_unless_taken(place, path)
        except OSError as error:
            for record in records:
                undo_moves(record.parent)
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"cannot write {path}: {explain_failure(error)}") from error
    for record in records:
        record.unlink(missing_ok=True)


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
