"""Stage 1 of `pair-score`: matching and non-matching pairs of HPatches and CUB, and the scores they get.

Noise, blank images, patterns and unrelated photographs, which match nothing, make further non-matching pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.data.bundled import MINI_IMAGES
from ucn.data.catalogue import open_data
from ucn.data.checking import spread
from ucn.data.sets.hpatches import read_homography
from ucn.data.synthetic.bank import list_images
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import CUB_PAIRS, choose_rows, is_root, refuse_problems
from ucn.evaluate.core.cache import PredictionCache, Record, digest_data
from ucn.evaluate.core.predictions import FeatureCache, Progress, Task, predict_missing
from ucn.evaluate.pair_score.drawn import Drawn, Photograph, pair_drawn
from ucn.features.method import DenseMethod
from ucn.geometry.warp import warp_points
from ucn.matching.matcher import Matcher
from ucn.types import Features, Matches, PairSample

VERSION = 5
"""Part of every key: raise it where code changes what is predicted."""
CUB_PAIR_COUNT = 500
"""Listed pairs of birds that are used, evenly spread."""

SCENES, BIRDS = "HPatches: same or other scene", "CUB: same or other kind of bird"
"""Groups of one data set."""
ONE_SIZE, OWN_SIZES = "CUB: bird or scene, one size", "CUB: bird or scene, own sizes"
"""Groups of birds against scenes: reduced to the size of the bird image, and at their own size."""

PHOTOGRAPHS = 50
"""Images of a folder `photos` that are used, evenly spread."""
PIXELS, LENGTH_SHARE = 3.0, 0.1
"""Largest error of a correct match: in pixels, or as a share of `pck_length` between parts."""

_FITTED_PHOTOGRAPHS = 106  # the last ones, on which the scores of the shipped weights were fitted
_KEPT_MATCHES = 500
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
        read: reads the pair with its parts, where matches of parts are evaluated.
    """

    group: str
    is_match: bool
    image0: Source
    image1: Source
    use_one_size: bool = False
    read: Callable[[], PairSample] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PairScores:
    """What a matcher says about a pair.

    Attributes:
        pair: the pair score.
        matches: (K,) scores of matches whose ground truth is known: of parts, or of corners.
        is_correct: (K,) whether they are correct; no match of a pair that does not match is.
    """

    pair: float
    matches: NDArray[np.float64]
    is_correct: NDArray[np.bool_]


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
    """The pairs of HPatches and CUB, whichever the folder is or holds, then those that match nothing.

    Each matching pair is followed by a non-matching one of its group. Groups of pairs that match nothing have
    only such.

    Args:
        folder: holds them; photographs are also taken from a folder `photos` in it.

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
    photographs = [*(scenes or dict.fromkeys(files)), *MINI_IMAGES]
    if (folder / "photos").is_dir():
        others = list_images(folder / "photos")[:-_FITTED_PHOTOGRAPHS]
        photographs += [others[row] for row in spread(len(others), PHOTOGRAPHS)]
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
                read = partial(data.read, index) if group == BIRDS else None
                pairs.append(LabelledPair(group, True, image0, image1, group == ONE_SIZE, read))
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
) -> dict[str, list[PairScores]]:
    """The scores of each chosen pair by each matcher; those in the cache are not computed again.

    Args:
        pairs: all of `list_pairs`.
        chosen: rows of `choose_pairs`.
        matchers: with default settings, for which scores were calibrated, except that they keep all matches.
        cache: folder of predictions.
        progress: called after each pair.
        jobs: processes that share the pairs; those of a GPU share it.
    """
    key = {"version": VERSION, "data": digest_labelled(pairs)}
    caches = [
        PredictionCache(cache / "pair-score", method.name, {**key, "method": method.key})
        for method in matchers
    ]
    predict_missing(_Predictor(pairs, list(matchers.values())), chosen, caches, jobs, progress)
    return {
        method.name: [_parse(own.get(row)) for row in chosen]
        for method, own in zip(matchers, caches, strict=True)
    }


def _parse(record: Record) -> PairScores:
    matches = record["matches"].astype(np.float64)
    return PairScores(float(record["score"]), matches[:, 0], matches[:, 1] > 0)


class _Predictor:
    """Scores a pair with each matcher."""

    def __init__(self, pairs: Sequence[LabelledPair], matchers: Sequence[Matcher]) -> None:
        self._pairs, self._matchers = pairs, matchers
        self._features = [FeatureCache(partial(_extract, matcher), _KEPT_IMAGES) for matcher in matchers]

    def __call__(self, task: Task) -> list[Record]:
        pair = self._pairs[task.pair]
        return [self._score(pair, number) for number in task.missing]

    def _score(self, pair: LabelledPair, number: int) -> Record:
        matcher, cache = self._matchers[number], self._features[number]
        features0, source1 = cache.extract(pair.image0, pair.image0), pair.image1
        if pair.use_one_size and isinstance(source1, Path):
            source1 = Photograph(source1, max(features0.image_hw))
        features1 = cache.extract(source1, source1)
        found = matcher.match_features(features0, features1)
        score, is_correct = found.pair_score, np.zeros(len(found), np.bool_)
        if pair.group == SCENES and pair.is_match and isinstance(pair.image1, Path):
            is_correct = _is_near(found, _warp_by_file(found, pair.image1), PIXELS)
        elif pair.read is not None:
            sample = pair.read()
            found = matcher.match_features(features0, features1, points=sample.points0)
            limit = LENGTH_SHARE * float(sample.pck_length or 0.0)
            is_correct = _is_near(found, sample.points1.numpy(), limit)
        elif pair.is_match:  # of a group whose matches have no ground truth, or are those of another group
            found, is_correct = found.select(is_correct), is_correct[:0]
        matches = np.stack([found.scores.astype(np.float32), is_correct.astype(np.float32)], axis=1)
        step = max(1, -(-len(matches) // _KEPT_MATCHES))  # those of corners are sorted by their score
        return {"score": np.array(score, np.float64), "matches": matches[::step]}


def _warp_by_file(found: Matches, image1: Path) -> NDArray[np.float64]:
    """The ground truth (N, 2) of matches of an HPatches pair, whose homography lies beside image 1."""
    H_0to1 = read_homography(image1.with_name(f"H_1_{image1.stem}"))
    points0 = torch.from_numpy(found.points0).to(H_0to1)
    return np.asarray(warp_points(points0[None], H_0to1[None])[0].numpy(), np.float64)


def _is_near(found: Matches, expected: NDArray[Any], limit: float) -> NDArray[np.bool_]:
    return np.asarray(np.linalg.norm(found.points1 - expected, axis=1) <= limit)


def _extract(matcher: Matcher, source: Source) -> Features:
    return matcher.extract(source if isinstance(source, Path) else source.render())
