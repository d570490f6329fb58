"""Stage 1 of `pair-score`: matching and non-matching pairs of HPatches and CUB, and their pair scores.

Noise, blank images and patterns, which match nothing, make further non-matching pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ucn.data.catalogue import open_data
from ucn.data.checking import spread
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import CUB_PAIRS, choose_rows, is_root, refuse_problems
from ucn.evaluate.core.cache import PredictionCache, Record, digest_data
from ucn.evaluate.core.predictions import FeatureCache, Progress, Task, predict_missing
from ucn.evaluate.pair_score.drawn import Drawn, Photograph, pair_drawn
from ucn.features.method import DenseMethod
from ucn.matching.matcher import Matcher
from ucn.types import Features

VERSION = 4
"""Part of every key: raise it where code changes what is predicted."""
CUB_PAIR_COUNT = 500
"""Listed pairs of birds that are used, evenly spread."""

SCENES, BIRDS = "HPatches: same or other scene", "CUB: same or other kind of bird"
"""Groups of one data set."""
ONE_SIZE, OWN_SIZES = "CUB: bird or scene, one size", "CUB: bird or scene, own sizes"
"""Groups of birds against scenes: reduced to the size of the bird image, and at their own size."""

_KEPT_IMAGES = 16  # whose features are kept, since pairs share images

Source = Path | Drawn | Photograph
"""An image: a file at its own size, a drawn one, or a file at another size."""


@dataclass(frozen=True)
class LabelledPair:
    """Two images, and whether they show the same scene or kind of bird.

    Attributes:
        group: which comparison it belongs to.
        is_match: whether they match.
        image0: the first image.
        image1: the second.
        use_one_size: reduce image 1, a file, to the longest side of image 0.
    """

    group: str
    is_match: bool
    image0: Source
    image1: Source
    use_one_size: bool = False


def find_roots(folder: Path) -> dict[str, Path | None]:
    """The folders of HPatches and CUB: the given one or one directly in it; None where it is neither.

    Raises:
        DataError: there is no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: expected one that holds the folders of hpatches and cub")
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return {name: next((p for p in places if is_root(p, name)), None) for name in ("hpatches", "cub")}


def list_pairs(folder: Path) -> list[LabelledPair]:
    """The pairs of HPatches and CUB, whichever the folder is or holds, then those of drawn images.

    Each matching pair is followed by a non-matching one of its group. Groups of drawn images have only
    non-matching pairs.

    Args:
        folder: holds them.

    Raises:
        DataError: the folder holds neither, or one has problems.
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
    files = [pair.image0 for pair in pairs if isinstance(pair.image0, Path)]
    photographs = scenes or list(dict.fromkeys(files))
    return pairs + [LabelledPair(group, False, *images) for group, images in pair_drawn(photographs)]


def _pair_scenes(folder: Path) -> tuple[list[LabelledPair], list[Path]]:
    """Image 1 of each sequence with its others and with those of the next sequence; and all images 1."""
    data = open_data("hpatches", folder)
    refuse_problems(data)
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
    """Birds of one kind against birds of another, and against scenes without birds if there are any."""
    data = open_data("cub", folder, "test", {"list_file": str(CUB_PAIRS)})
    refuse_problems(data)
    rows = spread(len(data), CUB_PAIR_COUNT)
    pairs = []
    for number, index in enumerate(rows):
        image0, image1 = data.image_paths(index)
        # Half the list further is another kind; where a kind is that frequent, the next one is taken.
        turned = [*rows[number:], *rows[:number]]
        turned = [*turned[len(turned) // 2 :], *turned[: len(turned) // 2]]
        other = next((row for row in turned if data.pair_class(row) != data.pair_class(index)), None)
        kinds = [(BIRDS, None if other is None else data.image_paths(other)[1])]
        if scenes:
            # At their own sizes scenes are larger than birds, so the size correlates with the label: that
            # group shows how robust the score is to unequal sizes. At one size only the content differs.
            kinds.append((ONE_SIZE, scenes[number % len(scenes)]))
            kinds.append((OWN_SIZES, scenes[number % len(scenes)]))
        for group, unlike in kinds:
            if unlike is not None:
                pairs.append(LabelledPair(group, True, image0, image1, group == ONE_SIZE))
                pairs.append(LabelledPair(group, False, image0, unlike, group == ONE_SIZE))
    return pairs


def choose_pairs(pairs: Sequence[LabelledPair], limit: int | None) -> list[int]:
    """Rows of at most `limit` matching pairs of each group, evenly spread, each with the next row.

    Of groups without matching pairs, at most `limit` pairs.
    """
    rows: list[int] = []
    for group in dict.fromkeys(pair.group for pair in pairs):
        own = [row for row, pair in enumerate(pairs) if pair.group == group]
        matching = [row for row in own if pairs[row].is_match]
        first = matching or own
        kept = [first[place] for place in choose_rows(len(first), limit)]
        rows += [row for start in kept for row in ((start, start + 1) if matching else (start,))]
    return rows


def digest_labelled(pairs: Sequence[LabelledPair]) -> str:
    """A hash of groups, labels, names and sizes of the images, and of how images are drawn."""
    return digest_data((_identify(pair), _list_files(pair)) for pair in pairs)


def _identify(pair: LabelledPair) -> str:
    shown = [
        f"{image}" if isinstance(image, Drawn) else f"{image.side}"
        for image in (pair.image0, pair.image1)
        if not isinstance(image, Path)
    ]
    return "/".join([pair.group, str(pair.is_match), *shown])


def _list_files(pair: LabelledPair) -> list[Path]:
    images = (pair.image0, pair.image1)
    return [
        image.path if isinstance(image, Photograph) else image
        for image in images
        if not isinstance(image, Drawn)
    ]


def predict_scores(
    pairs: Sequence[LabelledPair],
    chosen: Sequence[int],
    matchers: Mapping[DenseMethod, Matcher],
    cache: Path,
    progress: Progress | None = None,
    jobs: int = 1,
) -> dict[str, list[float]]:
    """The pair score of each chosen pair by each matcher; those in the cache are not computed again.

    Args:
        pairs: all of `list_pairs`.
        chosen: rows of `choose_pairs`.
        matchers: with their default settings, for which their scores were calibrated.
        cache: folder of predictions.
        progress: called after each pair.
        jobs: processes that share the pairs; matchers of another device than the CPU need 1.
    """
    key = {"version": VERSION, "data": digest_labelled(pairs)}
    caches = [
        PredictionCache(cache / "pair-score", method.name, {**key, "method": method.key})
        for method in matchers
    ]
    predict_missing(_Predictor(pairs, list(matchers.values())), chosen, caches, jobs, progress)
    return {
        method.name: [float(own.get(row)["score"]) for row in chosen]
        for method, own in zip(matchers, caches, strict=True)
    }


class _Predictor:
    """Scores a pair with each matcher."""

    def __init__(self, pairs: Sequence[LabelledPair], matchers: Sequence[Matcher]) -> None:
        self._pairs, self._matchers = pairs, matchers
        self._features = [FeatureCache(partial(_extract, matcher), _KEPT_IMAGES) for matcher in matchers]

    def __call__(self, task: Task) -> list[Record]:
        pair = self._pairs[task.pair]
        return [{"score": np.array(self._score(pair, number), np.float64)} for number in task.missing]

    def _score(self, pair: LabelledPair, number: int) -> float:
        matcher, cache = self._matchers[number], self._features[number]
        features0, source1 = cache.extract(pair.image0, pair.image0), pair.image1
        if pair.use_one_size and isinstance(source1, Path):
            source1 = Photograph(source1, max(features0.image_hw))
        features1 = cache.extract(source1, source1)
        return float(matcher.match_features(features0, features1).pair_score)


def _extract(matcher: Matcher, source: Source) -> Features:
    return matcher.extract(source if isinstance(source, Path) else source.render())
