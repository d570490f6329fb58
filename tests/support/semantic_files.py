"""Tiny files of semantic data sets, for the tests of their readers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import scipy.io


def write_flat_image(path: Path, width: int, height: int, grey: int = 128) -> Path:
    """An image of one grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.full((height, width, 3), grey, np.uint8)).save(path)
    return path


def write_mat(path: Path, values: Mapping[str, Any], is_packed: bool = False) -> Path:
    """A MATLAB file of version 5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, dict(values), do_compression=is_packed)
    return path


def write_text(path: Path, *lines: str) -> Path:
    """A text file of these lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
