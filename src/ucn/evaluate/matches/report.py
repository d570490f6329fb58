"""The benchmark `hpatches-matches` from data to report: accuracy and spread of matches, homographies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import choose_rows, count_pairs, digest_pairs
from ucn.evaluate.core.metrics import LEVEL, RESAMPLES
from ucn.evaluate.core.plots import add_legend, choose_style, lay_out, save_plot
from ucn.evaluate.core.predictions import Progress, RunSettings, require_methods
from ucn.evaluate.core.report import (
    Plot,
    Report,
    Table,
    describe_consensus,
    describe_run,
    format_number,
    format_percent,
    hash_protocol,
)
from ucn.evaluate.matches.predictions import HPATCHES, KEYPOINTS, VERSION, MatchingMethod, predict_matches
from ucn.evaluate.matches.scoring import (
    CURVE_LIMITS,
    INLIER_PIXELS,
    LIMITS,
    NEAR_PIXELS,
    Comparison,
    MatchScore,
    compare_homographies,
    score_matches,
)
from ucn.features.lightglue import LightGlueMethod
from ucn.features.method import DenseMethod, LoadedMethods, Method, MethodInfo
from ucn.folders.detectors import MIN_DISTANCE

_SINGLE = ("failures", "covered", "repeatable", "calibration_error")
TITLE = "HPatches sequences, image 1 against each of images 2 to 6, matches chosen by each method"


def run_matches(
    folder: Path,
    loaded: LoadedMethods[Method] | LoadedMethods[DenseMethod],
    settings: RunSettings,
    progress: Progress | None = None,
) -> Report:
    """Matches HPatches with each method and scores the matches.

    Args:
        folder: of HPatches.
        loaded: the methods; those without descriptors of keypoints are skipped.
        settings: of the run; there is no refinement here.
        progress: called after each pair.

    Raises:
        DataError: the folder is not HPatches, there is nothing to evaluate, or the page to update is of other
            data or another protocol.
    """
    usable: LoadedMethods[MatchingMethod] = LoadedMethods(skipped=dict(loaded.skipped))
    for method in loaded.methods:
        if isinstance(method, LightGlueMethod) or (isinstance(method, DenseMethod) and method.is_nearest):
            usable.methods.append(method)
        else:
            usable.skipped[method.name] = "it matches whole images, and has no descriptors of keypoints"
    require_methods(usable)
    pairs = HPATCHES.open(folder)
    chosen = choose_rows(len(pairs), settings.limit)
    identity = {
        "pairs": len(chosen),
        "pairs_of_benchmark": len(pairs),
        "seed": settings.seed,
        "curve_limits": CURVE_LIMITS,
        "data_sha256": digest_pairs([pairs[row] for row in chosen]),
        "protocol_sha256": hash_protocol(
            version=VERSION,
            keypoints=KEYPOINTS,
            limits=LIMITS,
            estimator="poselib, reweighted",
            **HPATCHES.to_dict(settings.seed),
        ),
    }
    page = settings.page
    if page is not None:
        page.check(**identity)
    found = predict_matches(
        usable.methods, chosen, pairs, settings.cache, settings.device, progress, settings.jobs
    )
    scores = [score for name, own in found.items() for score in score_matches(name, own, settings.seed)]
    if not any(score.matches for score in scores):
        raise DataError(f"{folder}: no method found a match in the {len(chosen)} pairs; nothing to evaluate")
    methods: Sequence[MethodInfo] = usable.methods
    if page is not None:
        scores = list(page.merge(scores, page.values.get("curves"), "curves"))
        methods = page.merge_methods(methods, scores)
    groups = list(dict.fromkeys(score.group for score in scores))
    sequences = [pairs[row].category for row in chosen]
    last = [score for score in scores if score.group == groups[-1]]  # of all pairs
    compared = compare_homographies(last, sequences, settings.seed)
    return Report(
        name="hpatches-matches",
        title=TITLE,
        tables=(
            *(_tabulate([score for score in scores if score.group == group]) for group in groups),
            *([_tabulate_comparisons(compared)] if len(compared) > 1 else []),
        ),
        main_table=len(groups) - 1,
        protocol=_describe_protocol(len(chosen), len(pairs), settings, methods),
        methods=tuple(methods),
        skipped=usable.skipped,
        rows=tuple(_to_row(score) for score in scores),
        values={
            **identity,
            "curves": [asdict(score) for score in scores],
            "homographies": [asdict(row) for row in compared],
        },
        plots=(_plot(scores, groups),),
        **describe_run(settings),
    )


def _describe_protocol(
    count: int, total: int, settings: RunSettings, methods: Sequence[MethodInfo]
) -> tuple[str, ...]:
    return (
        f"data: {TITLE}; {count_pairs(count, total)}",
        f"images: {HPATCHES.preparation.describe()}",
        f"keypoints: the {KEYPOINTS:,} strongest corners of each image (Shi and Tomasi), at least "
        f"{MIN_DISTANCE:g} px apart as in `ucn extract`, the same for all methods but LightGlue's and DISK, "
        f"which have the {KEYPOINTS:,} strongest keypoints of their own detector",
        "matching: networks match the corners of image 0 to any position of image 1 by `ucn.Matcher` with "
        "its default settings, as a user does, scores of at least 0.5 and photometric refinement included; "
        "LightGlue by itself; other methods by mutual nearest neighbours among the descriptors at the "
        "keypoints of both images, without ratio test",
        *describe_consensus(methods),
        "MMA@T: share of a pair's matches at most T pixels from the ground truth, mean over pairs; a pair "
        "without matches counts 0",
        f"AUC@T: area under the curve of the mean error of the four corners, of homographies by "
        "`ucn.geometry.homography.estimate_homography` for all methods: poselib's LO-RANSAC, threshold "
        f"{INLIER_PIXELS:g} px, seed {settings.seed}, then reweighted least squares over the inliers; a pair "
        "without a homography counts as infinitely wrong",
        f"lead: AUC@T of the first method minus that of the other, with {LEVEL:.0%} intervals of "
        f"{RESAMPLES:,} paired bootstrap samples of the sequences",
        f"coverage: share of image 0 within {NEAR_PIXELS:g} px of a match that is correct within "
        f"{LIMITS[0]:g} px; repeatability: share of the keypoints visible in both images that have one of "
        f"the other image within {LIMITS[0]:g} px, in both directions",
        "calibration error, of networks: mean distance of the scores of `ucn.Matcher` for all corners of "
        f"image 0 and the share of their matches that is correct within {LIMITS[0]:g} px, in ten bins",
    )


def _tabulate(scores: Sequence[MatchScore]) -> Table:
    header = (
        "method",
        "matches",
        *(f"MMA@{limit:g}" for limit in LIMITS),
        *(f"AUC@{limit:g}" for limit in LIMITS),
        *("no homography", "coverage", "repeatability", "calibration error"),
    )
    rows = []
    for score in scores:
        shares = (*score.mma, *score.auc, score.failures, score.covered, score.repeatable)
        shares = (*shares, score.calibration_error)
        rows.append((score.method, format_number(score.matches, 0), *map(format_percent, shares)))
    return Table(f"{scores[0].group}, {scores[0].pairs:,} pairs, per cent", header, tuple(rows))


def _tabulate_comparisons(compared: Sequence[Comparison]) -> Table:
    header = ("method", "median corner error, px", *(f"lead at AUC@{limit:g}" for limit in LIMITS))
    rows = []
    for row in compared:
        cells = [
            f"{100 * lead:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            for lead, (low, high) in zip(row.lead, row.intervals, strict=True)
        ]
        is_first = row is compared[0]
        rows.append((row.method, format_number(row.median, 2), *(["–"] * len(cells) if is_first else cells)))
    title = f"homographies of all pairs, and the lead of {compared[0].method}, points"
    return Table(title, header, tuple(rows))


def _to_row(score: MatchScore) -> Mapping[str, object]:
    row: dict[str, object] = {name: getattr(score, name) for name in ("method", "group", "pairs", "matches")}
    for name in ("mma", "auc"):
        row |= {f"{name}_{limit:g}": v for limit, v in zip(LIMITS, getattr(score, name), strict=True)}
    return row | {name: getattr(score, name) for name in _SINGLE}


def _plot(scores: Sequence[MatchScore], groups: Sequence[str]) -> Plot:
    figure, panels = lay_out(len(groups))
    for panel, group in zip(panels, groups, strict=True):
        for number, score in enumerate(s for s in scores if s.group == group):
            shares = [100 * share for share in score.curve]
            panel.plot(CURVE_LIMITS, shares, label=score.method, **choose_style(number))
        panel.set_title(group, fontsize=10)
        panel.set_xlabel("distance from the ground truth, px")
        panel.set_ylim(0, 100)
    panels[0].set_ylabel("MMA, %")
    add_legend(figure, panels)
    return save_plot(figure, "mean matching accuracy against the limit")
