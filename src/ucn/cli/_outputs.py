"""Outputs of a verb: checked before its work begins, written beside, and moved to their places together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def check_outputs(outputs: Sequence[Path], inputs: Iterable[Path | None], overwrite: bool) -> None:
    """Checks that outputs can be written and are neither each other nor an input.

    Raises:
        OutputError: one of them cannot.
    """
    from ucn.data.io import check_output
    from ucn.errors import OutputError

    resolved = [path.resolve() for path in outputs]
    for path, place in zip(outputs, resolved, strict=True):
        if resolved.count(place) > 1:
            raise OutputError(f"two outputs have the same name, {path}; give each its own")
    _check_inputs(outputs, inputs)
    for path in outputs:
        check_output(path, overwrite)


def check_folder(
    folder: Path, names: Sequence[str], overwrite: bool, inputs: Iterable[Path | None] = ()
) -> None:
    """Checks that files can be written into a folder and are no input, or that a missing one can be made.

    Raises:
        OutputError: they cannot.
    """
    from ucn.data.io import check_output
    from ucn.errors import OutputError

    try:
        is_folder, is_there = folder.is_dir(), folder.exists()
    except OSError:  # a name that is too long, say; check_output tells
        is_folder = is_there = False
    if is_folder:
        _check_inputs([folder / name for name in names], inputs)
        for name in names:
            check_output(folder / name, overwrite)
    elif is_there:
        raise OutputError(f"cannot write into {folder}: it is a file; give a folder with -o")
    else:
        check_output(folder)


@contextmanager
def write_together(outputs: Sequence[Path], overwrite: bool) -> Iterator[list[Path]]:
    """Gives places to write outputs to, under the same names; when all are written they move together.

    Where anything goes wrong before that, no output is touched and nothing is left.

    Raises:
        OutputError: the outputs cannot be written, or exist by now.
    """
    from ucn.errors import OutputError

    folders: dict[Path, Path] = {}
    try:
        for path in outputs:
            if path.parent not in folders:
                folders[path.parent] = _open_beside(path)
        places = [folders[path.parent] / path.name for path in outputs]
        yield places
        _move_all(places, outputs, overwrite)
    except OutputError as error:  # it names the place, which means nothing to the user
        text = str(error)
        for parent, folder in folders.items():
            text = text.replace(str(folder), str(parent))
        raise OutputError(text) from error
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)


def write_all(writers: Mapping[Path, Callable[[Path], object]], overwrite: bool) -> None:
    """Writes each output by the function that writes it to a given place; all or none.

    Raises:
        OutputError: as `write_together`.
    """
    with write_together(list(writers), overwrite) as places:
        for write, place in zip(writers.values(), places, strict=True):
            write(place)


def check_names(output: Path | None, suffixes: Sequence[str], what: str, draw: Path | None) -> None:
    """Checks the suffixes of a result's file and of its picture, as far as they are asked for.

    Raises:
        OutputError: one says no format that can be written.
    """
    from ucn.data.io import check_image_suffix
    from ucn.data.points import check_suffix

    if output is not None:
        check_suffix(output, suffixes, what)
    if draw is not None:
        check_image_suffix(draw)


def write_result(
    output: Path | None,
    write: Callable[[Path], object],
    draw: Path | None,
    paint: Callable[[], NDArray[np.uint8]],
    overwrite: bool,
) -> None:
    """Writes a result's file and its picture, as far as they are asked for; both or none.

    Raises:
        OutputError: as `write_together`.
    """
    from ucn.data.io import write_image

    writers: dict[Path, Callable[[Path], object]] = {}
    if output is not None:
        writers[output] = write
    if draw is not None:
        writers[draw] = lambda place: write_image(place, paint())
    write_all(writers, overwrite)


def _open_beside(path: Path) -> Path:
    """A new folder beside a file, so that moving from there copies nothing."""
    from ucn.errors import OutputError

    try:
        return Path(tempfile.mkdtemp(prefix=".ucn-", suffix=".part", dir=path.parent))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _move_all(places: Sequence[Path], outputs: Sequence[Path], overwrite: bool) -> None:
    from ucn.data.io import check_output
    from ucn.errors import OutputError

    for path in outputs:  # somebody else may have written one meanwhile
        check_output(path, overwrite)
    for place, path in zip(places, outputs, strict=True):
        try:
            place.replace(path)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _check_inputs(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    from ucn.errors import OutputError

    taken = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path.resolve() in taken:
            raise OutputError(f"cannot write {path}: it is an input; give another name")
