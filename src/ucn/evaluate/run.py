"""A benchmark from beginning to end: both stages, and the files of a report."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ucn.data.checking import spread
from ucn.data.io import check_output, write_bytes_atomically
from ucn.errors import DataError, OutputError
from ucn.evaluate.benchmarks import Benchmark
from ucn.evaluate.methods import LoadedMethods
from ucn.evaluate.plots import draw_curves
from ucn.evaluate.predictions import Progress, predict_pairs
from ucn.evaluate.report import Report, to_dict, write_csv, write_markdown
from ucn.evaluate.scoring import score_predictions

SUFFIXES = (".json", ".csv", ".md", ".png")
"""Of the files that a run writes."""

_PACKAGES = ("ucn", "torch", "numpy", "opencv-contrib-python-headless", "onnxruntime")


@dataclass(frozen=True)
class RunSettings:
    """What a user chooses beside benchmark and methods.

    Attributes:
        cache: folder of predictions.
        limit: at most so many pairs, evenly spread; None takes all.
        seed: of points and resampling.
        refinements: whether matches are placed between cells; both are measured by default.
        device: where networks of torch and matching run.
        command: that makes the run again, for the report.
    """

    cache: Path
    limit: int | None = None
    seed: int = 0
    refinements: Sequence[bool] = (True, False)
    device: str = "cpu"
    command: str = ""


def run_benchmark(
    benchmark: Benchmark,
    folder: Path,
    loaded: LoadedMethods,
    settings: RunSettings,
    progress: Progress | None = None,
) -> Report:
    """Predicts what is not yet cached, and scores everything.

    Args:
        benchmark: of `find_benchmark`.
        folder: of its data; bundled benchmarks ignore it.
        loaded: of `load_methods`.
        settings: the user's choices.
        progress: called after each pair.

    Raises:
        DataError: the folder is not that data set, or there is nothing to measure.
    """
    if not loaded.methods:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in loaded.skipped.items())
        raise DataError(f"no method can be measured: {reasons or 'none was asked for'}")
    entries = benchmark.open(folder)
    chosen = list(range(len(entries)))
    if settings.limit is not None:
        chosen = spread(len(entries), settings.limit)
    predictions = predict_pairs(
        benchmark,
        entries,
        chosen,
        loaded.methods,
        settings.cache,
        refinements=settings.refinements,
        seed=settings.seed,
        device=settings.device,
        progress=progress,
    )
    point_count = sum(len(pair.points1) for pair in predictions.pairs)
    if not point_count:
        raise DataError(f"{folder}: no correspondences in the {len(chosen)} pairs asked; nothing to measure")
    return Report(
        benchmark=benchmark,
        command=settings.command,
        methods=tuple(loaded.methods),
        skipped=loaded.skipped,
        scores=score_predictions(benchmark, predictions, settings.seed),
        pair_count=len(entries),
        asked_count=len(chosen),
        point_count=point_count,
        seed=settings.seed,
        points_sha256=predictions.points_sha256,
        versions=_find_versions(),
        device=_name_device(settings.device),
    )


def list_outputs(folder: Path, name: str) -> list[Path]:
    """The files that a run of a benchmark writes into a folder."""
    return [folder / f"{name}{suffix}" for suffix in SUFFIXES]


def check_outputs(folder: Path, name: str, overwrite: bool) -> None:
    """Makes the folder and checks, before the work, that the files can be written; raises `OutputError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    for path in list_outputs(folder, name):
        check_output(path, overwrite)


def write_outputs(report: Report, folder: Path, overwrite: bool) -> list[Path]:
    """Writes a run as JSON, CSV, Markdown and a picture of its curves."""
    paths = list_outputs(folder, report.benchmark.name)
    content = json.dumps(to_dict(report), indent=1, ensure_ascii=False, allow_nan=False)
    contents = (
        f"{content}\n".encode(),
        write_csv(report).encode(),
        write_markdown(report, paths[-1].name).encode(),
        draw_curves(report),
    )
    for path, content_bytes in zip(paths, contents, strict=True):
        write_bytes_atomically(path, content_bytes, overwrite)
    return paths


def _find_versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _name_device(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores" if device == "cpu" else device
