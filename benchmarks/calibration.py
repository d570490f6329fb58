"""Fits the scores of shipped weights anew, on held-out pairs, and writes the weights files.

UCN_DATA=DIR python benchmarks/calibration.py --weights geometric universal -o OUTPUT_FOLDER [--device cuda]

Pairs that match: synthetic views of photographs, tracks of the nine validation scenes of the multi-view data,
and, for `birds` and `universal`, held-out training images of birds (and faces). Pairs that do not: two
photographs, a bird and a photograph, and images with nothing to see. None is test data. Prints the fitted
weights, the expected calibration error of matches, what pairs score, and the SHA-256 of each file. Pair
scores are probabilities where one pair in five matches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import torch
from command_line import make_parser
from same_surface import SCENES
from torch import Tensor

from ucn.config import Calibration, SyntheticConfig
from ucn.data.catalogue import open_data
from ucn.data.pairs import PairData
from ucn.data.synthetic import make_pairs
from ucn.data.synthetic.bank import ImageBank, list_images
from ucn.evaluate.core.score_metrics import measure_reliability
from ucn.evaluate.pair_score.drawn import pair_drawn
from ucn.matching.keypoints import detect_corners
from ucn.matching.scoring import score_features
from ucn.train import calibration as fitting
from ucn.types import PairSample
from ucn.weights import load_weights
from ucn.weights.store import save_weights

_SEED = 7
_PHOTOGRAPHS = 106  # the last ones, which training holds out
_SIDE = 320  # of synthetic views
_ODDS = 0.25  # of pairs that match: in a folder of images, most pairs do not
_KINDS = {
    "geometric": ("photographs", "scenes"),
    "geometric-lite": ("photographs", "scenes"),
    "universal": ("photographs", "scenes", "birds", "faces"),
    "birds": ("birds",),
}


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


def read_unrelated(kinds: Sequence[str], folder: Path, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs that do not match."""
    files = list_images(folder / "photos")[-_PHOTOGRAPHS:]
    bank = ImageBank(files, _SIDE, "cpu")
    images = [
        bank.canvases[row, :, : int(size[1]), : int(size[0])].float() / 255
        for row, size in enumerate(bank.sizes)
    ]
    birds = read_pairs("birds", folder, count) if "birds" in kinds else iter(())
    for number in range(count):
        bird = next(birds, None) if number % 2 else None
        first = images[number % len(images)] if bird is None else bird.image0
        yield first, images[(number * 7 + 31) % len(images)]
    drawn = [pair for _, pair in pair_drawn(files, _SEED)]
    for image0, image1 in drawn[:: max(1, len(drawn) // (2 * count))]:
        yield image0.render(), image1.render()


@torch.no_grad()
def fit(name: str, folder: Path, count: int, device: str) -> Calibration:
    """The calibration of shipped weights."""
    loaded = load_weights(name)
    model = loaded.model.to(device).eval()
    kinds = _KINDS[name]
    features, labels, related, unrelated = [], [], [], []
    for kind in kinds:
        for sample in read_pairs(kind, folder, count):
            image0, image1 = sample.image0[None].to(device), sample.image1[None].to(device)
            map0, map1 = model.encode(image0), model.encode(image1)
            found = fitting._match(map0, map1, sample.points0.to(device))
            limit = fitting.CORRECT_WITHIN if sample.pck_length is None else 0.1 * sample.pck_length
            features.append(score_features(found))
            labels.append((found.points1 - sample.points1.to(device)).norm(dim=-1) <= limit)
            corners = detect_corners(sample.image0, 500).points.to(device)
            related.append((corners, fitting._match(map0, map1, corners)))
    for first, second in read_unrelated(kinds, folder, count):
        entry = fitting._match_images(model, first[None].to(device), second[None].to(device))
        if len(entry[0]):
            unrelated.append(entry)
    negatives = torch.cat([score_features(found) for _, found in unrelated])
    step = max(1, len(negatives) // (sum(map(len, features)) // 3))  # a quarter of all matches
    inputs = torch.cat([*features, negatives[::step]])
    is_correct = torch.cat([*labels, torch.zeros(len(negatives[::step]), dtype=torch.bool, device=device)])
    prior = [getattr(loaded.calibration, field) for field in fitting._MATCH_FIELDS]
    values = fitting._fit_logistic(inputs, is_correct, prior, 0.0, fitting._MATCH_BOUNDS)
    found_curves = replace(loaded.calibration, **dict(zip(fitting._MATCH_FIELDS, values, strict=True)))
    pairs = torch.tensor([fitting._pair_features(*entry, found_curves) for entry in related + unrelated])
    is_related = torch.tensor([True] * len(related) + [False] * len(unrelated))
    prior = [getattr(loaded.calibration, field) for field in fitting._PAIR_FIELDS]
    values = fitting._fit_logistic(pairs, is_related, prior, 0.0, fitting._PAIR_BOUNDS)
    values[0] = round(values[0] + math.log(_ODDS * len(unrelated) / len(related)), 4)
    found_curves = replace(found_curves, **dict(zip(fitting._PAIR_FIELDS, values, strict=True)))
    scores = torch.sigmoid(pairs @ torch.tensor(values[1:]) + values[0])
    match_scores = torch.sigmoid(
        inputs @ inputs.new_tensor([getattr(found_curves, f) for f in fitting._MATCH_FIELDS[1:]])
        + found_curves.match_bias
    )
    error = measure_reliability(match_scores.cpu().numpy(), is_correct.cpu().numpy(), 10).error
    print(
        f"{name}: {len(inputs):,} matches, {is_correct.float().mean():.1%} correct, ECE "
        f"{error:.1%}; "
        f"{len(related)} and {len(unrelated)} pairs, "
        f"{(scores[is_related] >= 0.5).float().mean():.1%} at 0.5 and more, "
        f"{(scores[~is_related] < 0.2).float().mean():.1%} below 0.2, largest {scores[~is_related].max():.2f}"
    )
    print(f"  {found_curves}", flush=True)
    return found_curves


def main() -> None:
    """Fits and writes."""
    parser = make_parser(__doc__)
    parser.add_argument("--weights", nargs="+", default=list(_KINDS), choices=list(_KINDS))
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the new weights files")
    parser.add_argument("--pairs", type=int, default=60, help="of each kind")
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    folder = Path(os.environ["UCN_DATA"])
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name in chosen.weights:
        curves = fit(name, folder, chosen.pairs, chosen.device)
        loaded = load_weights(name)
        path = chosen.output / f"{name}.safetensors"
        sha256 = save_weights(
            path,
            loaded.model,
            calibration=curves,
            training=loaded.training,
            max_side=loaded.max_side,
            overwrite=True,
        )
        print(f"  {path} sha256 {sha256}", flush=True)


if __name__ == "__main__":
    main()
