"""The files of a report, and what a run was made with."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

import ucn
from ucn.data.io import check_output, write_bytes_atomically
from ucn.errors import OutputError
from ucn.evaluate.core.report import Report, to_dict, write_csv, write_latex, write_markdown

SHEET = "-sheet.jpg"
"""How the file of qualitative matches ends."""
QUERIES = "-queries.jpg"
"""How the file of query points and answers in like colours ends."""

_TEXTS = (".json", ".csv", ".md", ".tex")
_PACKAGES = (
    *("torch", "numpy", "opencv-contrib-python-headless", "onnxruntime", "poselib", "kornia", "numba"),
    "pycolmap",
)


def list_outputs(
    folder: Path, name: str, plots: Sequence[str] = ("",), pictures: Sequence[str] = ()
) -> list[Path]:
    """The files that a run of a benchmark writes into a folder.

    Args:
        folder: of the results.
        name: of the benchmark.
        plots: suffixes of its figures.
        pictures: endings of its other pictures.
    """
    figures = [f"{suffix}{end}" for suffix in plots for end in (".png", ".svg")]
    return [folder / f"{name}{end}" for end in (*_TEXTS, *figures, *pictures)]


def check_outputs(paths: Sequence[Path], overwrite: bool) -> None:
    """Makes the folder and checks, before the work, that the files can be written; raises `OutputError`."""
    for folder in {path.parent for path in paths}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    for path in paths:
        check_output(path, overwrite)


def write_outputs(
    report: Report, folder: Path, overwrite: bool, pictures: Mapping[str, bytes] | None = None
) -> list[Path]:
    """Writes a run as JSON, CSV, Markdown, LaTeX and figures.

    Args:
        report: of the run.
        folder: where to, existing.
        overwrite: whether files may be replaced.
        pictures: other pictures by the endings of their names.
    """
    pictures = pictures or {}
    content = json.dumps(to_dict(report), indent=1, ensure_ascii=False, allow_nan=False)
    texts = (f"{content}\n", write_csv(report), write_markdown(report), write_latex(report))
    contents = [text.encode() for text in texts]
    for plot in report.plots:
        contents += [plot.png, plot.svg]
    contents += pictures.values()
    paths = list_outputs(folder, report.name, [plot.suffix for plot in report.plots], list(pictures))
    for path, content_bytes in zip(paths, contents, strict=True):
        write_bytes_atomically(path, content_bytes, overwrite)
    return paths


def find_versions() -> dict[str, str]:
    """Versions of this package and of those that figures may depend on and that are installed."""
    found = {"ucn": ucn.__version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def name_device(device: str) -> str:
    """What a device is, for people."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores" if device == "cpu" else device
