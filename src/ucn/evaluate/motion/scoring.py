"""Camera motion, stage 2: figures from the matches of stage 1, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.errors import DataError
from ucn.evaluate.core.processes import share_work
from ucn.evaluate.motion.metrics import PoseError, bootstrap_mean, measure_pose, pose_auc
from ucn.evaluate.motion.prediction import MotionPair, MotionVariant
from ucn.evaluate.points.predictions import Progress
from ucn.geometry.pose import Estimator, estimate_pose

ALL = "all"
"""The group of all pairs."""
LEVEL, RESAMPLES = 0.95, 1000
"""Of the bootstrap intervals."""
MIN_BASELINE = 0.1
"""Metres; a camera that moved by less has no direction of motion, and the pair is left out."""


@dataclass(frozen=True)
class Outcome:
    """The motion estimated from the matches of a pair.

    Attributes:
        error: against the truth.
        matches: that were used.
        found: before the best were taken.
        inliers: that agree with the motion.
    """

    error: PoseError
    matches: int
    found: int
    inliers: int


@dataclass(frozen=True)
class MotionFigure:
    """How a variant did on a group of pairs; angles in degrees, failures counting 180.

    Attributes:
        method: its name.
        is_aligned: whether its matches were aligned.
        estimator: of the essential matrix.
        group: of pairs.
        pairs: in it.
        failures: pairs without a motion.
        rotation_mean: mean rotation error.
        rotation_median: median.
        rotation_low: lower bound of the mean, by resampling pairs.
        rotation_high: its upper bound.
        translation_mean: mean angle between the directions of translation.
        translation_median: median.
        translation_low: lower bound of the mean.
        translation_high: its upper bound.
        line_mean: mean angle between the lines of translation, whichever way they point.
        auc_5: area under the curve of the larger error up to 5 degrees, in [0, 1].
        auc_10: up to 10 degrees.
        auc_20: up to 20 degrees.
        found: mean number of matches before the best were taken.
        matches: mean number used.
        inliers: mean number that agree with the motion.
    """

    method: str
    is_aligned: bool
    estimator: str
    group: str
    pairs: int
    failures: int
    rotation_mean: float
    rotation_median: float
    rotation_low: float
    rotation_high: float
    translation_mean: float
    translation_median: float
    translation_low: float
    translation_high: float
    line_mean: float
    auc_5: float
    auc_10: float
    auc_20: float
    found: float
    matches: float
    inliers: float


@dataclass(frozen=True)
class MotionDifference:
    """A variant against another on the same pairs: mean differences in degrees, below 0 where it is better.

    Attributes:
        method: the variant's.
        is_aligned: whether its matches were aligned.
        estimator: of the essential matrix.
        reference: what it is compared with.
        rotation: mean difference of rotation errors.
        rotation_low: lower bound, by resampling pairs.
        rotation_high: upper bound.
        translation: mean difference of translation errors.
        translation_low: lower bound.
        translation_high: upper bound.
    """

    method: str
    is_aligned: bool
    estimator: str
    reference: str
    rotation: float
    rotation_low: float
    rotation_high: float
    translation: float
    translation_low: float
    translation_high: float


@dataclass(frozen=True)
class MotionScores:
    """All figures of a run.

    Attributes:
        figures: by estimator, variant and group.
        differences: of all variants from the reference; none where that was not measured.
        pairs: that were scored.
        still: names of pairs left out, since the camera hardly moved.
    """

    figures: tuple[MotionFigure, ...]
    differences: tuple[MotionDifference, ...]
    pairs: int
    still: tuple[str, ...]


def score_motions(
    pairs: Sequence[MotionPair],
    variants: Sequence[MotionVariant],
    estimators: Sequence[Estimator],
    threshold: float,
    *,
    seed: int = 0,
    reference: str = "sift",
    jobs: int = 1,
    progress: Progress | None = None,
) -> MotionScores:
    """Estimates the motion of every pair from every variant's matches, and scores it.

    Args:
        pairs: of stage 1.
        variants: in the order of the pairs' matches.
        estimators: each is used for everything.
        threshold: of the estimators, in pixels.
        seed: of the estimators and of the resampling.
        reference: the method that all are compared with, as its matches are.
        jobs: processes that share the pairs.
        progress: called after each pair.

    Raises:
        DataError: the camera moved in none of the pairs.
    """
    has_moved = [float(np.linalg.norm(pair.t)) >= MIN_BASELINE for pair in pairs]
    moving = [pair for pair, is_kept in zip(pairs, has_moved, strict=True) if is_kept]
    still = tuple(pair.entry.name for pair, is_kept in zip(pairs, has_moved, strict=True) if not is_kept)
    if not moving:
        raise DataError(
            f"in none of the {len(pairs)} pairs the camera moved by {MIN_BASELINE:g} m or more; nothing to "
            "measure"
        )
    work = partial(_estimate, estimators=tuple(estimators), threshold=threshold, seed=seed)
    outcomes: dict[int, dict[Estimator, list[Outcome]]] = {}
    tasks = [_Task(number, pair) for number, pair in enumerate(moving)]
    for done, (task, found) in enumerate(share_work(work, tasks, jobs), start=1):
        outcomes[task.number] = found
        if progress is not None:
            progress(done, len(moving))
    groups = _list_groups(moving)
    figures: list[MotionFigure] = []
    differences: list[MotionDifference] = []
    for estimator in estimators:
        columns = [
            [outcomes[number][estimator][place] for number in range(len(moving))]
            for place in range(len(variants))
        ]
        for variant, column in zip(variants, columns, strict=True):
            for group, rows in groups.items():
                figures.append(_score(variant, estimator, group, [column[row] for row in rows], seed))
        differences += _compare(variants, estimator, columns, reference, seed)
    return MotionScores(tuple(figures), tuple(differences), len(moving), still)


@dataclass(frozen=True)
class _Task:
    number: int
    pair: MotionPair


def _estimate(
    task: _Task, estimators: tuple[Estimator, ...], threshold: float, seed: int
) -> dict[Estimator, list[Outcome]]:
    """The outcomes of a pair: of each estimator, one a variant."""
    pair = task.pair
    found: dict[Estimator, list[Outcome]] = {estimator: [] for estimator in estimators}
    for estimator, outcomes in found.items():
        for matches in pair.matches:
            pose = estimate_pose(
                matches.points0,
                matches.points1,
                pair.K0,
                pair.K1,
                estimator=estimator,
                threshold=threshold,
                seed=seed,
            )
            error = measure_pose(pose.R, pose.t, pair.R, pair.t)
            outcomes.append(Outcome(error, len(matches.points0), matches.found, pose.inlier_count))
    return found


def _list_groups(pairs: Sequence[MotionPair]) -> dict[str, list[int]]:
    """Rows of each group, by its name, then all."""
    groups: dict[str, list[int]] = {}
    for name in sorted({pair.entry.group for pair in pairs}):
        groups[name] = [row for row, pair in enumerate(pairs) if pair.entry.group == name]
    return {**groups, ALL: list(range(len(pairs)))}


def _score(
    variant: MotionVariant, estimator: str, group: str, outcomes: Sequence[Outcome], seed: int
) -> MotionFigure:
    errors = [outcome.error for outcome in outcomes]
    rotations, translations = _angles(outcomes)
    rotation, translation = (_bound(values, seed) for values in (rotations, translations))
    auc = pose_auc(errors)
    return MotionFigure(
        method=variant.method.name,
        is_aligned=variant.is_aligned,
        estimator=estimator,
        group=group,
        pairs=len(outcomes),
        failures=sum(error.is_failure for error in errors),
        rotation_mean=float(rotations.mean()),
        rotation_median=float(np.median(rotations)),
        rotation_low=rotation[0],
        rotation_high=rotation[1],
        translation_mean=float(translations.mean()),
        translation_median=float(np.median(translations)),
        translation_low=translation[0],
        translation_high=translation[1],
        line_mean=float(np.mean([error.line for error in errors])),
        auc_5=float(auc[0]),
        auc_10=float(auc[1]),
        auc_20=float(auc[2]),
        found=float(np.mean([outcome.found for outcome in outcomes])),
        matches=float(np.mean([outcome.matches for outcome in outcomes])),
        inliers=float(np.mean([outcome.inliers for outcome in outcomes])),
    )


def _compare(
    variants: Sequence[MotionVariant],
    estimator: str,
    columns: Sequence[Sequence[Outcome]],
    reference: str,
    seed: int,
) -> list[MotionDifference]:
    """Differences of all variants from the reference; nothing where that was not measured."""
    places = [
        place
        for place, variant in enumerate(variants)
        if variant.method.name == reference and not variant.is_aligned
    ]
    if not places:
        return []
    base = _angles(columns[places[0]])
    differences = []
    for place, variant in enumerate(variants):
        if place == places[0]:
            continue
        rotations, translations = (
            own - other for own, other in zip(_angles(columns[place]), base, strict=True)
        )
        rotation, translation = _bound(rotations, seed), _bound(translations, seed)
        differences.append(
            MotionDifference(
                method=variant.method.name,
                is_aligned=variant.is_aligned,
                estimator=estimator,
                reference=reference,
                rotation=float(rotations.mean()),
                rotation_low=rotation[0],
                rotation_high=rotation[1],
                translation=float(translations.mean()),
                translation_low=translation[0],
                translation_high=translation[1],
            )
        )
    return differences


def _angles(outcomes: Sequence[Outcome]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rotations = np.array([outcome.error.rotation for outcome in outcomes])
    return rotations, np.array([outcome.error.translation for outcome in outcomes])


def _bound(values: NDArray[np.float64], seed: int) -> tuple[float, float]:
    # The same draws for each variant, so that their intervals can be compared.
    generator = torch.Generator().manual_seed(seed)
    return bootstrap_mean(values, generator, level=LEVEL, resamples=RESAMPLES)
