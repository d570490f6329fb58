"""Cost of matching n keypoints: UCN runs once per image, a Siamese network once per pair of patches.

python benchmarks/cost_figure.py -o docs/results

For each of n keypoints of image 0, the most similar of n keypoints of image 1 is found, with three methods:

- UCN: one forward pass per image, descriptors sampled at the keypoints, nearest neighbours
- Siamese, without a cache: the whole network, two branches and the decision layers, for each of n² pairs
- Siamese, branches cached: each of the 2n patches through the branch once, n² passes of the decision layers

Forward passes are counted while the networks run, per image, patch or pair whatever the batch size, and
checked against the expected numbers. A run is stopped after --limit seconds; it and all larger n are then
extrapolated from the last complete run: the branch grows with n, the decision layers with n². Accuracy is
PCK@10: the share of keypoints whose match lies within 10 pixels of the ground truth. The keypoints of image 1
are the true matches of those of image 0, so a small n is easy.

Images are the bundled stereo pair and, for accuracy only, with up to 500 keypoints, a photograph under a
known homography. The default of --siamese is the bundled network; --random measures times with random
weights. Writes cost.json, cost.md, cost.png and cost.svg.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from command_line import make_parser
from cost_report import CACHED, UCN, WHOLE, write_report
from torch import Tensor, nn

from ucn.evaluate.core.report import find_versions
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.predictions import prepare_pair
from ucn.geometry.sampling import sample_descriptors
from ucn.knn import nearest
from ucn.nn import CorrespondenceNetwork
from ucn.paper.siamese import (
    SHIPPED,
    PatchExtractor,
    SiameseConfig,
    SiameseNetwork,
    build_siamese,
    cut_patches,
    find_best,
    load_siamese,
)
from ucn.types import PairSample
from ucn.weights import load_weights

COUNTS = (10, 20, 50, 100, 200, 500, 1000, 2000)
PAIRS_AT_ONCE = 64
ROWS_AT_ONCE = 64
WITHIN = 10.0

Method = Callable[[PairSample], Iterator[Tensor]]
"""Yields an empty tensor when encoding is done, then the matches of the keypoints in order."""


@dataclass(frozen=True)
class Passes:
    """Forward passes: of UCN over images, of the branch over patches, of the decision layers over pairs."""

    images: int = 0
    patches: int = 0
    pairs: int = 0


@dataclass(frozen=True)
class Run:
    """One method with n keypoints.

    Attributes:
        n: keypoints in each image.
        passes: forward passes.
        encoding: seconds of work per image or patch.
        comparing: seconds of work per pair of keypoints.
        is_measured: else extrapolated.
        accuracy: PCK@10; None where not measured.
    """

    n: int
    passes: Passes
    encoding: float
    comparing: float
    is_measured: bool
    accuracy: float | None = None

    @property
    def seconds(self) -> float:
        """The total."""
        return self.encoding + self.comparing

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rounded = {name: round(getattr(self, name), 6) for name in ("encoding", "comparing", "seconds")}
        return asdict(self) | rounded


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--weights", default="geometric", help="weights of UCN: a name or a file")
    parser.add_argument(
        "--siamese", type=Path, default=SHIPPED, help="file of benchmarks/siamese_training.py"
    )
    parser.add_argument("--random", action="store_true", help="an untrained Siamese network")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="numbers of keypoints")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a run is stopped")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the keypoints")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    siamese = build_siamese(SiameseConfig()).eval() if given.random else load_siamese(given.siamese)
    loaded = load_weights(given.weights)
    stereo, warped = read_sample("motorcycle", 0, given.seed), read_sample("mini", 0, given.seed)
    results = {
        "settings": describe_settings(given, loaded.info.sha256, siamese, stereo, warped),
        "runs": measure(loaded.model, siamese, stereo, warped, sorted(given.counts), given.limit),
    }
    given.output.mkdir(parents=True, exist_ok=True)
    print(write_report(results, given.output / "cost"))


def describe_settings(
    given: argparse.Namespace, sha256: str, siamese: SiameseNetwork, stereo: PairSample, warped: PairSample
) -> dict[str, Any]:
    weights = "random" if given.random else given.siamese.name
    return {
        "command": f"python benchmarks/cost_figure.py {shlex.join(sys.argv[1:])}",
        "weights": f"{given.weights}, sha256 {sha256[:16]}",
        "siamese": weights,
        "patch": siamese.config.patch,
        "limit": given.limit,
        "threads": given.threads,
        "seed": given.seed,
        "image_hw": list(stereo.image0.shape[-2:]),
        "pairs": {"stereo": stereo.name, "warped": warped.name},
        "versions": find_versions(),
    }


def read_sample(benchmark: str, index: int, seed: int) -> PairSample:
    """A bundled pair with the query points of its benchmark."""
    found = find_benchmark(benchmark)
    return prepare_pair(found, found.open(Path())[index], seed).sample


def measure(
    ucn_model: CorrespondenceNetwork,
    siamese: SiameseNetwork,
    stereo: PairSample,
    warped: PairSample,
    counts: Sequence[int],
    limit: float,
) -> dict[str, list[dict[str, Any]]]:
    """All runs by method, each until a run exceeds the limit."""
    methods: dict[str, Method] = {
        UCN: lambda sample: match_with_ucn(ucn_model, sample),
        CACHED: lambda sample: match_with_cache(siamese, sample),
        WHOLE: lambda sample: match_pair_by_pair(siamese, sample),
    }
    counter = PassCounter(ucn_model, siamese)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, method in methods.items():
        run_method(name, method, select(stereo, min(counts)), counter, limit)  # the first run chooses kernels
        runs: list[Run] = []
        for n in counts:
            is_over = bool(runs) and not runs[-1].is_measured
            run = None if is_over else run_method(name, method, select(stereo, n), counter, limit)
            runs.append(run or extrapolate(name, runs, n))
            kind = "measured" if run else "extrapolated"
            print(f"{name}, n = {n:,}: {runs[-1].seconds:.2f} s, {kind}, {runs[-1].passes}", flush=True)
        found[name] = [run.to_dict() for run in runs]
    for n in (n for n in counts if n <= len(warped)):
        for name in (UCN, CACHED):
            run = run_method(name, methods[name], select(warped, n), counter, limit)
            row = next(row for row in found[name] if row["n"] == n)
            row["accuracy_warped"] = run.accuracy if run else None
    return found


def select(sample: PairSample, n: int) -> PairSample:
    """The first n keypoints; they are in random order."""
    if n > len(sample):
        raise SystemExit(f"{sample.name} has {len(sample):,} keypoints, {n:,} were requested")
    return sample.select(torch.arange(n))


def run_method(
    name: str, method: Method, sample: PairSample, counter: PassCounter, limit: float
) -> Run | None:
    """Runs a method; None where it exceeds the limit."""
    counter.reset()
    matches: list[Tensor] = []
    begun = encoded = time.perf_counter()
    for found in method(sample):
        if not matches:
            encoded = time.perf_counter()
        matches.append(found)
        if time.perf_counter() - begun > limit:
            return None
    ended, n = time.perf_counter(), len(sample)
    passes = counter.read()
    if passes != count_passes(name, n):
        raise SystemExit(f"{name}, n = {n}: {passes} were counted, expected {count_passes(name, n)}")
    chosen = sample.points1[torch.cat(matches)]
    accuracy = ((chosen - sample.points1).norm(dim=1) <= WITHIN).float().mean().item()
    return Run(n, passes, encoded - begun, ended - encoded, True, round(accuracy, 4))


def count_passes(name: str, n: int) -> Passes:
    """Expected number of forward passes."""
    known = {UCN: Passes(images=2), CACHED: Passes(patches=2 * n, pairs=n * n)}
    return known.get(name) or Passes(patches=2 * n * n, pairs=n * n)


def extrapolate(name: str, runs: Sequence[Run], n: int) -> Run:
    """Cost of n keypoints, from the last measured run."""
    whole = [run for run in runs if run.is_measured]
    if not whole:
        raise SystemExit(f"{name} exceeds the limit with the fewest keypoints; give a higher --limit")
    factor = n / whole[-1].n
    encoding = whole[-1].encoding * (1 if name == UCN else factor)
    return Run(n, count_passes(name, n), encoding, whole[-1].comparing * factor**2, is_measured=False)


class PassCounter:
    """Counts inputs of the networks while they run."""

    def __init__(self, ucn_model: CorrespondenceNetwork, siamese: SiameseNetwork) -> None:
        self._counts = {"images": 0, "patches": 0, "pairs": 0}
        self._watch("images", ucn_model)
        self._watch("patches", siamese.branch.trunk.conv1)
        self._watch("pairs", siamese.decision.last)

    def _watch(self, kind: str, layer: nn.Module) -> None:
        def count(_layer: nn.Module, _inputs: Any, output: Tensor) -> None:
            # The last decision layer has one output per pair, whatever the layout.
            self._counts[kind] += output.numel() if kind == "pairs" else len(output)

        layer.register_forward_hook(count)

    def reset(self) -> None:
        """Sets all counts to zero."""
        self._counts = dict.fromkeys(self._counts, 0)

    def read(self) -> Passes:
        """Counts since the last reset."""
        return Passes(**self._counts)


@torch.no_grad()
def match_with_ucn(model: CorrespondenceNetwork, sample: PairSample) -> Iterator[Tensor]:
    """Index of the match of each keypoint: (N,) int64, by nearest descriptors."""
    map0, map1 = model.encode(sample.image0[None]), model.encode(sample.image1[None])
    yield NOTHING
    descriptors0 = sample_descriptors(map0, sample.points0[None])[0]
    descriptors1 = sample_descriptors(map1, sample.points1[None])[0]
    yield nearest(descriptors0, descriptors1).indices[:, 0]


def match_with_cache(model: SiameseNetwork, sample: PairSample) -> Iterator[Tensor]:
    """The same with decision layers on all pairs of cached descriptors."""
    extractor = PatchExtractor(model)
    descriptors0 = extractor.compute_at(sample.image0, sample.points0)
    descriptors1 = extractor.compute_at(sample.image1, sample.points1)
    yield NOTHING
    for some in torch.split(descriptors0, ROWS_AT_ONCE):
        yield find_best(model.decision, some, descriptors1)


@torch.no_grad()
def match_pair_by_pair(model: SiameseNetwork, sample: PairSample) -> Iterator[Tensor]:
    """The same with the whole network for each pair of patches."""
    side = model.config.patch
    patches0 = cut_patches(sample.image0[None], sample.points0[None], side)[0]
    patches1 = cut_patches(sample.image1[None], sample.points1[None], side)[0]
    yield NOTHING
    for own in patches0:
        parts = [
            model(own.expand(len(others), -1, -1, -1), others)
            for others in torch.split(patches1, PAIRS_AT_ONCE)
        ]
        yield torch.cat(parts).argmax()[None]


NOTHING = torch.empty(0, dtype=torch.int64)


if __name__ == "__main__":
    main()
