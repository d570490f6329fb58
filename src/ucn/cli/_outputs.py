"""Output files of a command: checked before the work begins, and moved into place together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Output:
    """A file that a command writes where an option names it.

    Attributes:
        path: None where it is not requested.
        content: what it holds, for errors.
        suffixes: legal endings of its name; empty for images.
    """

    path: Path | None
    content: str = "image"
    suffixes: Sequence[str] = ()


def check_files(outputs: Iterable[Output], inputs: Iterable[Path | None], overwrite: bool) -> None:
    """Checks the names of requested outputs, then as `check_outputs`.

    Raises:
        OutputError: a suffix names no known format, or a file cannot be written.
    """
    from ucn.data.io import check_image_suffix
    from ucn.data.points import check_suffix

    paths = []
    for output in outputs:
        if output.path is None:
            continue
        if output.suffixes:
            check_suffix(output.path, output.suffixes, output.content)
        else:
            check_image_suffix(output.path)
        paths.append(output.path)
    check_outputs(paths, inputs, overwrite)


def check_outputs(outputs: Sequence[Path], inputs: Iterable[Path | None], overwrite: bool) -> None:
    """Checks that outputs can be written, differ from each other, and are no input; raises `OutputError`."""
    from ucn.errors import OutputError
    from ucn.files import check_output, find_real_path

    resolved = [find_real_path(path) for path in outputs]
    for path, place in zip(outputs, resolved, strict=True):
        if resolved.count(place) > 1:
            raise OutputError(f"two outputs have the same name, {path}; give each its own")
    _check_inputs(outputs, inputs)
    for path in outputs:
        check_output(path, overwrite)


def check_folder(
    folder: Path, names: Sequence[str], overwrite: bool, inputs: Iterable[Path | None] = ()
) -> None:
    """As `check_outputs`, for files in a folder that may be missing."""
    from ucn.errors import OutputError
    from ucn.files import check_output

    try:
        is_folder, exists = folder.is_dir(), folder.exists()
    except OSError:  # a name that is too long, say; check_output explains it
        is_folder = exists = False
    if is_folder:
        _check_inputs([folder / name for name in names], inputs)
        for name in names:
            check_output(folder / name, overwrite)
    elif exists:
        raise OutputError(f"cannot write into {folder}: it is a file; give a folder with -o")
    else:
        check_output(folder)


@contextmanager
def write_together(outputs: Sequence[Path], overwrite: bool) -> Iterator[list[Path]]:
    """Yields temporary paths with the names of the outputs, and moves them into place when all are written.

    After an error no output is changed and no temporary file is left.

    Raises:
        OutputError: the outputs cannot be written, or exist by now.
    """
    from ucn.errors import OutputError

    folders: dict[Path, Path] = {}
    try:
        for path in outputs:
            if path.parent not in folders:
                folders[path.parent] = _make_temporary_folder(path)
        places = [folders[path.parent] / path.name for path in outputs]
        yield places
        _move_all(places, outputs, overwrite)
    except OutputError as error:  # it names the temporary path, which means nothing to the user
        text = str(error)
        for parent, folder in folders.items():
            text = text.replace(str(folder), str(parent))
        raise OutputError(text) from error
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)


def write_files(writers: Mapping[Path | None, Callable[[Path], object]], overwrite: bool) -> list[Path]:
    """Writes all requested outputs or none; each function writes to the path that it is given.

    Raises:
        OutputError: as `write_together`.
    """
    requested = {path: write for path, write in writers.items() if path is not None}
    with write_together(list(requested), overwrite) as places:
        for write, place in zip(requested.values(), places, strict=True):
            write(place)
    return list(requested)


def _make_temporary_folder(path: Path) -> Path:
    """A new folder in the folder of the output, so that moving from there copies nothing."""
    from ucn.errors import OutputError

    try:
        return Path(tempfile.mkdtemp(prefix=".ucn-", suffix=".part", dir=path.parent))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _move_all(places: Sequence[Path], outputs: Sequence[Path], overwrite: bool) -> None:
    from ucn.errors import OutputError
    from ucn.files import check_output

    for path in outputs:  # another process may have written one meanwhile
        check_output(path, overwrite)
    for place, path in zip(places, outputs, strict=True):
        try:
            place.replace(path)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _check_inputs(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    from ucn.errors import OutputError
    from ucn.files import find_real_path

    taken = {find_real_path(path) for path in inputs if path is not None}
    for path in outputs:
        if find_real_path(path) in taken:
            raise OutputError(f"cannot write {path}: it is an input; give another name")
