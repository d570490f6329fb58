"""What a run says while it goes on: reports, a log for programs, and TensorBoard."""

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

from ucn.data.io import write_bytes_atomically
from ucn.errors import OutputError, UcnError
from ucn.nn import CorrespondenceNetwork
from ucn.train.sources.batches import Source
from ucn.train.validation import match_batch_points
from ucn.types import Matches, PairBatch
from ucn.viz import draw_matches
from ucn.viz.colours import Picture

_PICTURES = 4
_PICTURE_WIDTH = 900
_ERROR_LIMIT = 5.0  # pixels
_ERROR_LIMIT_SHARE = 0.1  # of a pair's length, where it has one


@dataclass(frozen=True)
class Progress:
    """What the loop reports.

    Attributes:
        step: steps done.
        loss: mean over the steps since the last report.
        pairs_per_second: over the same steps, of all processes together.
        correspondences_per_second: likewise.
        gradient_norm: mean length of the gradient before clipping, over the same steps.
        rates: the learning rates of 'trunk' and 'head' in the last of them.
        memory_bytes: the most that was ever taken on the GPU; None without one.
        pck: after a validation its figures, as in `Validation`; else None.
        score: after a validation its score; else None.
    """

    step: int
    loss: float
    pairs_per_second: float
    correspondences_per_second: float = 0.0
    gradient_norm: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    pck: dict[str, float] | None = None
    score: float | None = None


class RunLog:
    """A file of JSON Lines: an object for each report, and for each beginning and end.

    Each has an `event`: start, resume, progress or stop. Those of `progress` have the keys of `Progress`.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        """Opens the log of a run that has made so many steps; what it says of later ones is forgotten.

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
        self.note("progress", **asdict(progress))

    def note(self, event: str, **values: Any) -> None:
        """Writes one line, at once, so that a run that is killed has said what it knew."""
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


def _read_lines(path: Path, step: int) -> list[str]:
    """The lines of an earlier log up to a step; a line that a kill cut off is dropped."""
    kept: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}") from error
    for line in lines:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        place = said.get("step") if isinstance(said, dict) else None
        if isinstance(place, int) and place <= step:
            kept.append(line)
    return kept


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_board() -> None:
    """Checks that TensorBoard's events can be written.

    Raises:
        UcnError: the package tensorboard is not installed.
    """
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UcnError("--tensorboard needs the package tensorboard: pip install 'ucn[train]'") from error


class Board:
    """TensorBoard: the figures of each report and, at each validation, pictures of matches."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        """Opens a folder of events; of those of an earlier run, the ones after a step are hidden.

        Raises:
            UcnError: the package tensorboard is not installed.
        """
        check_board()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def __call__(self, progress: Progress) -> None:
        """Writes the figures of a report."""
        figures: dict[str, float | None] = {
            "loss": progress.loss,
            "gradient norm": progress.gradient_norm,
            "speed/pairs per second": progress.pairs_per_second,
            "speed/correspondences per second": progress.correspondences_per_second,
            "speed/GPU memory in GB": None if progress.memory_bytes is None else progress.memory_bytes / 1e9,
            "validation/score": progress.score,
        }
        figures |= {f"rate/{part}": rate for part, rate in progress.rates.items()}
        figures |= {f"validation/{name}": value for name, value in (progress.pck or {}).items()}
        for name, value in figures.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, progress.step)
        self._writer.flush()

    def draw(self, step: int, model: CorrespondenceNetwork, sources: Sequence[Source]) -> None:
        """Draws the matches of a few held-out pairs, coloured by their errors."""
        for source in sources:
            pairs = first_pairs(source, max(1, _PICTURES // len(sources)))
            for number, pair in enumerate(pairs):
                self._writer.add_image(
                    f"{source.label}/{number}", draw_pair(model, pair), step, dataformats="HWC"
                )
        self._writer.flush()

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()


def first_pairs(source: Source, count: int) -> list[PairBatch]:
    """The first held-out pairs of a source, each with a batch axis of 1."""
    pairs: list[PairBatch] = []
    for batch in source.validation():
        pairs += list(batch)
        if len(pairs) >= count:
            break
    return pairs[:count]


def draw_pair(model: CorrespondenceNetwork, pair: PairBatch) -> Picture:
    """A picture (H, W, 3) of where a network finds the true points of image 0, coloured by the errors."""
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
    return draw_matches(*images, matches, errors=errors, error_limit=limit, width=_PICTURE_WIDTH)


def _to_array(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return tensor.detach().to("cpu", torch.float32).numpy()
