"""The evaluation `objects` from data to report: points on the other object, in its head box, and masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

from ucn.evaluate.core.cache import Record
from ucn.evaluate.core.metrics import LEVEL, RESAMPLES
from ucn.evaluate.core.predictions import Progress, RunSettings, require_methods
from ucn.evaluate.core.report import (
    Report,
    Table,
    describe_consensus,
    describe_run,
    format_percent,
    hash_protocol,
)
from ucn.evaluate.objects.pairs import MAX_SIDE, ObjectPair, choose_rows, digest_objects, list_pairs
from ucn.evaluate.objects.predictions import HEAD_POINTS, POINTS, VERSION, predict_objects
from ucn.evaluate.objects.scoring import MEAN, ObjectScore, score_objects, score_pair
from ucn.features.method import DenseMethod, LoadedMethods, MethodInfo
from ucn.nn import MIN_SIDE
from ucn.paper.transfer import UnboundTransfer

PAIRS = 40
"""Pairs of a class, or all where it has fewer."""

_MEASURES: dict[str, Callable[[ObjectScore], tuple[float, float, float]]] = {
    "points on the object": lambda score: (score.points, score.points_low, score.points_high),
    "points in the head box": lambda score: (score.head, score.head_low, score.head_high),
    "IoU of the mask": lambda score: (score.iou, score.iou_low, score.iou_high),
}


def run_objects(
    folder: Path,
    loaded: LoadedMethods[DenseMethod],
    settings: RunSettings,
    classes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Carries points and masks between images of one class, with every method.

    Args:
        folder: of images by class with masks beside them, or one that has such folders.
        loaded: the methods; NN transfer, which copies labelled parts, is skipped.
        settings: of the run; `limit` counts pairs of a class.
        classes: names of those to use; all where empty.
        progress: called after each pair.

    Raises:
        DataError: the data is not there or wrong, there is nothing to evaluate, or the page to update is of
            other data or another protocol.
    """
    methods = [method for method in loaded.methods if not isinstance(method.matcher, UnboundTransfer)]
    skipped = dict(loaded.skipped)
    skipped |= {m.name: "there are no labelled parts to copy" for m in loaded.methods if m not in methods}
    require_methods(LoadedMethods(methods, skipped))
    count, max_side = settings.limit or PAIRS, settings.max_side or MAX_SIDE
    # A smaller limit takes the first of these pairs, so that their predictions serve larger ones.
    everything = list_pairs(folder, classes, max(count, PAIRS), settings.seed)
    chosen = choose_rows(everything, count)
    pairs = [everything[row] for row in chosen]
    identity = {
        "pairs": len(pairs),
        "seed": settings.seed,
        "data_sha256": digest_objects(pairs),
        "protocol_sha256": hash_protocol(
            version=VERSION, points=[POINTS, HEAD_POINTS], max_side=max_side, bootstrap=[LEVEL, RESAMPLES]
        ),
    }
    page = settings.page
    if page is not None:
        page.check(**identity)
    truths, found = predict_objects(
        everything,
        chosen,
        methods,
        settings.cache,
        max_side=max_side,
        seed=settings.seed,
        device=settings.device,
        jobs=settings.jobs,
        progress=progress,
    )
    scores: Sequence[ObjectScore] = []
    for method in methods:
        measures = [score_pair(*records) for records in zip(truths, found[method.name], strict=True)]
        scores = [*scores, *score_objects(method.name, pairs, measures, settings.seed)]
    evaluated: Sequence[MethodInfo] = methods
    if page is not None:
        scores = page.merge(scores, page.values["figures"], "figures")
        evaluated = page.merge_methods(methods, scores)
    return Report(
        name="objects",
        title="points and masks carried between images of objects of one class, whose parts are not labelled",
        tables=(_summarise(scores), *_tabulate_classes(scores)),
        protocol=(
            *_describe(pairs, count, max_side, settings.seed, evaluated),
            _describe_chance(pairs, truths),
        ),
        methods=tuple(evaluated),
        skipped=skipped,
        rows=tuple(asdict(score) for score in scores),
        values=identity,
        **describe_run(settings),
    )


def _summarise(scores: Sequence[ObjectScore]) -> Table:
    """The means over classes, with their intervals."""
    rows = tuple(
        (score.group, score.method, *(_format(*measure(score)) for measure in _MEASURES.values()))
        for score in sorted(scores, key=lambda score: score.group)
        if score.category == MEAN
    )
    title = f"means over classes, % ({LEVEL:.0%} interval)"
    return Table(title, ("data", "method", *_MEASURES), rows)


def _tabulate_classes(scores: Sequence[ObjectScore]) -> Iterator[Table]:
    """A table of each measure, with the classes that have it."""
    methods = tuple(dict.fromkeys(score.method for score in scores))
    rows = dict.fromkeys((score.group, score.category) for score in scores)
    for name, measure in _MEASURES.items():
        cells = {(score.group, score.category, score.method): measure(score) for score in scores}
        shown = tuple(
            (f"{group}: {category}", *(_format(*cells[group, category, method]) for method in methods))
            for group, category in rows
            if not math.isnan(cells[group, category, methods[0]][0])
        )
        if shown:
            yield Table(f"{name}, % ({LEVEL:.0%} interval)", ("class", *methods), shown)


def _format(share: float, low: float, high: float) -> str:
    if math.isnan(share):
        return format_percent(share)
    return f"{format_percent(share)} ({format_percent(low)}–{format_percent(high)})"


def _describe_chance(pairs: Sequence[ObjectPair], truths: Sequence[Record]) -> str:
    """What random matches would reach."""
    shares: dict[str, list[tuple[float, float]]] = {}
    for pair, truth in zip(pairs, truths, strict=True):
        height, width = truth["mask1"].shape
        x0, y0, x1, y1 = truth["head1"]
        share = float(truth["mask1"].mean()), float((x1 - x0) * (y1 - y0)) / (height * width)
        shares.setdefault(pair.group, []).append(share)
    parts = []
    for group, own in shares.items():
        part = f"{group}: the object fills {format_percent(mean(area for area, _ in own))} % of image 1"
        heads = [head for _, head in own if not math.isnan(head)]
        parts.append(f"{part}, and its head box {format_percent(mean(heads))} %" if heads else part)
    return f"by chance, {'; '.join(parts)}"


def _describe(
    pairs: Sequence[ObjectPair], count: int, max_side: int, seed: int, methods: Sequence[MethodInfo]
) -> Iterator[str]:
    images = {image for pair in pairs for image in (pair.image0, pair.image1)}
    classes = {(pair.group, pair.category) for pair in pairs}
    yield (
        f"data: {len(pairs):,} pairs of {len(classes)} classes, {len(images):,} images; up to {count} pairs "
        f"of a class (--limit), sampled by --seed {seed} from all ordered pairs of its images"
    )
    yield (
        f"images without a mask, or with a side under {MIN_SIDE} px, are left out; images with a longer side "
        f"than {max_side} px are reduced to it"
    )
    yield (
        f"points on the object: of up to {POINTS} pixels sampled on the object of image 0, the share whose "
        "match is on a pixel of the object of image 1; the whole image is searched"
    )
    yield (
        f"points in the head box: the same for up to {HEAD_POINTS} pixels of the object in the head box of "
        "image 0, and the head box of image 1; where both images have one"
    )
    yield (
        "IoU of the mask: each pixel of image 1 takes the value of the mask where the flow from image 1 to "
        "image 0 leads; intersection over union with the mask of image 1"
    )
    yield (
        "weights match as `Matcher.match` with points and `Matcher.flow` do by default; other methods give "
        "the flow of their cells, interpolated to pixels"
    )
    yield from describe_consensus(methods)
    yield (
        f"score: means over the pairs of a class, then over classes; intervals hold {LEVEL:.0%} of "
        f"{RESAMPLES:,} bootstrap samples of the pairs, each class by itself (seed {seed})"
    )
