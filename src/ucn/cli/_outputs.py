"""Output files of a command, checked before the work begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """Checks that outputs can be written, differ from each other, and are no input; raises `OutputError`.

    What a killed run left beside them is removed.
    """
    from ucn.errors import OutputError
    from ucn.files import check_output, clean_up, find_real_path

    resolved = [find_real_path(path) for path in outputs]
    for path, place in zip(outputs, resolved, strict=True):
        if resolved.count(place) > 1:
            raise OutputError(f"two outputs have the same name, {path}; give each its own")
    _check_inputs(outputs, inputs)
    for path in outputs:
        clean_up(path)
    for path in outputs:
        check_output(path, overwrite)


def check_folder(
    folder: Path, names: Sequence[str], overwrite: bool, inputs: Iterable[Path | None] = ()
) -> None:
    """As `check_outputs`, for files in a folder that may be missing."""
    from ucn.errors import OutputError
    from ucn.files import check_output, clean_up

    try:
        is_folder, exists = folder.is_dir(), folder.exists()
    except OSError:  # a name that is too long, say; check_output explains it
        is_folder = exists = False
    if is_folder:
        _check_inputs([folder / name for name in names], inputs)
        for path in (folder, *(folder / name for name in names)):
            clean_up(path)
        for name in names:
            check_output(folder / name, overwrite)
    elif exists:
        raise OutputError(f"cannot write into {folder}: it is a file; give a folder with -o")
    else:
        check_output(folder)


def _check_inputs(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    from ucn.errors import OutputError
    from ucn.files import find_real_path

    taken = {find_real_path(path) for path in inputs if path is not None}
    for path in outputs:
        if find_real_path(path) in taken:
            raise OutputError(f"cannot write {path}: it is an input; give another name")
