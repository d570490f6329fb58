"""Stage 1 of `transfer`: labelled images and targets of each data set, and the votes that they give."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ucn.data.catalogue import open_data
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.sets.semantic.parts import Example
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import is_root, refuse_problems, sample_rows
from ucn.evaluate.core.cache import PredictionCache, Record, digest_data
from ucn.evaluate.core.predictions import FeatureCache, Progress, Task, predict_missing
from ucn.features.method import DenseMethod
from ucn.matching.matcher import Matcher
from ucn.matching.transfer import collect_votes

VERSION = 2
"""Part of every key: raise it where code changes what is predicted."""
TARGETS = 100
"""Targets of a data set, or all where it has fewer."""
LABELLED = 10
"""The most labelled images of a target."""
UNRELATED_SHARE = 5
"""One in so many targets of sets whose points are all visible is replaced by an unrelated image."""
SPLITS: Mapping[str, tuple[str, str]] = {
    "cub": ("train", "test"),
    "faces": ("train", "test"),
    "pf-willow": ("all", "all"),
}
"""Data sets, and the splits of labelled images and of targets."""
ONLY_ON: Mapping[str, str] = {"birds": "cub"}
"""Weights for objects of one data set."""

_KEPT_IMAGES = 64


@dataclass(frozen=True, eq=False)
class Case:
    """A target and its labelled images.

    Attributes:
        group: name of the data set.
        data: of the target.
        target: the image that points are searched in.
        source: the data set of the labelled images.
        labelled: the labelled images, of the class of the target unless it is unrelated.
        is_unrelated: the target shows no such object, so that no point is visible.
    """

    group: str
    data: KeypointData
    target: Example
    source: KeypointData
    labelled: tuple[Example, ...]
    is_unrelated: bool = False


def list_cases(folder: Path, count: int, seed: int) -> list[Case]:
    """The cases of every data set that a folder is or holds.

    Raises:
        DataError: it holds none, or one has problems.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: expected one that holds the folders of {', '.join(SPLITS)}")
    places = [*sorted(path for path in folder.iterdir() if path.is_dir()), folder]
    roots = {name: next((place for place in places if is_root(place, name)), None) for name in SPLITS}
    sets = {name: _open(name, root) for name, root in roots.items() if root is not None}
    if not sets:
        raise DataError(f"none of {', '.join(SPLITS)} in {folder}: expected it to hold their folders")
    return [case for name in sets for case in _choose(name, sets, count, seed)]


def _open(name: str, root: Path) -> tuple[KeypointData, KeypointData]:
    found = []
    for split in SPLITS[name]:
        data = open_data(name, root, split)
        refuse_problems(data)
        assert isinstance(data, KeypointData)
        found.append(data)
    return found[0], found[1]


def _choose(
    name: str, sets: Mapping[str, tuple[KeypointData, KeypointData]], count: int, seed: int
) -> list[Case]:
    """Targets sampled by the seed, each with labelled images of its class, sampled by its name."""
    source, data = sets[name]
    classes: dict[str, list[Example]] = {}
    for example in source.examples:
        classes.setdefault(example.category, []).append(example)
    targets = [e for e in data.examples if len(classes.get(e.category, ())) > (source is data)]
    cases = []
    for number, row in enumerate(sample_rows(len(targets), count, seed)):
        target = targets[row]
        labelled = _sample(classes[target.category], f"{seed}/{target.name}", target.image)
        cases.append(Case(name, data, target, source, labelled))
        if name != "cub" and number % UNRELATED_SHARE == 0:
            other = _find_unrelated(name, sets, target, number)
            if other is not None:
                cases.append(Case(name, other[0], other[1], source, labelled, is_unrelated=True))
    return cases


def _sample(examples: Sequence[Example], key: str, own: Path) -> tuple[Example, ...]:
    """Labelled images other than the target's own."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
    return tuple(examples[row] for row in order if examples[row].image != own)[:LABELLED]


def _find_unrelated(
    name: str, sets: Mapping[str, tuple[KeypointData, KeypointData]], target: Example, number: int
) -> tuple[KeypointData, Example] | None:
    """An image of another class of the set, else of another set; None where there is none."""
    other_sets = [own[1] for other, own in reversed([*sets.items()]) if other != name]
    for data in (sets[name][1], *other_sets):
        others = [e for e in data.examples if e.category.split("(")[0] != target.category.split("(")[0]]
        if others:
            return data, others[(number * 37) % len(others)]
    return None


def digest_cases(cases: Sequence[Case]) -> str:
    """A hash of the names and files of all images, in order."""
    return digest_data(
        (f"{case.group}/{case.is_unrelated}", [e.image for e in (case.target, *case.labelled)])
        for case in cases
    )


def predict_votes(
    cases: Sequence[Case],
    matchers: Mapping[DenseMethod, Matcher],
    cache: Path,
    progress: Progress | None = None,
    jobs: int = 1,
) -> dict[tuple[str, str], list[Record]]:
    """The votes of each case of each data set (method, group); those in the cache are not computed again."""
    found: dict[tuple[str, str], list[Record]] = {}
    groups = list(dict.fromkeys(case.group for case in cases))
    runs = [(m, group) for group in groups for m in matchers if ONLY_ON.get(m.name, group) == group]
    sizes = {group: sum(case.group == group for case in cases) for group in groups}
    total, done = sum(sizes[group] for _, group in runs), 0
    for method, group in runs:
        own = [case for case in cases if case.group == group]
        key = {"version": VERSION, "data": digest_cases(own), "method": method.key}
        held = PredictionCache(cache / "transfer", f"{group}-{method.name}", key)
        report = None if progress is None else partial(_count, progress, done, total)
        predict_missing(_Predictor(own, matchers[method]), range(len(own)), [held], jobs, report)
        found[method.name, group] = [held.get(row) for row in range(len(own))]
        done += len(own)
    return found


def _count(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


class _Predictor:
    """Collects the votes of a case."""

    def __init__(self, cases: Sequence[Case], matcher: Matcher) -> None:
        self._cases, self._matcher = cases, matcher
        self._features = FeatureCache(matcher.extract, _KEPT_IMAGES)

    def __call__(self, task: Task) -> list[Record]:
        case = self._cases[task.pair]
        view = case.data.read_view(case.target)
        target = self._features.extract(view.image, case.target.image)
        references = []
        for example in case.labelled:
            own = case.source.read_view(example)
            points = np.where(own.keypoints.is_visible[:, None], own.keypoints.points, np.nan)
            references.append((self._features.extract(own.image, example.image), points))
        votes = collect_votes(self._matcher.match_features, references, target)
        points, is_visible, length = (
            np.full(votes.places.shape[1:], np.nan),
            np.zeros(votes.places.shape[1], np.bool_),
            1.0,
        )
        if not case.is_unrelated:
            points, is_visible = view.keypoints.points, view.keypoints.is_visible
            length = case.data.pck_length(view.keypoints, view.size_hw)
        return [
            {
                "places": votes.places,
                "scores": votes.scores,
                "labelled": votes.is_labelled,
                "layouts": votes.layouts,
                "points": np.where(is_visible[:, None], points, np.nan),
                "visible": is_visible,
                "length": np.array(length),
                "image_hw": np.array(target.image_hw),
            }
        ]
