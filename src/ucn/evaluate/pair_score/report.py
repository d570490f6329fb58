"""The benchmark `pair-score` from data to report: a summary, one table a group, and reliability diagrams."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ucn.config import MatchConfig
from ucn.data.bundled import MINI_IMAGES
from ucn.evaluate.core.plots import choose_style, lay_out, save_plot
from ucn.evaluate.core.predictions import Progress, RunSettings, require_methods
from ucn.evaluate.core.report import (
    Plot,
    Report,
    Table,
    describe_run,
    format_number,
    format_percent,
    hash_protocol,
)
from ucn.evaluate.pair_score.drawn import SIDES, VARIANTS
from ucn.evaluate.pair_score.predictions import (
    BIRDS,
    LENGTH_SHARE,
    ONE_SIZE,
    PHOTOGRAPHS,
    PIXELS,
    SCENES,
    VERSION,
    LabelledPair,
    choose_pairs,
    digest_labelled,
    find_roots,
    list_pairs,
    predict_scores,
)
from ucn.evaluate.pair_score.scoring import (
    BINS,
    LOW,
    MATCHES,
    NOTHING,
    THRESHOLD,
    PairScoreResult,
    ReliabilityBins,
    score_separation,
)
from ucn.features.method import DenseMethod, LoadedMethods, MethodInfo
from ucn.matching.matcher import Matcher

_NAMES = {"hpatches": "HPatches", "cub": "CUB"}
_TITLE = "pairs of {}, pairs that match nothing, and matches: what their scores are worth"
TITLE = _TITLE.format(" and ".join(_NAMES.values()))


def run_pair_score(
    folder: Path,
    loaded: LoadedMethods[DenseMethod],
    settings: RunSettings,
    progress: Progress | None = None,
) -> Report:
    """Computes the pair scores of all pairs with every network, and how well they separate the pairs.

    Args:
        folder: holds the folders of HPatches and CUB, or is one of them.
        loaded: the methods; those without a pair score are skipped.
        settings: of the run; `limit` counts matching pairs of each group.
        progress: called after each pair.

    Raises:
        DataError: the data is not there, there is nothing to evaluate, or the page to update is of other data
            or another protocol.
    """
    skipped, matchers = dict(loaded.skipped), dict[DenseMethod, Matcher]()
    for method in loaded.methods:
        if isinstance(method.extractor, Matcher) and method.is_nearest:
            # Scores are calibrated for the default settings, which resize images; all matches are kept here.
            config = MatchConfig(consensus=method.uses_consensus, use_mutual=False, use_alignment=False)
            matchers[method] = method.extractor.with_config(replace(config, min_score=0.0))
        else:
            skipped[method.name] = "it has no pair score"
    require_methods(LoadedMethods(list(matchers), skipped))
    pairs = list_pairs(folder)
    chosen = choose_pairs(pairs, settings.limit)
    evaluated = [pairs[row] for row in chosen]
    identity = {
        "pairs": len(evaluated),
        "data_sha256": digest_labelled(evaluated),
        "protocol_sha256": hash_protocol(version=VERSION, bins=BINS, threshold=THRESHOLD, low=LOW),
    }
    page = settings.page
    if page is not None:
        page.check(**identity)
    results: Sequence[PairScoreResult] = []
    diagrams: Sequence[ReliabilityBins] = []
    for name, scores in predict_scores(
        pairs, chosen, matchers, settings.cache, progress, settings.jobs
    ).items():
        own = score_separation(name, evaluated, scores)
        results, diagrams = [*results, *own[0]], [*diagrams, *own[1]]
    methods: Sequence[MethodInfo] = list(matchers)
    if page is not None:
        results = page.merge(results, page.values["figures"], "figures")
        names = {result.method for result in results}
        diagrams = page.merge(diagrams, page.values.get("reliability"), "reliability", names)
        methods = page.merge_methods(methods, results)
    groups = list(dict.fromkeys(r.group for r in results if r.matching or r.group in MATCHES))
    return Report(
        name="pair-score",
        title=_TITLE.format(" and ".join(n for n in _NAMES.values() if any(g.startswith(n) for g in groups))),
        tables=(
            _summarise(results),
            *(_tabulate([r for r in results if r.group == group]) for group in groups),
            *_tabulate_nothing([r for r in results if not r.matching and r.group not in MATCHES]),
            *(_tabulate_reliability([d for d in diagrams if d.group == group]) for group in groups),
        ),
        protocol=tuple(_describe_protocol(groups, evaluated, settings.limit)),
        methods=tuple(methods),
        skipped=skipped,
        notes=tuple(_note_missing(folder)),
        rows=tuple(asdict(result) for result in results),
        values={**identity, "reliability": [asdict(diagram) for diagram in diagrams]},
        plots=(_plot(results, diagrams, groups),),
        **describe_run(settings),
    )


def _describe_protocol(
    groups: Sequence[str], pairs: Sequence[LabelledPair], limit: int | None
) -> Iterator[str]:
    limited = f"; at most {limit} matching ones of a group, each with another (--limit)" if limit else ""
    matching = sum(pair.is_match for pair in pairs)
    yield f"data: {len(pairs):,} pairs, {matching:,} of them matching{limited}"
    yield from describe_groups(groups)
    drawn = "; ".join(f"{kind}: {', '.join(variants)}" for kind, variants in VARIANTS.items())
    yield (
        f"pairs that match nothing: {drawn}; photograph: image 1 of each sequence (birds without HPatches), "
        f"{len(MINI_IMAGES)} of scikit-image, and {PHOTOGRAPHS} of a folder photos where the data has one; "
        f"{SIDES[0]} to {SIDES[1]} px a side, sampled by seed 0; a pair never has two patterns of one sort "
        "or the same photograph twice"
    )
    yield (
        "pair score: Matcher.match(...).pair_score with default settings: up to its own longest side, "
        "corners, mutual matches; NAME+nearest without neighbourhood consensus"
    )
    yield (
        "match scores: those of all corners, mutual or not, without photometric refinement, and of the parts "
        f"of birds; correct within {PIXELS:g} px, parts within {LENGTH_SHARE:g} of the diagonal; at most 500 "
        "of a pair, evenly spread over the scores"
    )
    yield (
        "AUROC: probability that a matching pair scores above another, ties count half; Brier: mean squared "
        "distance of the score from 1 or 0; calibration error: mean distance of score and share in "
        f"{BINS} bins, weighted by their pairs; for matches, correct ones are counted as matching pairs"
    )


def describe_groups(groups: Sequence[str]) -> Iterator[str]:
    """How pairs were made of the data that was there."""
    if SCENES in groups:
        yield (
            "HPatches: image 1 of a sequence with another image of it (matching), or with one of the next "
            "sequence by name"
        )
    others = {BIRDS: "with one of another species", ONE_SIZE: "with the first image of an HPatches sequence"}
    named = [words for group, words in others.items() if group in groups]
    if named:
        joined = ", or ".join(named)
        yield f"CUB: listed test pairs of one species (matching), or the first bird {joined}"
    if ONE_SIZE in groups:
        yield (
            "sizes: of birds and scenes 'one size' reduces image 1 to the longest side of image 0; with 'own "
            "sizes' scenes are larger than birds, so the size correlates with the label, and the results "
            "show how robust the score is to unequal sizes"
        )


def _note_missing(folder: Path) -> Iterator[str]:
    for name, root in find_roots(folder).items():
        if root is None:
            yield (
                f"{_NAMES[name]} was not found, so it is not evaluated; searched: {folder} and the folders "
                "directly inside"
            )


def _summarise(results: Sequence[PairScoreResult]) -> Table:
    """What users rely on: matching pairs are accepted, and pairs that match nothing clearly rejected."""
    columns: dict[str, tuple[str, Callable[[PairScoreResult], str]]] = {
        f"HPatches matching ≥ {THRESHOLD:g}, %": (SCENES, lambda result: format_percent(result.accepted)),
        f"CUB matching ≥ {THRESHOLD:g}, %": (BIRDS, lambda result: format_percent(result.accepted)),
        f"match nothing < {LOW:g}, %": (NOTHING, lambda result: format_percent(result.rejected)),
        "largest of these": (NOTHING, lambda result: format_number(result.largest, 3)),
    }
    known = {(result.method, result.group): result for result in results}
    columns = {title: column for title, column in columns.items() if column[0] in {g for _, g in known}}
    methods = dict.fromkeys(result.method for result in results)
    rows = tuple((m, *(show(known[m, group]) for group, show in columns.values())) for m in methods)
    return Table("Summary of pair scores", ("method", *columns), rows)


def _tabulate(results: Sequence[PairScoreResult]) -> Table:
    of_matches = results[0].group in MATCHES
    first, second = ("correct", "wrong") if of_matches else ("matching", "others")
    accepted = f"≥ {THRESHOLD:g}, %"
    header = (
        *("method", "AUROC", "Brier", "calibration error", f"{first} {accepted}", f"{second} {accepted}"),
        *(f"{second} < {LOW:g}, %", f"largest of {second}"),
    )
    rows = tuple(
        (
            result.method,
            format_number(result.auroc, 3),
            format_number(result.brier, 3),
            format_number(result.calibration_error, 3),
            format_percent(result.accepted),
            format_percent(result.wrongly_accepted),
            format_percent(result.rejected),
            format_number(result.largest, 3),
        )
        for result in results
    )
    one = results[0]
    counts = f"{one.matching:,} and {one.others:,} pairs"
    if of_matches:  # how many are correct depends on the method
        counts = f"{one.matching + one.others:,} matches"
    return Table(f"{one.group}, {counts}", header, rows)


def _tabulate_nothing(results: Sequence[PairScoreResult]) -> Iterator[Table]:
    """Groups without matching pairs in one table, a row each; none where there are no such groups."""
    counts = {result.group: result.others for result in results}
    cells = {}
    for result in results:
        shown = f"{format_percent(result.rejected)} / {format_number(result.largest, 3)}"
        cells[result.method, result.group] = shown
    methods = tuple(dict.fromkeys(result.method for result in results))
    rows = tuple(
        (f"{group} ({count:,})", *(cells[method, group] for method in methods))
        for group, count in counts.items()
    )
    if rows:
        yield Table(
            f"Pairs that match nothing: below {LOW:g}, % / largest pair score", ("pairs", *methods), rows
        )


def _tabulate_reliability(diagrams: Sequence[ReliabilityBins]) -> Table:
    edges = [f"{edge:g}" for edge in diagrams[0].edges]
    header = ("method", *(f"{low}-{high}" for low, high in itertools.pairwise(edges)))
    rows = tuple(
        (
            bins.method,
            *(
                f"{format_percent(share)} ({count:,})" if count else "–"
                for share, count in zip(bins.shares, bins.counts, strict=True)
            ),
        )
        for bins in diagrams
    )
    group = diagrams[0].group
    what = (
        "correct ones, % (matches), by score"
        if group in MATCHES
        else "pairs that match, % (pairs), by pair score"
    )
    return Table(f"{group}: {what}", header, rows)


def _plot(
    results: Sequence[PairScoreResult], diagrams: Sequence[ReliabilityBins], groups: Sequence[str]
) -> Plot:
    """Share of matching pairs or correct matches against the score; the larger a mark, the more of them."""
    count = len({result.method for result in results})
    figure, panels = lay_out(len(groups), (3.6 + 0.16 * count, 3.8))
    aurocs = {(result.method, result.group): result.auroc for result in results}
    for panel, group in zip(panels, groups, strict=True):
        panel.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
        for number, bins in enumerate(diagram for diagram in diagrams if diagram.group == group):
            style, counts = choose_style(number), np.array(bins.counts)
            is_used = counts > 0
            means, shares = np.array(bins.mean_scores)[is_used], np.array(bins.shares)[is_used]
            label = f"{bins.method}, AUROC {format_number(aurocs[bins.method, group], 3)}"
            panel.plot(means, shares, label=label, linewidth=1, **style)
            panel.scatter(means, shares, s=8 + 120 * counts[is_used] / counts.sum(), color=style["color"])
        panel.set_title(group, fontsize=9)
        panel.set_xlabel("match score" if group in MATCHES else "pair score")
        panel.set_xlim(-0.03, 1.03)
        panel.set_ylim(-0.03, 1.03)
        # Below its panel, since each has its own AUROC values.
        panel.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    panels[0].set_ylabel("share of matching pairs or correct matches")
    return save_plot(figure, "share of matching pairs, and of correct matches, against their score")
