"""Checks of all outputs of a verb before its work begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


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


def _check_inputs(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    from ucn.errors import OutputError

    taken = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path.resolve() in taken:
            raise OutputError(f"cannot write {path}: it is an input; give another name")
