"""The report of `hpatches-matches`: how many matches, how right, how spread, and what they are good for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from ucn.data.checking import spread
from ucn.errors import DataError
from ucn.evaluate.core.cache import digest_data
from ucn.evaluate.core.merge import Earlier
from ucn.evaluate.core.methods import LoadedMethods, MethodInfo
from ucn.evaluate.core.metrics import (
    Shares,
    area_under_error_curve,
    corner_error,
    coverage,
    mean_matching_accuracy,
    point_errors,
    repeatability,
)
from ucn.evaluate.core.outputs import find_versions, name_device
from ucn.evaluate.core.plots import add_legend, choose_style, lay_out, save_plot
from ucn.evaluate.core.report import Plot, Report, Table, say_number, say_percent
from ucn.evaluate.matches.prediction import (
    INLIER_PIXELS,
    KEYPOINTS,
    MatchedPair,
    estimate_homography,
    match_pairs,
)
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.predictions import Progress
from ucn.evaluate.points.run import RunSettings, require_methods
from ucn.geometry.warp import warp_points
from ucn.types import FloatArray

TITLE = "HPatches sequences, image 1 against each of images 2 to 6, matches that methods keep"
LIMITS = (3.0, 5.0, 10.0)
"""Pixels of the canvas: of right matches, and of corner errors."""

_CURVE = tuple(float(limit) for limit in range(1, 11))
_NEAR_PIXELS = 16.0  # within which a pixel counts as covered
_COVERAGE_STEP = 4  # pixels between the places at which coverage is measured


@dataclass(frozen=True)
class MatchFigure:
    """How the matches of a method are on a group of pairs.

    Attributes:
        method: its name.
        group: of pairs.
        pairs: in it.
        matches: mean number of a pair.
        mma: share of right matches within each of `LIMITS`, mean over pairs.
        curve: the same within 1 to 10 pixels.
        auc: area under the curve of corner errors up to each of `LIMITS`.
        failures: share of pairs without a homography.
        covered: share of image 0 near a right match, mean over pairs.
        repeatable: share of keypoints found in both images, mean over the pairs that have some to find.
    """

    method: str
    group: str
    pairs: int
    matches: float
    mma: tuple[float, ...]
    curve: tuple[float, ...]
    auc: tuple[float, ...]
    failures: float
    covered: float
    repeatable: float


@dataclass(frozen=True)
class _Asked:
    """What was asked: pairs, pairs of the benchmark, and a digest of the pairs' names and files."""

    pairs: int
    pairs_of_benchmark: int
    data_sha256: str


def run_matches(
    folder: Path,
    loaded: LoadedMethods,
    settings: RunSettings,
    progress: Progress | None = None,
    earlier: Earlier | None = None,
) -> Report:
    """Matches HPatches with each method and scores the matches.

    Args:
        folder: of HPatches.
        loaded: of `load_methods`; those that do not describe single images are skipped.
        settings: the user's choices; there is no refinement here.
        progress: called after each pair.
        earlier: a report whose other methods are taken over.

    Raises:
        DataError: the folder is not HPatches, there is nothing to measure, or the earlier report is of
            another run.
    """
    usable = LoadedMethods([m for m in loaded.methods if m.is_nearest], dict(loaded.skipped))
    for method in loaded.methods:
        if method not in usable.methods:
            usable.skipped[method.name] = "it matches whole images, and has no descriptors of keypoints"
    require_methods(usable)
    entries = find_benchmark("hpatches").open(folder)
    chosen = list(range(len(entries)))
    if settings.limit is not None:
        chosen = spread(len(entries), settings.limit)
    files = [(entries[row].name, entries[row].data.pair_files(entries[row].index)) for row in chosen]
    asked = _Asked(len(chosen), len(entries), digest_data(files))
    then = () if earlier is None else _read_earlier(earlier, asked, settings.seed)
    found = match_pairs(usable.methods, chosen, entries, settings.cache, settings.device, progress)
    figures = [
        figure for name, pairs in found.items() for figure in score_matches(name, pairs, settings.seed)
    ]
    if not any(figure.matches for figure in figures):
        raise DataError(f"{folder}: no method found a match in the {len(chosen)} pairs; nothing to measure")
    methods: tuple[MethodInfo, ...] = tuple(usable.methods)
    if earlier is not None:
        figures = list(earlier.merge(then, figures, _place, "a figure"))
        methods = earlier.merge_methods(methods, dict.fromkeys(figure.method for figure in figures))
    return _build_report(methods, usable.skipped, settings, figures, asked)


def _read_earlier(earlier: Earlier, asked: _Asked, seed: int) -> tuple[MatchFigure, ...]:
    """The figures of an earlier report; raises `DataError` where it is of another run."""
    if "data_sha256" in earlier.values:  # older reports have none
        earlier.require(data_sha256=asked.data_sha256)
    counts = {"pairs": asked.pairs, "pairs_of_benchmark": asked.pairs_of_benchmark}
    earlier.require(**counts, seed=seed, curve_limits=_CURVE)
    return earlier.read_rows(MatchFigure, earlier.get("curves"), "curves")


def _place(figure: MatchFigure) -> tuple[object, ...]:
    lengths = (len(figure.mma), len(figure.auc), len(figure.curve))
    return (figure.group, f"{figure.pairs} pairs", "limits", *lengths)


def score_matches(method: str, pairs: Sequence[MatchedPair], seed: int = 0) -> list[MatchFigure]:
    """The figures of a method: each group of pairs, then all."""
    groups: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        groups.setdefault(pair.entry.group, []).append(row)
    if len(groups) > 1:
        groups["all"] = list(range(len(pairs)))
    errors = [match_errors(pair) for pair in pairs]
    corners = np.array([_corner_error(pair, seed) for pair in pairs])
    covered = np.array([_cover(pair, row) for pair, row in zip(pairs, errors, strict=True)])
    repeatable = np.array([_repeat(pair) for pair in pairs])
    figures = []
    for group, rows in groups.items():
        seen = repeatable[rows][np.isfinite(repeatable[rows])]
        figures.append(
            MatchFigure(
                method=method,
                group=group,
                pairs=len(rows),
                matches=float(np.mean([len(errors[row]) for row in rows])),
                mma=tuple(mean_matching_accuracy([errors[row] for row in rows], LIMITS).tolist()),
                curve=tuple(mean_matching_accuracy([errors[row] for row in rows], _CURVE).tolist()),
                auc=tuple(area_under_error_curve(corners[rows], LIMITS).tolist()),
                failures=float(np.isinf(corners[rows]).mean()),
                covered=float(covered[rows].mean()),
                repeatable=float(seen.mean()) if len(seen) else float("nan"),
            )
        )
    return figures


def match_errors(pair: MatchedPair) -> Shares:
    """(K,) pixels of image 1 by which matches miss the truth; infinite where it leaves the plane."""
    truth = _warp(pair.points0, pair.truth_0to1)
    is_known = np.isfinite(truth).all(axis=1)
    errors = np.full(len(truth), np.inf)
    errors[is_known] = point_errors(pair.points1[is_known], truth[is_known])
    return errors


def _warp(points: FloatArray, homography: Shares) -> Shares:
    moved = warp_points(torch.from_numpy(points).double()[None], torch.from_numpy(homography)[None])[0]
    return np.asarray(moved.numpy(), np.float64)


def _corner_error(pair: MatchedPair, seed: int) -> float:
    left, top, right, bottom = pair.content0
    corner = np.array([left, top], np.float32)
    # Corners are those of the picture: its own pixel (0, 0) is at its top left on the canvas.
    shift = np.array([[1, 0, left], [0, 1, top], [0, 0, 1]], np.float64)
    estimated = estimate_homography(pair.points0 - corner, pair.points1, seed)
    return corner_error(estimated, pair.truth_0to1 @ shift, (bottom - top, right - left))


def _cover(pair: MatchedPair, errors: Shares) -> float:
    """Share of image 0's picture near a right match, on a grid."""
    left, top, right, bottom = pair.content0
    points = (pair.points0[errors <= LIMITS[0]] - np.array([left, top], np.float32)) / _COVERAGE_STEP
    size_hw = (-(-(bottom - top) // _COVERAGE_STEP), -(-(right - left) // _COVERAGE_STEP))
    return coverage(points, size_hw, _NEAR_PIXELS / _COVERAGE_STEP)


def _repeat(pair: MatchedPair) -> float:
    if not np.isfinite(pair.truth_0to1).all():
        return float("nan")
    targets1 = _warp(pair.keypoints0, pair.truth_0to1)
    targets0 = _warp(pair.keypoints1, np.asarray(np.linalg.inv(pair.truth_0to1), np.float64))
    for targets, (left, top, right, bottom) in ((targets1, pair.content1), (targets0, pair.content0)):
        low, high = (left - 0.5, top - 0.5), (right - 0.5, bottom - 0.5)
        targets[~((targets >= low) & (targets <= high)).all(axis=1)] = np.nan
    return repeatability(pair.keypoints0, targets1, pair.keypoints1, targets0, LIMITS[0])


def _build_report(
    methods: Sequence[MethodInfo],
    skipped: Mapping[str, str],
    settings: RunSettings,
    figures: Sequence[MatchFigure],
    asked: _Asked,
) -> Report:
    pairs, total = asked.pairs, asked.pairs_of_benchmark
    groups = list(dict.fromkeys(figure.group for figure in figures))
    by_place = {(figure.method, figure.group): figure for figure in figures}
    limited = f"{pairs:,} pairs" + (f" of {total:,}, evenly spread (--limit)" if pairs < total else "")
    return Report(
        name="hpatches-matches",
        title=TITLE,
        command=settings.command,
        tables=tuple(_tabulate(methods, by_place, group) for group in groups),
        protocol=(
            f"data: {TITLE}; {limited}",
            f"images: {find_benchmark('hpatches').preparation.describe()}",
            f"keypoints: the {KEYPOINTS:,} strongest corners of each image (Shi and Tomasi), the same for "
            "all methods but those that have keypoints of their own",
            "matching: mutual nearest neighbours among the descriptors at the keypoints; no ratio test",
            "MMA@T: share of a pair's matches at most T pixels from the truth, mean over pairs; a pair "
            "without matches counts 0",
            f"AUC@T: area under the curve of the mean error of the four corners, of homographies by OpenCV's "
            f"RANSAC, threshold {INLIER_PIXELS:g} px, seed {settings.seed}; a pair without a homography "
            "counts as infinitely wrong",
            f"coverage: share of image 0 within {_NEAR_PIXELS:g} px of a match that is right within "
            f"{LIMITS[0]:g} px; repeatability: share of the keypoints seen in both images that have one of "
            f"the other image within {LIMITS[0]:g} px, from both sides",
        ),
        methods=tuple(methods),
        skipped=skipped,
        rows=tuple(_to_row(figure) for figure in figures),
        values={
            **asdict(asked),
            "seed": settings.seed,
            "curve_limits": _CURVE,
            "curves": [asdict(figure) for figure in figures],
        },
        plots=(_draw(figures, groups),),
        versions=find_versions(),
        device=name_device(settings.device),
    )


def _tabulate(
    methods: Sequence[MethodInfo], figures: Mapping[tuple[str, str], MatchFigure], group: str
) -> Table:
    header = (
        "method",
        "matches",
        *(f"MMA@{limit:g}" for limit in LIMITS),
        *(f"AUC@{limit:g}" for limit in LIMITS),
        *("no homography", "coverage", "repeatability"),
    )
    rows = []
    for method in methods:
        figure = figures[method.name, group]
        shares = (*figure.mma, *figure.auc, figure.failures, figure.covered, figure.repeatable)
        rows.append((method.name, say_number(figure.matches, 0), *map(say_percent, shares)))
    return Table(f"{group}, {figures[methods[0].name, group].pairs:,} pairs, per cent", header, tuple(rows))


def _to_row(figure: MatchFigure) -> dict[str, object]:
    row: dict[str, object] = {"method": figure.method, "group": figure.group, "pairs": figure.pairs}
    row["matches"] = figure.matches
    for name, values in (("mma", figure.mma), ("auc", figure.auc)):
        row |= {f"{name}_{limit:g}": value for limit, value in zip(LIMITS, values, strict=True)}
    rest = {"failures": figure.failures, "covered": figure.covered, "repeatable": figure.repeatable}
    return row | rest


def _draw(figures: Sequence[MatchFigure], groups: Sequence[str]) -> Plot:
    canvas, panels = lay_out(len(groups))
    for panel, group in zip(panels, groups, strict=True):
        for number, figure in enumerate(f for f in figures if f.group == group):
            shares = [100 * share for share in figure.curve]
            panel.plot(_CURVE, shares, label=figure.method, **choose_style(number))
        panel.set_title(group, fontsize=10)
        panel.set_xlabel("distance from the truth, px")
        panel.set_ylim(0, 100)
    panels[0].set_ylabel("MMA, %")
    add_legend(canvas, panels)
    return save_plot(canvas, "mean matching accuracy against the limit")
