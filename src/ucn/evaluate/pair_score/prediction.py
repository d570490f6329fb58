"""Does the pair score tell pairs that match from pairs that do not? On HPatches and CUB."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ucn.data.catalogue import open_data
from ucn.data.checking import spread
from ucn.data.io import read_image
from ucn.data.transforms import resize_by
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import is_root
from ucn.evaluate.core.cache import RecordStore, digest_data
from ucn.evaluate.core.methods import Method
from ucn.evaluate.core.metrics import Shares
from ucn.evaluate.core.pair_lists import CUB_PAIRS
from ucn.evaluate.core.processes import share_work
from ucn.evaluate.pair_score.metrics import Reliability, area_under_roc, brier_score, measure_reliability
from ucn.evaluate.points.predictions import Progress
from ucn.matching.matcher import Matcher
from ucn.types import Features, PairSample

VERSION = 3
"""Goes into every key: raise it where code changes what is predicted."""
CUB_PAIR_COUNT = 500
"""Listed pairs of birds that are used, evenly spread."""
BINS = 10
"""Of the reliability plot."""

SCENES, BIRDS = "HPatches: same or other scene", "CUB: same or other kind of bird"
"""Groups of one data set."""
ONE_SIZE, OWN_SIZES = "CUB: bird or scene, one size", "CUB: bird or scene, own sizes"
"""Groups of birds against scenes: reduced to the size of the bird, and as they are."""

_KEPT_IMAGES = 16  # features of recent images, since pairs share them

_ImageKey = tuple[Path, int | None]  # a file, and the longest side to which it is reduced


@dataclass(frozen=True)
class LabelledPair:
    """Two images that show the same thing, or not.

    Attributes:
        group: which comparison it belongs to.
        is_match: whether they do.
        image0: file.
        image1: file.
        use_one_size: reduce image 1 to the longest side of image 0.
    """

    group: str
    is_match: bool
    image0: Path
    image1: Path
    use_one_size: bool = False


@dataclass(frozen=True)
class PairNumbers:
    """How well a method's score tells pairs apart, in numbers.

    Attributes:
        method: its name.
        group: of pairs.
        matching: how many match.
        others: how many do not.
        auroc: chance that one that matches scores above one that does not.
        brier: mean squared distance of the score from what is.
        calibration_error: mean distance of score and share in the bins of the reliability plot.
        accepted: share of matching pairs that score at least 0.5.
        wrongly_accepted: share of the others that do.
    """

    method: str
    group: str
    matching: int
    others: int
    auroc: float
    brier: float
    calibration_error: float
    accepted: float
    wrongly_accepted: float


@dataclass(frozen=True)
class PairFigure(PairNumbers):
    """These numbers, and the bins of the reliability plot.

    Attributes:
        reliability: the bins.
    """

    reliability: Reliability = field(repr=False)


def find_roots(folder: Path) -> dict[str, Path | None]:
    """Where HPatches and CUB are: the folder itself or one directly in it; None where neither is.

    Raises:
        DataError: there is no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: expected one that holds the folders of hpatches and cub")
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return {name: next((p for p in places if is_root(p, name)), None) for name in ("hpatches", "cub")}


def list_pairs(folder: Path) -> list[LabelledPair]:
    """The pairs of HPatches and of CUB, of those whose folder is the given one or lies in it.

    Each that matches is followed by one of its group that does not.

    Args:
        folder: holds them.

    Raises:
        DataError: neither is there, or one has faults.
    """
    roots = find_roots(folder)
    pairs: list[LabelledPair] = []
    scenes: list[Path] = []
    if roots["hpatches"] is not None:
        pairs, scenes = _pair_scenes(roots["hpatches"])
    if roots["cub"] is not None:
        pairs += _pair_birds(roots["cub"], scenes)
    if not pairs:
        raise DataError(f"neither hpatches nor cub in {folder}: expected it to hold their folders")
    return pairs


def _pair_scenes(folder: Path) -> tuple[list[LabelledPair], list[Path]]:
    """Image 1 of each sequence with its others and with those of the next sequence; and all images 1."""
    data = open_data("hpatches", folder)
    _refuse_faults(data.faults)
    sequences: dict[Path, list[tuple[Path, Path]]] = {}
    for index in range(len(data)):
        image0, image1 = data.image_paths(index)
        sequences.setdefault(image0.parent, []).append((image0, image1))
    if len(sequences) < 2:
        raise DataError(
            f"{folder}: pairs that do not match need at least two sequences, got {len(sequences)}"
        )
    own = list(sequences.values())
    pairs = []
    for number, sequence in enumerate(own):
        following = own[(number + 1) % len(own)]
        for row, (image0, image1) in enumerate(sequence):
            other = following[row % len(following)][1]
            pairs.append(LabelledPair(SCENES, True, image0, image1))
            pairs.append(LabelledPair(SCENES, False, image0, other))
    return pairs, [sequence[0][0] for sequence in own]


def _pair_birds(folder: Path, scenes: Sequence[Path]) -> list[LabelledPair]:
    """Birds of one kind against birds of another, and against scenes without birds where there are such."""
    data = open_data("cub", folder, "test", {"list_file": str(CUB_PAIRS)})
    _refuse_faults(data.faults)
    rows = spread(len(data), CUB_PAIR_COUNT)
    pairs = []
    for number, index in enumerate(rows):
        image0, image1 = data.image_paths(index)
        # Halfway round the list is another kind; should a kind be that frequent, the next one.
        turned = [*rows[number:], *rows[:number]]
        turned = [*turned[len(turned) // 2 :], *turned[: len(turned) // 2]]
        other = next((row for row in turned if data.pair_class(row) != data.pair_class(index)), None)
        kinds = [(BIRDS, None if other is None else data.image_paths(other)[1])]
        if scenes:
            # At one size what is shown decides. As they are, scenes are larger than birds, so that size goes
            # with the answer: that comparison shows how the score bears images of unequal sizes.
            kinds.append((ONE_SIZE, scenes[number % len(scenes)]))
            kinds.append((OWN_SIZES, scenes[number % len(scenes)]))
        for group, unlike in kinds:
            if unlike is not None:
                pairs.append(LabelledPair(group, True, image0, image1, group == ONE_SIZE))
                pairs.append(LabelledPair(group, False, image0, unlike, group == ONE_SIZE))
    return pairs


def choose_pairs(pairs: Sequence[LabelledPair], limit: int | None) -> list[int]:
    """Rows of at most `limit` matching pairs of each group, evenly spread, and of those that follow them."""
    rows: list[int] = []
    for group in dict.fromkeys(pair.group for pair in pairs):
        matching = [row for row, pair in enumerate(pairs) if pair.group == group and pair.is_match]
        kept = matching if limit is None else [matching[place] for place in spread(len(matching), limit)]
        rows += [row for first in kept for row in (first, first + 1)]
    return rows


def _refuse_faults(faults: Sequence[object]) -> None:
    if faults:
        raise DataError(f"{faults[0]} (`ucn data check` lists all {len(faults)} faults)")


def score_pairs(
    pairs: Sequence[LabelledPair],
    chosen: Sequence[int],
    matchers: Mapping[Method, Matcher],
    cache: Path,
    progress: Progress | None = None,
    jobs: int = 1,
) -> dict[str, list[float]]:
    """The score of each chosen pair by each matcher, in order; those in the cache are not made again.

    Args:
        pairs: all of `list_pairs`.
        chosen: rows of `choose_pairs`.
        matchers: with their default settings, for which their scores were calibrated.
        cache: folder of predictions.
        progress: called after each pair.
        jobs: processes that share the pairs; matchers of another device than the CPU need 1.
    """
    names = [(f"{pair.group}/{pair.is_match}", (pair.image0, pair.image1)) for pair in pairs]
    key = {"version": VERSION, "data": digest_data(names)}
    stores = {
        method: RecordStore(cache / "pair-score", method.name, {**key, "method": method.key})
        for method in matchers
    }
    tasks = []
    for number in chosen:
        missing = tuple(row for row, store in enumerate(stores.values()) if number not in store)
        if missing:
            tasks.append(_Task(number, pairs[number], missing))
    done, ordered = len(chosen) - len(tasks), list(stores.values())
    if progress is not None and done:
        progress(done, len(chosen))
    try:
        for task, found in share_work(_Scorer(list(matchers.values())), tasks, jobs):
            for row, score in zip(task.missing, found, strict=True):
                ordered[row].put(task.number, {"score": np.array(score, np.float64)})
            done += 1
            if progress is not None:
                progress(done, len(chosen))
    finally:
        for store in ordered:
            store.flush()
    return {
        method.name: [float(store.get(number)["score"]) for number in chosen]
        for method, store in stores.items()
    }


@dataclass(frozen=True)
class _Task:
    """A pair, and the numbers of the matchers whose scores are missing."""

    number: int
    pair: LabelledPair
    missing: tuple[int, ...]


class _Scorer:
    """Scores a pair wherever it is copied to."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self._matchers = matchers
        self._kept: list[OrderedDict[_ImageKey, Features]] = [OrderedDict() for _ in matchers]

    def __call__(self, task: _Task) -> list[float]:
        return [self._score(task.pair, row) for row in task.missing]

    def _score(self, pair: LabelledPair, row: int) -> float:
        matcher, kept = self._matchers[row], self._kept[row]
        features0 = _extract(matcher, (pair.image0, None), kept)
        side = max(features0.image_hw) if pair.use_one_size else None
        features1 = _extract(matcher, (pair.image1, side), kept)
        return float(matcher.match_features(features0, features1).pair_score)


def _extract(matcher: Matcher, key: _ImageKey, kept: OrderedDict[_ImageKey, Features]) -> Features:
    if key not in kept:
        path, side = key
        kept[key] = matcher.extract(path if side is None else _reduce(read_image(path), side))
    kept.move_to_end(key)
    while len(kept) > _KEPT_IMAGES:
        kept.popitem(last=False)
    return kept[key]


def _reduce(image: Tensor, side: int) -> Tensor:
    """An image (3, H, W) at a longest side; a smaller one stays."""
    empty = torch.zeros(0, 2)
    scale = min(1.0, side / max(image.shape[-2:]))
    return resize_by(PairSample(image, image, empty, empty, ""), scale, scale).image0


def measure(method: str, pairs: Sequence[LabelledPair], scores: Sequence[float]) -> list[PairFigure]:
    """The figures of a method, one a group."""
    figures = []
    for group in dict.fromkeys(pair.group for pair in pairs):
        rows = [row for row, pair in enumerate(pairs) if pair.group == group]
        values = np.array([scores[row] for row in rows])
        labels = np.array([pairs[row].is_match for row in rows])
        bins = measure_reliability(values, labels, BINS)
        figures.append(
            PairFigure(
                method=method,
                group=group,
                matching=int(labels.sum()),
                others=int((~labels).sum()),
                auroc=area_under_roc(values, labels),
                brier=brier_score(values, labels),
                calibration_error=bins.error,
                accepted=_share_accepted(values[labels]),
                wrongly_accepted=_share_accepted(values[~labels]),
                reliability=bins,
            )
        )
    return figures


def _share_accepted(scores: Shares) -> float:
    return float((scores >= 0.5).mean()) if len(scores) else float("nan")
