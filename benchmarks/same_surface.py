"""Error rates of the test that decides whether the matches of a pair are refined photometrically.

UCN_DATA=DIR python benchmarks/same_surface.py [--pairs 100] [--weights geometric universal] [--json]

Pairs of one class (two faces, birds of a species, objects of a class, pets of a breed) must be refused, pairs
of one scene (synthetic warps of photographs with illumination change, multi-view scenes, rooms, streets) must
be accepted. All are training or validation data. Images are encoded at a longest side of at most 320 px. Of
the pairs of one scene, those count in which at least half of the matches of ground-truth points lie within
4 px, the reach of refinement. The test is made in `Matcher.match` with all matches, and for query points with
matches of the 500 strongest corners. Worse are pairs whose ground-truth points (68 landmarks of faces, 15
parts of birds) are found with a larger mean error after refinement.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from command_line import make_parser

import ucn
from ucn.config import SyntheticConfig
from ucn.data.catalogue import open_data
from ucn.data.io import read_image
from ucn.data.pairs import PairData
from ucn.data.synthetic import make_pairs
from ucn.data.synthetic.bank import ImageBank, list_images
from ucn.errors import UcnError
from ucn.types import PairSample

SCENES = ("alexander", "monstree", "sceaux", "kermit", "can", "kitchen", "policko_a", "policko_b", "cup")
"""Scenes of the multi-view data that no network was trained on."""
_MAX_SIDE = 320
_PHOTOGRAPHS = 200
_MIN_SIDE = 64  # pixels; crops of narrow objects are smaller
_MIN_SHARED = 50
_QUERIES = 500
_REACH = 4.0  # pixels of the encoded image
_SYNTHETIC = SyntheticConfig(side=320, illumination=0.5, upright_share=1.0, max_scale=1.5, points=500)

NO_POINTS = torch.zeros(0, 2)


def read_random(data: PairData, count: int) -> Iterator[PairSample]:
    """Random pairs of a data set."""
    generator = torch.Generator().manual_seed(0)
    for index in torch.randperm(len(data), generator=generator)[:count].tolist():
        yield data.read(index)


def faces(folder: Path, count: int) -> Iterator[PairSample]:
    """Pairs of faces."""
    return read_random(open_data("faces", folder / "helen_faces", "train"), count)


def birds(folder: Path, count: int) -> Iterator[PairSample]:
    """Pairs of birds of a species."""
    return read_random(open_data("cub", folder / "cub", "train"), count)


def objects(folder: Path, count: int) -> Iterator[PairSample]:
    """Pairs of objects of a class."""
    return read_table(folder / "voc_objects" / "objects.csv", "class", count)


def pets(folder: Path, count: int) -> Iterator[PairSample]:
    """Pairs of cats or dogs of a breed."""
    return read_table(folder / "pets" / "pets.csv", "breed", count)


def read_table(path: Path, column: str, count: int) -> Iterator[PairSample]:
    """Random pairs of images that agree in a column of a table, equally many for each of its values."""
    files: dict[str, list[str]] = {}
    with path.open(newline="", encoding="utf-8") as table:
        for row in csv.DictReader(table):
            files.setdefault(row[column], []).append(row["file"])
    generator = torch.Generator().manual_seed(0)
    for _, group in zip(range(count), cycle(files.values()), strict=False):
        order = torch.randperm(len(group), generator=generator).tolist()
        images = (read_image(path.parent / group[row]) for row in order)
        large = [image for image in islice(images, 6) if min(image.shape[-2:]) >= _MIN_SIDE]
        if len(large) >= 2:
            yield PairSample(large[0], large[1], NO_POINTS, NO_POINTS, group[order[0]])


def warps(folder: Path, count: int) -> Iterator[PairSample]:
    """Synthetic pairs of photographs with illumination change: homographies and scenes of several planes."""
    paths = list_images(folder / "photos")
    bank = ImageBank(paths[:: max(1, len(paths) // _PHOTOGRAPHS)], 512, "cpu")
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        config = replace(_SYNTHETIC, parallax_share=float(number % 2))
        pair = make_pairs(bank, 1, config, generator)
        rows = pair.is_valid[0]
        points = pair.points0[0][rows], pair.points1[0][rows]
        yield PairSample(pair.image0[0], pair.image1[0], *points, pair.names[0])


def scenes(folder: Path, count: int) -> Iterator[PairSample]:
    """Pairs of views of a multi-view scene, with at least 50 common 3D points."""
    for number, name in enumerate(SCENES):
        data = open_data("colmap", folder / "multiview" / name, "all", {"min_shared": _MIN_SHARED})
        yield from read_random(data, (count + number) // len(SCENES))


def rooms(folder: Path, count: int) -> Iterator[PairSample]:
    """Frames of 7-Scenes, 5 to 20 apart."""
    gaps = {"min_gap": 5, "max_gap": 20}
    return read_random(open_data("seven-scenes", folder / "rgbd_7scenes", "all", gaps), count)


def streets(folder: Path, count: int) -> Iterator[PairSample]:
    """Frames of KITTI odometry, 1 to 5 apart."""
    options = {"frames": "600-639"}
    return read_random(open_data("kitti-odometry", folder / "kitti_odometry", "train", options), count)


SAME_CLASS: dict[str, Callable[[Path, int], Iterator[PairSample]]] = {
    "faces": faces,
    "birds of a species": birds,
    "objects of a class": objects,
    "pets of a breed": pets,
}
SAME_SCENE: dict[str, Callable[[Path, int], Iterator[PairSample]]] = {
    "synthetic warps": warps,
    "multi-view scenes": scenes,
    "7-Scenes": rooms,
    "KITTI odometry": streets,
}


@dataclass(frozen=True)
class Verdict:
    """What was decided about a pair.

    Attributes:
        in_match: accepted in `Matcher.match`.
        of_points: accepted for query points.
        is_usable: its matches are right often enough to be refined.
        is_worse: refinement raised the mean error of ground-truth points.
    """

    in_match: bool
    of_points: bool
    is_usable: bool
    is_worse: bool


def judge(matcher: ucn.Matcher, pair: PairSample) -> Verdict:
    """Matches a pair with and without refinement."""
    plain = matcher.with_config(replace(matcher.config, use_alignment=False))
    features0, features1 = matcher.extract(pair.image0), matcher.extract(pair.image1)
    context = matcher.pair_context(features0, features1)
    before, after = (each.match_features(features0, features1).points1 for each in (plain, matcher))
    points = pair.points0[:: max(1, len(pair.points0) // _QUERIES)].numpy()
    true_points = pair.points1[:: max(1, len(pair.points0) // _QUERIES)].numpy()
    is_usable, is_worse = True, False
    if len(points):
        found = plain.match_features(features0, features1, points=points, context=context)
        moved = matcher.match_features(features0, features1, points=points, context=context)
        errors, moved_errors = (np.linalg.norm(each.points1 - true_points, axis=1) for each in (found, moved))
        scale = max(features1.map.image_hw) / max(features1.image_hw)
        kept = found.is_mutual & (found.scores >= plain.config.min_score)
        is_usable = bool(kept.any() and np.mean(errors[kept] * scale <= _REACH) >= 0.5)
        is_worse = bool(moved_errors.mean() > errors.mean())
    return Verdict(not np.array_equal(before, after), context.is_same_surface, is_usable, is_worse)


def measure(folder: Path, count: int, all_weights: Sequence[str]) -> Iterator[dict[str, str | float]]:
    """A row for each of the weights and kinds of pairs."""
    for weights in all_weights:
        config = ucn.MatchConfig(max_side=_MAX_SIDE)
        matcher = ucn.Matcher.from_pretrained(weights, config=config, device="cpu")
        for kind, read in {**SAME_CLASS, **SAME_SCENE}.items():
            verdicts = [judge(matcher, pair) for pair in read(folder, count)]
            if kind in SAME_SCENE:
                verdicts = [verdict for verdict in verdicts if verdict.is_usable]
            yield {
                "weights": weights,
                "pairs of": kind,
                "pairs": len(verdicts),
                "must be": "accepted" if kind in SAME_SCENE else "refused",
                "accepted in match, %": _percent([verdict.in_match for verdict in verdicts]),
                "accepted for points, %": _percent([verdict.of_points for verdict in verdicts]),
                "worse, %": _percent([verdict.is_worse for verdict in verdicts]),
            }


def _percent(values: Sequence[bool]) -> float:
    return round(100 * sum(values) / max(1, len(values)), 1)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=100, help="pairs of each kind")
    parser.add_argument("--weights", nargs="+", default=["geometric", "universal"])
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    arguments = parser.parse_args()
    if "UCN_DATA" not in os.environ:
        raise SystemExit("set UCN_DATA to the folder that holds the data sets")
    try:
        for row in measure(Path(os.environ["UCN_DATA"]), arguments.pairs, arguments.weights):
            print(json.dumps(row) if arguments.json else " | ".join(map(str, row.values())), flush=True)
    except UcnError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
