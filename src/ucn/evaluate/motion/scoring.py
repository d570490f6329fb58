"""Relative pose, stage 2: poses estimated from the matches of stage 1, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import ALL, list_groups
from ucn.evaluate.core.metrics import bootstrap_mean
from ucn.evaluate.core.predictions import Progress, share_work
from ucn.evaluate.motion.metrics import PoseError, measure_pose, pose_auc
from ucn.evaluate.motion.predictions import MotionPair, MotionVariant
from ucn.geometry.pose import Estimator, estimate_pose

MIN_BASELINE = 0.1
"""Metres; with a shorter baseline the direction of translation is undefined, and the pair is left out."""


@dataclass(frozen=True)
class ScoredPose:
    """The pose estimated from the matches of a pair.

    Attributes:
        error: against the ground truth.
        matches: number used.
        found: number before the best were taken.
        inliers: number of inliers.
    """

    error: PoseError
    matches: int
    found: int
    inliers: int


@dataclass(frozen=True)
class MotionScore:
    """The score of a variant on a group of pairs; angles in degrees, failures count 180.

    Attributes:
        method: its name.
        is_aligned: whether its matches were refined.
        estimator: of the essential matrix.
        group: of pairs.
        pairs: in it.
        failures: pairs without a pose.
        rotation_mean: mean rotation error.
        rotation_median: median.
        rotation_low: lower bound of the mean, by resampling pairs.
        rotation_high: its upper bound.
        translation_mean: mean angle between the directions of translation.
        translation_median: median.
        translation_low: lower bound of the mean.
        translation_high: its upper bound.
        line_mean: mean angle between the directions of translation, without their sign.
        auc_5: area under the curve of the larger error up to 5 degrees, in [0, 1].
        auc_10: up to 10 degrees.
        auc_20: up to 20 degrees.
        found: mean number of matches before the best were taken.
        matches: mean number used.
        inliers: mean number of inliers.
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
    """A variant against the reference on the same pairs: mean differences in degrees, negative is better.

    Attributes:
        method: the variant's.
        is_aligned: whether its matches were refined.
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
class MotionResults:
    """All scores of a run.

    Attributes:
        scores: by estimator, variant and group.
        differences: of all variants from the reference; none where that was not evaluated.
        pairs: number of scored pairs.
        still: names of pairs left out, since their baseline is too short.
    """

    scores: tuple[MotionScore, ...]
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
) -> MotionResults:
    """Estimates the pose of every pair from the matches of every variant, and scores it.

    Args:
        pairs: of stage 1.
        variants: in the order of the pairs' matches.
        estimators: each is applied to all matches.
        threshold: of the estimators, in pixels.
        seed: random seed of the estimators and of the bootstrap.
        reference: the method that all are compared with, without refinement.
        jobs: processes that share the pairs.
        progress: called after each pair.

    Raises:
        DataError: the camera moved in no pair.
    """
    has_moved = [float(np.linalg.norm(pair.t)) >= MIN_BASELINE for pair in pairs]
    moving = [pair for pair, is_kept in zip(pairs, has_moved, strict=True) if is_kept]
    still = tuple(pair.pair.name for pair, is_kept in zip(pairs, has_moved, strict=True) if not is_kept)
    if not moving:
        raise DataError(
            f"in none of the {len(pairs)} pairs the camera moved by {MIN_BASELINE:g} m or more; nothing to "
            "evaluate"
        )
    work = partial(_estimate, estimators=tuple(estimators), threshold=threshold, seed=seed)
    estimates: dict[int, dict[Estimator, list[ScoredPose]]] = {}
    tasks = list(enumerate(moving))
    for done, ((number, _), found) in enumerate(share_work(work, tasks, jobs), start=1):
        estimates[number] = found
        if progress is not None:
            progress(done, len(moving))
    found_groups = list_groups([pair.pair for pair in moving])
    groups = {name: found_groups[name] for name in sorted(found_groups)}
    groups[ALL] = list(range(len(moving)))
    scores: list[MotionScore] = []
    differences: list[MotionDifference] = []
    for estimator in estimators:
        columns = [
            [estimates[number][estimator][place] for number in range(len(moving))]
            for place in range(len(variants))
        ]
        for variant, column in zip(variants, columns, strict=True):
            for group, rows in groups.items():
                scores.append(_score(variant, estimator, group, [column[row] for row in rows], seed))
        differences += _compare(variants, estimator, columns, reference, seed)
    return MotionResults(tuple(scores), tuple(differences), len(moving), still)


def _estimate(
    task: tuple[int, MotionPair], estimators: tuple[Estimator, ...], threshold: float, seed: int
) -> dict[Estimator, list[ScoredPose]]:
    """The estimates of a pair: of each estimator, one a variant."""
    _, pair = task
    found: dict[Estimator, list[ScoredPose]] = {estimator: [] for estimator in estimators}
    for estimator, estimates in found.items():
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
            estimates.append(ScoredPose(error, len(matches.points0), matches.found, pose.inlier_count))
    return found


def _score(
    variant: MotionVariant, estimator: str, group: str, estimates: Sequence[ScoredPose], seed: int
) -> MotionScore:
    errors = [estimate.error for estimate in estimates]
    rotations, translations = _angles(estimates)
    rotation, translation = (_bound(values, seed) for values in (rotations, translations))
    auc = pose_auc(errors)
    return MotionScore(
        method=variant.method.name,
        is_aligned=variant.is_aligned,
        estimator=estimator,
        group=group,
        pairs=len(estimates),
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
        found=float(np.mean([estimate.found for estimate in estimates])),
        matches=float(np.mean([estimate.matches for estimate in estimates])),
        inliers=float(np.mean([estimate.inliers for estimate in estimates])),
    )


def _compare(
    variants: Sequence[MotionVariant],
    estimator: str,
    columns: Sequence[Sequence[ScoredPose]],
    reference: str,
    seed: int,
) -> list[MotionDifference]:
    """Differences of all variants from the reference; empty where that was not evaluated."""
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


def _angles(estimates: Sequence[ScoredPose]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rotations = np.array([estimate.error.rotation for estimate in estimates])
    return rotations, np.array([estimate.error.translation for estimate in estimates])


def _bound(values: NDArray[np.float64], seed: int) -> tuple[float, float]:
    # The same resamplings for each variant, so that their intervals can be compared.
    generator = torch.Generator().manual_seed(seed)
    return bootstrap_mean(values, generator)
