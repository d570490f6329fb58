"""Fits the scores of shipped weights anew, on held-out pairs, and writes them into the weights files.

UCN_DATA=DIR python benchmarks/calibration.py curves.json [--device cuda] [--jobs N]    # fits all weights
python benchmarks/calibration.py curves.json --apply                         # writes files, hashes and cards

Pairs that match: synthetic views of photographs, tracks of the nine validation scenes of the multi-view data,
and, for `birds` and `universal`, held-out training images of birds (and faces). Pairs that do not: two
photographs, noise, blank images and repeated patterns, a bird and a photograph; for weights that know scenes
alone, also two birds of a species. None is test data. Images are matched as `ucn.Matcher` matches them.
Prints the fitted values, the expected calibration error of matches, and what pairs of each kind score. Pair
scores are probabilities where one pair in five matches, or lower: of the pairs of two photographs, the
hardest of those that match nothing, 99 % score below 0.2 (not for `birds`). `--keep-matches` fits the curve
of pairs alone. Needs neither poselib nor kornia nor faiss.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

import torch
from command_line import make_parser
from same_surface import SCENES
from torch import Tensor

from ucn.config import Calibration, MatchConfig, SyntheticConfig
from ucn.data.catalogue import open_data
from ucn.data.pairs import PairData
from ucn.data.synthetic import make_pairs
from ucn.data.synthetic.bank import ImageBank, list_images
from ucn.evaluate.core.predictions import share_work
from ucn.evaluate.core.score_metrics import measure_reliability
from ucn.evaluate.pair_score.drawn import PHOTOGRAPH, Photograph, pair_drawn
from ucn.matching.cells import PointMatches
from ucn.matching.matcher import Matcher
from ucn.matching.scoring import (
    measure_uniformity,
    measure_visibility,
    pair_features,
    score_features,
    score_matches,
)
from ucn.matching.views import AlignedViews, to_caller, to_encoded
from ucn.nn.encoder import Engine
from ucn.train import calibration as fitting
from ucn.types import PairSample
from ucn.weights import load_weights
from ucn.weights.store import save_weights

Result = TypeVar("Result")

_REPOSITORY = Path(__file__).parents[1]
_SEED = 7
_PHOTOGRAPHS = 106  # the last ones; `geometric` was trained on 25 of them
_SIDE = 320  # of synthetic views
_CORNERS = (500, 4096)  # of which pairs are scored: for query points, and in `Matcher.match`
_ODDS = 0.25  # of pairs that match: in a folder of images, most pairs do not
_TWO_PHOTOGRAPHS = f"{PHOTOGRAPH} and {PHOTOGRAPH}"
_REJECTED = (0.99, 0.2)  # the share of pairs of two photographs that score lower
_KINDS = {
    "geometric": ("photographs", "scenes"),
    "geometric-lite": ("photographs", "scenes"),
    "universal": ("photographs", "scenes", "birds", "faces"),
    "birds": ("birds",),
}


@dataclass(frozen=True)
class Found:
    """Matches of points of a pair.

    Attributes:
        encoded0: (N, 2) the points in pixels of the encoded image 0.
        matches: of them.
        visibility: (N,) of both ends, by which scores are multiplied.
    """

    encoded0: Tensor
    matches: PointMatches
    visibility: Tensor


def read_pairs(kind: str, folder: Path, count: int) -> Iterator[PairSample]:
    """Pairs that match, of one kind."""
    generator = torch.Generator().manual_seed(_SEED)
    if kind == "photographs":
        bank = ImageBank(list_images(folder / "photos")[-_PHOTOGRAPHS:], 448, "cpu")
        config = SyntheticConfig(side=_SIDE, points=200, illumination=0.7, max_scale=2.0, perspective=0.2)
        for pair in make_pairs(bank, count, config, generator):
            rows = pair.is_valid[0]
            points0, points1 = pair.points0[0][rows], pair.points1[0][rows]
            yield PairSample(pair.image0[0], pair.image1[0], points0, points1, pair.names[0])
        return
    sets: list[PairData]
    if kind == "scenes":
        sets = [open_data("colmap", folder / "multiview" / scene) for scene in SCENES]
    elif kind == "birds":
        sets = [open_data("cub", folder / "cub", "train").split_off(0.1)[1]]
    else:
        sets = [open_data("faces", folder / "helen_faces", "train").split_off(0.1)[1]]
    orders = [iter(torch.randperm(len(data), generator=generator).tolist()) for data in sets]
    for data, order in islice(cycle(zip(sets, orders, strict=True)), count):
        number = next(order, None)
        if number is not None:
            sample = data.read(number)
            yield sample.select(torch.randperm(len(sample), generator=generator)[:200])


def read_unrelated(
    kinds: Sequence[str], folder: Path, count: int, photographs: int | None = None
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Pairs that do not match: their kind, and both images.

    Args:
        kinds: of pairs that match.
        folder: of the data.
        count: pairs of the larger kinds.
        photographs: pairs of two photographs, at most 100; `count` where it is None.
    """
    files = list_images(folder / "photos")[-_PHOTOGRAPHS:]
    birds = list(read_pairs("birds", folder, count))
    for number, bird in enumerate(birds if "birds" in kinds else birds[: count // 2]):
        if "birds" in kinds:
            side = _SIDE if number % 2 else max(bird.image0.shape[-2:])
            yield "bird and photograph", bird.image0, Photograph(files[number % len(files)], side).render()
        else:
            yield "two birds", bird.image0, bird.image1
    by_kind: dict[str, int] = {}
    for group, images in pair_drawn(files, _SEED):
        limit = (photographs or count) if group == _TWO_PHOTOGRAPHS else -(-count // 5)
        by_kind[group] = by_kind.get(group, 0) + 1
        if by_kind[group] <= limit:
            yield group, images[0].render(), images[1].render()


def find_matches(matcher: Matcher, views: AlignedViews, points0: Tensor) -> Found:
    """Matches of points (N, 2) in the caller's pixels of image 0."""
    encoded0 = to_encoded(points0, views.features0)
    matches = matcher._match_points(views, points0, None, None)
    visibility = torch.ones_like(matches.similarities)
    for features, points in ((views.features0, encoded0), (views.features1, matches.points1)):
        if features.grey is not None:
            visibility = visibility * measure_visibility(features.grey.to(matcher.device) / 255, points)
    return Found(encoded0, matches, visibility)


def find_corners(matcher: Matcher, views: AlignedViews, number: int) -> Found:
    """Matches of corners of image 0, of few or of many in turn."""
    corners = views.features0.keypoints[: _CORNERS[number % len(_CORNERS)]]
    return find_matches(matcher, views, corners.to(matcher.device))


def measure_pair(found: Found, curves: Calibration, tolerance: float) -> tuple[float, float, float]:
    """Inputs of the pair score, in the order of `PAIR_INPUTS`."""
    matches = found.matches
    return pair_features(
        score_matches(matches, curves) * found.visibility,
        matches.round_trip_errors <= tolerance,
        found.encoded0,
        matches.points1,
        matches.similarities,
        measure_uniformity(matches),
    )


def fit_pairs(
    related: Sequence[Found],
    unrelated: Sequence[tuple[str, Found]],
    curves: Calibration,
    tolerance: float,
    rejects_photographs: bool = True,
) -> Calibration:
    """Fits the curve of pairs, and prints what pairs of each kind score."""
    inputs = torch.tensor(
        [measure_pair(found, curves, tolerance) for found in (*related, *(found for _, found in unrelated))]
    )
    kinds = [kind for kind, _ in unrelated]
    return fit_pair_curve(inputs, len(related), kinds, curves, rejects_photographs)


def fit_pair_curve(
    inputs: Tensor,
    related: int,
    kinds: Sequence[str],
    curves: Calibration,
    rejects_photographs: bool = True,
) -> Calibration:
    """Fits the curve of pairs to their inputs.

    Args:
        inputs: (N, 3) inputs of the pair score, first those of related pairs.
        related: number of these.
        kinds: of the others.
        curves: the prior, whose curve of matches is kept.
        rejects_photographs: lower the bias until 99 % of the pairs of two photographs score below 0.2.
    """
    is_related = torch.arange(len(inputs)) < related
    prior = [getattr(curves, field) for field in fitting._PAIR_FIELDS]
    bias, *weights = fitting._fit_logistic(inputs, is_related, prior, 0.0, fitting._PAIR_BOUNDS)
    bias += math.log(_ODDS * len(kinds) / related)
    logits = inputs @ torch.tensor(weights)
    is_hard = torch.tensor([kind == _TWO_PHOTOGRAPHS for kind in kinds], dtype=torch.bool)
    if rejects_photographs and is_hard.any():
        share, score = _REJECTED
        bias = min(bias, math.log(score / (1 - score)) - float(logits[related:][is_hard].quantile(share)))
    values = [round(bias, 4), *weights]
    scores = torch.sigmoid(logits + values[0])
    print(f"  {related} pairs that match: {(scores[is_related] >= 0.5).float().mean():.1%} at 0.5 and more")
    for kind in dict.fromkeys(kinds):
        own = scores[~is_related][torch.tensor([other == kind for other in kinds])]
        print(f"  {len(own)} {kind}: {(own < 0.2).float().mean():.1%} below 0.2, largest {own.max():.3f}")
    return replace(curves, **dict(zip(fitting._PAIR_FIELDS, values, strict=True)))


class Measurement:
    """Matches pairs of one of the lists; copied into other processes, it reads its lists there."""

    def __init__(
        self, name: str, folder: Path, count: int, device: str, photographs: int | None = None
    ) -> None:
        self.name, self.folder, self.count, self.device = name, folder, count, device
        self.photographs = photographs

    @cached_property
    def matcher(self) -> Matcher:
        """Of the weights."""
        engine: Engine = "auto" if self.device == "cpu" else "plain"
        return Matcher.from_pretrained(self.name, device=self.device, engine=engine)

    @cached_property
    def related(self) -> list[PairSample]:
        """Pairs that match, of all kinds."""
        return [pair for kind in _KINDS[self.name] for pair in read_pairs(kind, self.folder, self.count)]

    @cached_property
    def unrelated(self) -> list[tuple[str, Tensor, Tensor]]:
        """Pairs that do not."""
        return list(read_unrelated(_KINDS[self.name], self.folder, self.count, self.photographs))

    @torch.no_grad()
    def match_related(self, number: int) -> tuple[Tensor, Tensor, Found]:
        """Features of matches of ground-truth points, which of them are correct, and matches of corners."""
        sample, matcher = self.related[number], self.matcher
        views = matcher.align_views(matcher.extract(sample.image0), matcher.extract(sample.image1))
        matches = find_matches(matcher, views, sample.points0.to(matcher.device)).matches
        limit = fitting.CORRECT_WITHIN
        if sample.pck_length is not None:
            limit = fitting.CORRECT_WITHIN_SHARE * float(sample.pck_length)
        ends = to_caller(matches.points1, views.features1)
        is_correct = (ends - sample.points1.to(ends)).norm(dim=-1) <= limit
        corners = find_corners(matcher, views, number % self.count)
        return score_features(matches).cpu(), is_correct.cpu(), _to_cpu(corners)

    @torch.no_grad()
    def match_unrelated(self, number: int) -> tuple[str, Found] | None:
        """The kind, and matches of corners; None where there are none."""
        (kind, image0, image1), matcher = self.unrelated[number], self.matcher
        views = matcher.align_views(matcher.extract(image0), matcher.extract(image1))
        if not len(views.features0.keypoints):
            return None
        return kind, _to_cpu(find_corners(matcher, views, number))


def _to_cpu(found: Found) -> Found:
    matches = found.matches
    moved = {
        field.name: value.cpu()
        for field in fields(matches)
        if isinstance(value := getattr(matches, field.name), Tensor)
    }
    return Found(found.encoded0.cpu(), replace(matches, **moved), found.visibility.cpu())


def _share(work: Callable[[int], Result], rows: Sequence[int], jobs: int) -> list[Result]:
    """Results in the order of rows."""
    return [result for _, result in sorted(share_work(work, rows, jobs), key=lambda item: item[0])]


def fit(
    name: str,
    folder: Path,
    count: int,
    device: str,
    jobs: int = 1,
    photographs: int | None = None,
    keeps_matches: bool = False,
) -> Calibration:
    """The calibration of shipped weights; processes share the pairs."""
    start = load_weights(name).calibration
    measurement = Measurement(name, folder, count, device, photographs)
    rows = range(len(measurement.related)), range(len(measurement.unrelated))
    apart = Measurement(name, folder, count, device, photographs)  # without the lists
    related = _share(apart.match_related, rows[0], jobs)
    found_unrelated = _share(apart.match_unrelated, rows[1], jobs)
    features = [found for found, _, _ in related]
    labels = [is_correct for _, is_correct, _ in related]
    corners = [found for _, _, found in related]
    unrelated = [found for found in found_unrelated if found is not None]
    curves = start if keeps_matches else _fit_matches(name, features, labels, unrelated, start)
    return fit_pairs(
        corners, unrelated, curves, MatchConfig().mutual_tolerance, "photographs" in _KINDS[name]
    )


def _fit_matches(
    name: str,
    features: Sequence[Tensor],
    labels: Sequence[Tensor],
    unrelated: Sequence[tuple[str, Found]],
    start: Calibration,
) -> Calibration:
    negatives = torch.cat([score_features(found.matches) for _, found in unrelated])
    step = max(1, len(negatives) // (sum(map(len, features)) // 3))  # a quarter of all matches
    inputs = torch.cat([*features, negatives[::step]])
    is_correct = torch.cat([*labels, torch.zeros(len(negatives[::step])).to(labels[0])])
    prior = [getattr(start, field) for field in fitting._MATCH_FIELDS]
    values = fitting._fit_logistic(inputs, is_correct, prior, 0.0, fitting._MATCH_BOUNDS)
    scores = torch.sigmoid(inputs @ inputs.new_tensor(values[1:]) + values[0])
    error = measure_reliability(scores.cpu().numpy(), is_correct.cpu().numpy()).error
    share = is_correct.float().mean()
    print(f"{name}: {len(inputs):,} matches, {share:.1%} correct, calibration error {error:.1%}")
    return replace(start, **dict(zip(fitting._MATCH_FIELDS, values, strict=True)))


def write_curves(name: str, curves: Calibration, repository: Path = _REPOSITORY) -> str:
    """Writes curves into the file of shipped weights, and its new SHA-256 wherever the old one stands.

    That is the table of weights, the cards, and what tests expect of `geometric`; not pages of results, which
    say what was measured.

    Args:
        name: of the weights.
        curves: the calibration.
        repository: in which hashes are replaced.

    Returns:
        The new SHA-256.
    """
    loaded = load_weights(name)
    sha256 = save_weights(
        repository / "src" / "ucn" / "weights" / f"{name}.safetensors",
        loaded.model,
        calibration=curves,
        training=loaded.training,
        max_side=loaded.max_side,
        overwrite=True,
    )
    places = ("src/ucn/weights/table.py", "docs/models/*.md", "tests/support/mini_figures.json")
    for path in (path for place in places for path in repository.glob(place)):
        text = path.read_text(encoding="utf-8")
        if loaded.info.sha256 in text:
            path.write_text(text.replace(loaded.info.sha256, sha256), encoding="utf-8")
    return sha256


def main() -> None:
    """Fits, or writes."""
    parser = make_parser(__doc__)
    parser.add_argument("curves", type=Path, help="JSON file of the fitted values")
    parser.add_argument("--apply", action="store_true", help="write the values of the file into the weights")
    parser.add_argument("--weights", nargs="+", default=list(_KINDS), choices=list(_KINDS))
    parser.add_argument("--pairs", type=int, default=50, help="of each kind that matches")
    parser.add_argument("--photographs", type=int, help="pairs of two photographs, at most 100")
    parser.add_argument("--keep-matches", action="store_true", help="fit the curve of pairs alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the pairs")
    chosen = parser.parse_args()
    if chosen.apply:
        for name, values in json.loads(chosen.curves.read_text(encoding="utf-8")).items():
            print(f"{name} sha256 {write_curves(name, Calibration.from_dict(values))}")
        return
    found = {}
    for name in chosen.weights:
        begin = time.perf_counter()
        curves = fit(
            name,
            Path(os.environ["UCN_DATA"]),
            chosen.pairs,
            chosen.device,
            chosen.jobs,
            chosen.photographs,
            chosen.keep_matches,
        )
        print(f"  {curves}, {time.perf_counter() - begin:.0f} s", flush=True)
        found[name] = curves.to_dict()
        chosen.curves.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
