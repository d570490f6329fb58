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
    if len(set(resolved)) < len(resolved):
        raise OutputError(f"two outputs have the same name, {outputs[0]}; give each its own")
    taken = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path.resolve() in taken:
            raise OutputError(f"cannot write {path}: it is an input; give another name")
        check_output(path, overwrite)
