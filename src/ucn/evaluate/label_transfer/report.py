"""Stage 2 of `transfer`: how many points are found, and how well scores tell visible points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ucn.config import MIN_VISIBLE_SCORE, MatchConfig
from ucn.evaluate.core.cache import Record
from ucn.evaluate.core.predictions import Progress, RunSettings, require_methods
from ucn.evaluate.core.report import Report, Table, describe_run, format_number, format_percent, hash_protocol
from ucn.evaluate.core.score_metrics import area_under_roc
from ucn.evaluate.label_transfer.predictions import (
    LABELLED,
    TARGETS,
    UNRELATED_SHARE,
    VERSION,
    Case,
    digest_cases,
    list_cases,
    predict_votes,
)
from ucn.features.method import DenseMethod, LoadedMethods
from ucn.matching.matcher import Matcher
from ucn.matching.transfer import (
    AGREEMENT_SHARE,
    MAX_POSE_WEIGHT,
    MIRROR_TOLERANCE,
    POSE_WEIGHT,
    Votes,
    decide,
)

COUNTS = (1, 3, 10)
"""Numbers of labelled images."""
ALPHAS = (0.05, 0.1)


@dataclass(frozen=True)
class TransferResult:
    """Scores of a method on a data set with so many labelled images.

    Attributes:
        method: name.
        group: data set.
        labelled: number of labelled images, or all where a target has fewer.
        points: how many points PCK is measured on.
        pck_005: share of points within 0.05 L.
        pck_010: share within 0.1 L.
        hidden: how many points are not visible, each counted with its labelled images.
        auroc: of the score, for visible against not visible; NaN where all are visible.
        kept: share of visible points that count as visible.
        rejected: share of the others that do not; NaN where there are none.
    """

    method: str
    group: str
    labelled: int
    points: int
    pck_005: float
    pck_010: float
    hidden: int
    auroc: float
    kept: float
    rejected: float


def run_transfer(
    folder: Path,
    loaded: LoadedMethods[DenseMethod],
    settings: RunSettings,
    progress: Progress | None = None,
) -> Report:
    """Carries points from 1, 3 and 10 labelled images to targets, with every network.

    Args:
        folder: holds the folders of CUB, faces and PF-WILLOW, or some of them, or is one.
        loaded: the methods; those that are not ucn's networks are skipped.
        settings: of the run; `limit` counts targets of a data set.
        progress: called after each target.

    Raises:
        DataError: the data is not there, or there is nothing to evaluate.
    """
    skipped, matchers = dict(loaded.skipped), dict[DenseMethod, Matcher]()
    for method in loaded.methods:
        if isinstance(method.extractor, Matcher) and method.is_nearest:
            matchers[method] = method.extractor.with_config(MatchConfig(consensus=method.uses_consensus))
        else:
            skipped[method.name] = "its matches have no scores"
    require_methods(LoadedMethods(list(matchers), skipped))
    cases = list_cases(folder, settings.limit or TARGETS, settings.seed)
    votes = predict_votes(cases, matchers, settings.cache, progress, settings.jobs)
    names = {case.group: case.source.part_names_of(case.target.category) for case in cases}
    results = [
        score_votes(method, group, count, records, names[group])
        for (method, group), records in votes.items()
        for count in COUNTS
    ]
    protocol = hash_protocol(
        version=VERSION,
        radius=AGREEMENT_SHARE,
        pose=(POSE_WEIGHT, MAX_POSE_WEIGHT, MIRROR_TOLERANCE),
        threshold=MIN_VISIBLE_SCORE,
    )
    return Report(
        name="transfer",
        title="points of labelled images carried to other images of birds, faces and objects",
        tables=(_tabulate(results),),
        protocol=tuple(_describe(cases)),
        methods=tuple(matchers),
        skipped=skipped,
        rows=tuple(asdict(result) for result in results),
        values={"data_sha256": digest_cases(cases), "protocol_sha256": protocol},
        **describe_run(settings),
    )


def score_votes(
    method: str, group: str, count: int, records: Sequence[Record], names: Sequence[str] = ()
) -> TransferResult:
    """Decides by so many labelled images, beginning with each of them in turn, and scores the answers.

    PCK counts each point that the first of these images and the target show, so that it is measured on the
    same points whatever their number; with one labelled image these are all pairs. `names` are those of the
    points, if they have any.
    """
    errors: list[float] = []
    scores: list[float] = []
    is_visible: list[bool] = []
    for record in records:
        total = len(record["places"])
        for first in range(total):
            rows = (first + np.arange(min(count, total))) % total
            image_hw = (int(record["image_hw"][0]), int(record["image_hw"][1]))
            places, layouts = record["places"][rows], record["layouts"][rows]
            is_known = np.ones(places.shape[:2], np.bool_)  # all parts are annotated, many as hidden
            found = decide(Votes(places, record["scores"][rows], is_known, layouts), image_hw, names=names)
            own = record["labelled"][first] & record["visible"]
            distances = np.linalg.norm(found.points - record["points"], axis=1) / float(record["length"])
            errors += np.nan_to_num(distances[own], nan=np.inf).tolist()
            known = record["labelled"][rows].any(axis=0)
            scores += found.scores[known].tolist()
            is_visible += record["visible"][known].tolist()
    values, labels, far = np.array(scores), np.array(is_visible, np.bool_), np.array(errors)
    is_kept = values >= MIN_VISIBLE_SCORE
    return TransferResult(
        method=method,
        group=group,
        labelled=count,
        points=len(far),
        pck_005=_share(far <= ALPHAS[0]),
        pck_010=_share(far <= ALPHAS[1]),
        hidden=int((~labels).sum()),
        auroc=area_under_roc(values, labels),
        kept=_share(is_kept[labels]),
        rejected=_share(~is_kept[~labels]),
    )


def _share(flags: np.ndarray) -> float:
    return float(flags.mean()) if len(flags) else float("nan")


def _tabulate(results: Sequence[TransferResult]) -> Table:
    header = ("data", "method", "labelled", "PCK@0.05", "PCK@0.1", "AUROC", "visible kept", "others rejected")
    rows = tuple(
        (
            result.group,
            result.method,
            str(result.labelled),
            format_percent(result.pck_005),
            format_percent(result.pck_010),
            format_number(result.auroc, 3),
            format_percent(result.kept),
            format_percent(result.rejected),
        )
        for result in results
    )
    return Table("Points found, %, and visible points told from others, by labelled images", header, rows)


def _describe(cases: Sequence[Case]) -> Iterator[str]:
    for group in dict.fromkeys(case.group for case in cases):
        own = [case for case in cases if case.group == group]
        unrelated = sum(case.is_unrelated for case in own)
        most = max(len(case.labelled) for case in own)
        more = f", and {unrelated} unrelated images" if unrelated else ""
        yield f"{group}: {len(own) - unrelated} targets{more}, each with up to {most} labelled images"
    yield (
        "targets are sampled by --seed; of CUB (15 parts) and faces (68 points) they are test images, and "
        "the labelled ones training images; PF-WILLOW (10 points) has no training images: all others of a "
        "class are labelled"
    )
    yield (
        "PCK: every point that one labelled image and the target show, within 0.05 or 0.1 of the length of "
        "the data set's own benchmark; with 1 labelled image that is matching each pair; with more, the next "
        f"ones, in a circle, vote, too: the points are the same in all rows of a set; at most {LABELLED}"
    )
    yield (
        "AUROC: probability that a visible point scores above one that is not, ties count half; not visible "
        f"are hidden parts of birds, and all points on unrelated images: one for every {UNRELATED_SHARE} "
        "faces or objects, of another class or data set"
    )
    yield (
        f"kept, rejected: at a score of {MIN_VISIBLE_SCORE:g}, chosen on training images; the kernel of the "
        f"votes has a standard deviation of {AGREEMENT_SHARE:g} of the longer side"
    )
    yield (
        "the parts of birds are named, so that left and right count as sides; points of faces and PF-WILLOW "
        "have no names"
    )
