"""The report of `pair-score`: a table a comparison, and reliability plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ucn.evaluate.core.cache import digest_data
from ucn.evaluate.core.merge import Earlier
from ucn.evaluate.core.methods import LoadedMethods, Method, MethodInfo
from ucn.evaluate.core.outputs import find_versions, name_device
from ucn.evaluate.core.plots import choose_style, lay_out, save_plot
from ucn.evaluate.core.report import Plot, Report, Table, say_number, say_percent
from ucn.evaluate.pair_score.metrics import Reliability
from ucn.evaluate.pair_score.prediction import (
    BINS,
    BIRDS,
    ONE_SIZE,
    SCENES,
    LabelledPair,
    PairFigure,
    PairNumbers,
    choose_pairs,
    find_roots,
    list_pairs,
    measure,
    score_pairs,
)
from ucn.evaluate.points.predictions import Progress
from ucn.evaluate.points.run import RunSettings, require_methods
from ucn.matching.matcher import Matcher
from ucn.nn.encoder import choose_exact_engine

_NAMES = {"hpatches": "HPatches", "cub": "CUB"}
_TITLE = "pairs of {} that match and that do not, told apart by the pair score"
TITLE = _TITLE.format(" and ".join(_NAMES.values()))


@dataclass(frozen=True)
class _Bins:
    """The bins of a figure, as a report has them."""

    method: str
    group: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean_scores: tuple[float, ...]
    shares: tuple[float, ...]


def run_pair_score(
    folder: Path,
    loaded: LoadedMethods,
    settings: RunSettings,
    progress: Progress | None = None,
    earlier: Earlier | None = None,
) -> Report:
    """Scores all pairs with every network, and measures how well that tells them apart.

    Args:
        folder: holds the folders of HPatches and CUB, or is one of them.
        loaded: of `load_methods`; methods without a pair score are skipped.
        settings: the user's choices; `limit` counts matching pairs of each group.
        progress: called after each pair.
        earlier: a report whose other methods are taken over.

    Raises:
        DataError: the data is not there, there is nothing to measure, or the earlier report is of another
            run.
    """
    skipped, matchers = dict(loaded.skipped), dict[Method, Matcher]()
    for method in loaded.methods:
        if isinstance(method.extractor, Matcher) and method.is_nearest:
            # The benchmarks' own matchers see images at the benchmark's size; these as a user's would.
            weights, device = method.extractor.weights.name, str(method.extractor.device)
            engine = choose_exact_engine(device)
            matchers[method] = Matcher.from_pretrained(weights, device=device, engine=engine)
        else:
            skipped[method.name] = "it has no pair score"
    usable = LoadedMethods(list(matchers), skipped)
    require_methods(usable)
    pairs = list_pairs(folder)
    chosen = choose_pairs(pairs, settings.limit)
    jobs = settings.jobs if settings.device == "cpu" else 1
    asked = [pairs[row] for row in chosen]
    then = () if earlier is None else _read_earlier(earlier, asked)
    scores = score_pairs(pairs, chosen, matchers, settings.cache, progress, jobs)
    figures = [figure for name, own in scores.items() for figure in measure(name, asked, own)]
    methods: tuple[MethodInfo, ...] = tuple(usable.methods)
    if earlier is not None:
        figures = list(earlier.merge(then, figures, _place, "a figure"))
        methods = earlier.merge_methods(methods, dict.fromkeys(figure.method for figure in figures))
    report = _build_report(methods, usable.skipped, settings, asked, figures)
    return replace(report, notes=tuple(_note_missing(folder)))


def _read_earlier(earlier: Earlier, pairs: Sequence[LabelledPair]) -> tuple[PairFigure, ...]:
    """The figures of an earlier report; raises `DataError` where it is of another run."""
    earlier.require(pairs=len(pairs))
    if "data_sha256" in earlier.values:  # older reports have none
        earlier.require(data_sha256=_digest(pairs))
    told = earlier.read_rows(PairNumbers, earlier.get("figures"), "figures")
    bins = earlier.read_rows(_Bins, earlier.get("reliability"), "reliability")
    if [(row.method, row.group) for row in told] != [(row.method, row.group) for row in bins]:
        raise earlier.refuse("'reliability' must have a row for each of 'figures', in the same order")
    return tuple(_join(earlier, *rows) for rows in zip(told, bins, strict=True))


def _join(earlier: Earlier, told: PairNumbers, bins: _Bins) -> PairFigure:
    lengths = [len(bins.edges) - 1, len(bins.counts), len(bins.mean_scores), len(bins.shares)]
    if lengths != [BINS] * 4:
        raise earlier.refuse(f"'reliability' must have {BINS} bins, got {lengths} for '{told.method[:80]}'")
    reliability = Reliability(
        edges=np.array(bins.edges),
        counts=np.array(bins.counts, np.int64),
        mean_scores=np.array(bins.mean_scores),
        shares=np.array(bins.shares),
        error=told.calibration_error,
    )
    return PairFigure(**asdict(told), reliability=reliability)


def _place(figure: PairFigure) -> tuple[object, ...]:
    return (figure.group, f"{figure.matching} matching pairs", f"{figure.others} others")


def _digest(pairs: Sequence[LabelledPair]) -> str:
    return digest_data((f"{pair.group}/{pair.is_match}", (pair.image0, pair.image1)) for pair in pairs)


def _build_report(
    methods: tuple[MethodInfo, ...],
    skipped: Mapping[str, str],
    settings: RunSettings,
    pairs: Sequence[LabelledPair],
    figures: Sequence[PairFigure],
) -> Report:
    groups = list(dict.fromkeys(figure.group for figure in figures))
    limited = f", at most {settings.limit} matching ones of each group (--limit)" if settings.limit else ""
    return Report(
        name="pair-score",
        title=_TITLE.format(" and ".join(n for n in _NAMES.values() if any(g.startswith(n) for g in groups))),
        command=settings.command,
        tables=tuple(_tabulate(group, [f for f in figures if f.group == group]) for group in groups),
        protocol=(
            f"data: {len(pairs):,} pairs, half of them matching{limited}",
            *describe_groups(groups),
            "score: Matcher.match(...).pair_score with default settings: up to its own longest side, "
            "corners, mutual matches",
            "AUROC: chance that a matching pair scores above another, ties counted half; Brier: mean squared "
            "distance of the score from 1 or 0; calibration error: mean distance of score and share in "
            f"{BINS} bins",
        ),
        methods=methods,
        skipped=skipped,
        rows=tuple(_to_row(figure) for figure in figures),
        values={
            "pairs": len(pairs),
            "data_sha256": _digest(pairs),
            "reliability": [
                {
                    "method": figure.method,
                    "group": figure.group,
                    **_list_bins(figure),
                }
                for figure in figures
            ],
        },
        plots=(_draw(figures, groups),),
        versions=find_versions(),
        device=name_device(settings.device),
    )


def describe_groups(groups: Sequence[str]) -> Iterator[str]:
    """How pairs were made of the data that was there."""
    if SCENES in groups:
        yield (
            "HPatches: image 1 of a sequence with another image of it (matches), or with one of the next "
            "sequence by name"
        )
    others = {BIRDS: "with one of another kind", ONE_SIZE: "with the first image of an HPatches sequence"}
    named = [words for group, words in others.items() if group in groups]
    if named:
        yield f"CUB: listed test pairs of one kind of bird (match), or the first bird {', or '.join(named)}"
    if ONE_SIZE in groups:
        yield (
            "sizes: of birds and scenes 'one size' reduces image 1 to the longest side of image 0; with 'own "
            "sizes' scenes are larger than birds, so that size goes with the answer, and the figures say how "
            "the score bears unequal sizes, not how well it knows birds"
        )


def _note_missing(folder: Path) -> Iterator[str]:
    for name, root in find_roots(folder).items():
        if root is None:
            yield (
                f"{_NAMES[name]} was not found, so it is not measured; looked at: {folder} and the folders "
                "directly inside"
            )


def _tabulate(group: str, figures: Sequence[PairFigure]) -> Table:
    header = ("method", "AUROC", "Brier", "calibration error", "matching ≥ 0.5, %", "others ≥ 0.5, %")
    rows = tuple(
        (
            figure.method,
            say_number(figure.auroc, 3),
            say_number(figure.brier, 3),
            say_number(figure.calibration_error, 3),
            say_percent(figure.accepted),
            say_percent(figure.wrongly_accepted),
        )
        for figure in figures
    )
    return Table(f"{group}, {figures[0].matching:,} and {figures[0].others:,} pairs", header, rows)


def _to_row(figure: PairFigure) -> dict[str, object]:
    row = asdict(figure)
    row.pop("reliability")
    return row


def _list_bins(figure: PairFigure) -> dict[str, list[float]]:
    bins = figure.reliability
    return {
        "edges": bins.edges.tolist(),
        "counts": bins.counts.tolist(),
        "mean_scores": bins.mean_scores.tolist(),
        "shares": bins.shares.tolist(),
    }


def _draw(figures: Sequence[PairFigure], groups: Sequence[str]) -> Plot:
    """Share of matching pairs against the score; the larger a mark, the more pairs."""
    count = len({figure.method for figure in figures})
    canvas, panels = lay_out(len(groups), (3.6 + 0.16 * count, 3.8))
    for panel, group in zip(panels, groups, strict=True):
        panel.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle=":")
        for number, figure in enumerate(f for f in figures if f.group == group):
            bins, style = figure.reliability, choose_style(number)
            is_used = bins.counts > 0
            label = f"{figure.method}, AUROC {say_number(figure.auroc, 3)}"
            panel.plot(bins.mean_scores[is_used], bins.shares[is_used], label=label, linewidth=1, **style)
            sizes = 8 + 120 * bins.counts[is_used] / bins.counts.sum()
            panel.scatter(bins.mean_scores[is_used], bins.shares[is_used], s=sizes, color=style["color"])
        panel.set_title(group, fontsize=9)
        panel.set_xlabel("pair score")
        panel.set_xlim(-0.03, 1.03)
        panel.set_ylim(-0.03, 1.03)
        # Below its panel, since each has figures of its own.
        panel.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    panels[0].set_ylabel("share of pairs that match")
    return save_plot(canvas, "share of matching pairs against the pair score")
