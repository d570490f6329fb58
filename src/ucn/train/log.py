"""Reports of a run: `Progress`, a log in JSON Lines, and TensorBoard."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ucn.errors import OutputError, UcnError
from ucn.files import write_bytes_atomically
from ucn.nn import CorrespondenceNetwork
from ucn.train.sources.batches import Source
from ucn.train.validation import match_batch_points
from ucn.types import Matches, PairBatch
from ucn.viz import draw_matches
from ucn.viz.colours import ImageArray

_BEGIN = b'{"event": "'  # of every line
_IMAGES = 4
_IMAGE_WIDTH = 900
_ERROR_LIMIT = 5.0  # pixels
_ERROR_LIMIT_SHARE = 0.1  # of `pck_length`, where a pair has one


@dataclass(frozen=True)
class Progress:
    """A report of the training loop.

    Attributes:
        step: number of steps so far.
        loss: mean over the steps since the last report.
        pairs_per_second: over the same steps, of all processes together.
        correspondences_per_second: over the same steps, of all processes together.
        seconds_per_step: mean over the same steps; 0 where unknown.
        gradient_norm: mean over the same steps, before clipping.
        learning_rates: of 'trunk' and 'head', in the last step.
        memory_bytes: peak memory of the GPU; None without one.
        pck: metrics of a validation, as in `Validation`; else None.
        score: of a validation; else None.
    """

    step: int
    loss: float
    pairs_per_second: float
    correspondences_per_second: float = 0.0
    seconds_per_step: float = 0.0
    gradient_norm: float = 0.0
    learning_rates: dict[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    pck: dict[str, float] | None = None
    score: float | None = None


class RunLog:
    """A log in JSON Lines: one object for each report, and for each start and end of the run.

    Each object has an `event`: start, resume, progress, stop or end. Those of `progress` have the keys of
    `Progress`.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        """Opens the log of a run at a step; lines of an existing log about later steps are dropped.

        Raises:
            OutputError: the file cannot be written.
        """
        self._path = path
        kept = _read_lines(path, step) if step else []
        write_bytes_atomically(path, "".join(f"{line}\n" for line in kept).encode(), overwrite=True)
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def __call__(self, progress: Progress) -> None:
        """Writes a report."""
        self.write("progress", **asdict(progress))

    def write(self, event: str, **values: Any) -> None:
        """Writes one line and flushes, so that a killed run leaves a complete log."""
        line = json.dumps(_without_nan({"event": event, **values}), allow_nan=False)
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def is_log(path: Path) -> bool:
    """Whether a file is a log of ucn, or empty, as a run that was killed at once leaves it; a link is not."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(len(_BEGIN))
    return _BEGIN.startswith(begin) if len(begin) < len(_BEGIN) else begin == _BEGIN


def _read_lines(path: Path, step: int) -> list[str]:
    """The lines of an existing log up to a step; an incomplete line is dropped."""
    kept: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}") from error
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        logged = entry.get("step") if isinstance(entry, dict) else None
        if isinstance(logged, int) and logged <= step:
            kept.append(line)
    return kept


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_tensorboard() -> None:
    """Checks that TensorBoard is installed.

    Raises:
        UcnError: the package tensorboard is not installed.
    """
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UcnError("TensorBoard needs the package tensorboard: pip install 'ucn[train]'") from error


class TensorBoardLog:
    """TensorBoard: the metrics of each report and, at each validation, images of matches."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        """Opens a folder of events; events of an earlier run after `step` are hidden.

        Raises:
            UcnError: the package tensorboard is not installed.
        """
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def __call__(self, progress: Progress) -> None:
        """Writes the metrics of a report."""
        metrics: dict[str, float | None] = {
            "loss": progress.loss,
            "gradient norm": progress.gradient_norm,
            "speed/pairs per second": progress.pairs_per_second,
            "speed/correspondences per second": progress.correspondences_per_second,
            "speed/GPU memory in GB": None if progress.memory_bytes is None else progress.memory_bytes / 1e9,
            "validation/score": progress.score,
        }
        metrics |= {f"learning rate/{part}": rate for part, rate in progress.learning_rates.items()}
        metrics |= {f"validation/{name}": value for name, value in (progress.pck or {}).items()}
        for name, value in metrics.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, progress.step)
        self._writer.flush()

    def draw_matches(self, step: int, model: CorrespondenceNetwork, sources: Sequence[Source]) -> None:
        """Writes images of the matches of a few held-out pairs, coloured by their errors."""
        for source in sources:
            pairs = first_pairs(source, max(1, _IMAGES // len(sources)))
            for number, pair in enumerate(pairs):
                self._writer.add_image(
                    f"{source.label}/{number}", draw_pair(model, pair), step, dataformats="HWC"
                )
        self._writer.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._writer.close()


def first_pairs(source: Source, count: int) -> list[PairBatch]:
    """The first held-out pairs of a source, each with a batch axis of 1."""
    pairs: list[PairBatch] = []
    for batch in source.validation_batches():
        pairs += list(batch)
        if len(pairs) >= count:
            break
    return pairs[:count]


def draw_pair(model: CorrespondenceNetwork, pair: PairBatch) -> ImageArray:
    """An image (H, W, 3) of the matches of a pair's annotated points, coloured by their errors."""
    is_valid = pair.is_valid[0]
    points0, points1 = pair.points0[0][is_valid], pair.points1[0][is_valid]
    found = match_batch_points(model, pair, points0)
    errors = _to_array((found - points1).norm(dim=-1))
    size_hw = pair.image0.shape[-2], pair.image0.shape[-1]
    matches = Matches(
        points0=_to_array(points0),
        points1=_to_array(found),
        scores=np.ones(len(points0), np.float32),
        is_mutual=np.ones(len(points0), np.bool_),
        pair_score=1.0,
        image0_hw=size_hw,
        image1_hw=size_hw,
    )
    length = pair.pck_length
    limit = _ERROR_LIMIT if length is None else max(1.0, _ERROR_LIMIT_SHARE * float(length[0]))
    images = pair.image0[0].float().clamp(0, 1).cpu(), pair.image1[0].float().clamp(0, 1).cpu()
    return draw_matches(*images, matches, errors=errors, error_limit=limit, width=_IMAGE_WIDTH)


def _to_array(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return tensor.detach().to("cpu", torch.float32).numpy()
