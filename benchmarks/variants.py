"""The paper's variants RN, HN and HN-ST on birds (its Figure 8), with equal training time and several seeds.

UCN_DATA=DIR python benchmarks/variants.py -o FOLDER --seconds 22

Each run is a shipped recipe (paper/semantic-rn, -hn, -hn-st). Only the training time changes (learning
rates follow the recipe's schedule at the same fraction of the run; validation is not counted), the batch
size, and what --set changes, in all recipes or (hn-st:KEY=VALUE) in one; all of it is printed. The seeds
change initial weights, pairs and random negatives. All runs share one copy of CUB's images on the device.

Evaluation is that of `ucn evaluate cub`: each part of image 0 visible in both images is matched to its
nearest descriptor in image 1, with sub-cell refinement; PCK at α of image 1's diagonal, mean over points; on
the listed test pairs and, for choosing settings (--held-out-only), on same-class pairs of held-out training
images. --control adds the network of HN-ST with fixed θ = I, which isolates the effect of its additional
convolution.

Writes variants.json after each run (a later call with the same settings resumes), variants.md and
variants.png; --figure-only makes the last two from the first.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import make_parser
from resumable import open_results, save_results
from torch import Tensor
from variants_report import CONTROL, HELD_OUT, TEST, UNTRAINED, VARIANTS, draw, format_shares, make_page

from ucn.config import TrainConfig
from ucn.data.catalogue import open_data, parse_options
from ucn.data.pairs import PairData
from ucn.evaluate.core.metrics import average, count_within, point_errors
from ucn.evaluate.points.benchmarks import Benchmark, find_benchmark
from ucn.evaluate.points.predictions import find_points
from ucn.files.writing import write_bytes_atomically
from ucn.nn import CorrespondenceNetwork
from ucn.nn.transformer import ConvolutionalSpatialTransformer
from ucn.train.optim import build_optimiser, learning_rate_factor, update_average
from ucn.train.recipe import find_recipe, read_recipe
from ucn.train.sources.data_sets import PartSource
from ucn.train.start import start_model
from ucn.train.step import check_finite, training_step
from ucn.types import FeatureMap, Features, PairBatch
from ucn.weights import save_weights

RECIPES = find_recipe("paper/semantic-hn").parent
SYNCHRONISE_EVERY = 10
ENCODED_AT_ONCE = 32


@dataclass(frozen=True)
class EvaluationPair:
    """A pair by its image indices, with query points, ground truth and PCK length."""

    image0: int
    image1: int
    points0: Tensor
    points1: Tensor
    length: float


@dataclass(frozen=True)
class EvaluationSet:
    """Pairs to evaluate; images (3, H, W) on the device are shared between pairs."""

    images: list[Tensor]
    pairs: list[EvaluationPair]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="folder of semantic-*.yaml")
    parser.add_argument("--data", type=Path, help="CUB's folder, in place of the recipes'")
    parser.add_argument("--seconds", type=float, default=22.0, help="training time of each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batch", type=int, default=32, help="pairs of images per step")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="[VARIANT:]KEY=VALUE")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--control", action="store_true", help="also HN-ST's network with fixed θ = I")
    parser.add_argument("--held-out-only", action="store_true", help="skip the test images")
    parser.add_argument("--limit", type=int, help="largest number of pairs of each kind")
    parser.add_argument("--keep-weights", action="store_true", help="also write the weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--figure-only", action="store_true", help="only draw variants.json")
    given = parser.parse_args()
    path = given.output / "variants.json"
    if not given.figure_only:
        given.output.mkdir(parents=True, exist_ok=True)
        measure(given, path)
    results = json.loads(path.read_text(encoding="utf-8"))
    table = make_page(results)
    write_bytes_atomically(given.output / "variants.md", table.encode(), overwrite=True)
    draw(results, given.output / "variants.png")
    print(table)


def measure(given: argparse.Namespace, path: Path) -> None:
    """Makes all runs that the results lack."""
    begun, device = time.perf_counter(), torch.device(given.device)
    configs = read_recipes(given)
    first = next(iter(configs.values()))
    results = open_results(path, describe(given, configs, device))
    source, sets = open_data_sets(first, given, device)
    chosen = [*given.variants, *([CONTROL] if given.control else [])]
    plan = [(variant, seed) for seed in given.seeds for variant in chosen]
    done = {(run["variant"], run["seed"]) for run in results["runs"]}
    todo = [run for run in plan if run not in done]
    print("pairs: " + ", ".join(f"{len(chosen.pairs):,} of {name}" for name, chosen in sets.items()))
    print(
        f"plan: {len(todo)} of {len(plan)} runs of {given.seconds:g} s, each with about 8 s on a GPU to "
        f"measure: {len(todo) * (given.seconds + 8):.0f} s from here; "
        f"loading took {time.perf_counter() - begun:.0f} s",
        flush=True,
    )
    if UNTRAINED not in results:
        # Without its transformer the network is the ImageNet trunk; a projection would be random.
        plain = replace(first.model, dim=None, head_norm="none", transformer="none")
        start = prepare(replace(first, model=plain), 0, device)
        results[UNTRAINED] = evaluate_sets(start, sets)
        save_results(path, results)
    for variant, seed in todo:
        model, run = train_for(variant, configs[variant], seed, source, given.seconds, device)
        before = time.perf_counter()
        run |= evaluate_sets(model, sets)
        run["seconds_measuring"] = round(time.perf_counter() - before, 1)
        results["runs"].append(run)
        save_results(path, results)
        if given.keep_weights:
            target = path.parent / f"semantic-{variant}-{seed}.safetensors"
            save_weights(target, model, training=configs[variant].to_dict(), overwrite=True)
        shares = ", ".join(f"{set_name}: {format_shares(run[set_name])}" for set_name in sets)
        print(f"{variant}, seed {seed}: {run['steps']} steps, loss {run['loss']:.3f}; {shares}", flush=True)
    print(f"everything took {time.perf_counter() - begun:.0f} s", flush=True)


def read_recipes(given: argparse.Namespace) -> dict[str, TrainConfig]:
    """The recipes of the runs; exits where they differ in what must be equal."""
    data = [f"cub={given.data}"] if given.data else []
    configs = {}
    for name in (*VARIANTS, CONTROL):
        recipe = "hn-st" if name == CONTROL else name
        changes = [f"batch={given.batch}"]
        for change in given.changes:
            variant, separator, rest = change.partition(":")
            if not separator or variant not in VARIANTS:
                changes.append(change)
            elif variant == recipe:
                changes.append(rest)
        configs[name] = read_recipe(given.recipes / f"semantic-{recipe}.yaml", changes, data)
    kinds = {(config.sources, config.validation_share, config.init) for config in configs.values()}
    if len(kinds) > 1 or any(
        not source.on_device for config in configs.values() for source in config.sources
    ):
        raise SystemExit("the recipes must have the same start and the same source, with on_device: true")
    return configs


def describe(
    given: argparse.Namespace, configs: dict[str, TrainConfig], device: torch.device
) -> dict[str, Any]:
    """Everything that results depend on."""
    configs = {name: replace(config, init=Path(config.init).name) for name, config in configs.items()}
    recipes = {}
    for name, config in configs.items():
        values = config.to_dict()
        for source in values["sources"]:
            source["folder"] = Path(source["folder"]).name  # without local paths
        recipes[name] = values
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "torch": torch.__version__,
        "seconds": given.seconds,
        "batch": given.batch,
        "changes": list(given.changes),
        "limit": given.limit,
        "is_held_out_only": given.held_out_only,
        "recipes": recipes,
    }


def open_data_sets(
    config: TrainConfig, given: argparse.Namespace, device: torch.device
) -> tuple[PartSource, dict[str, EvaluationSet]]:
    """The training images, shared by all runs, and the evaluation pairs."""
    benchmark, source = find_benchmark("cub"), config.sources[0]
    data = open_data(source.name, source.folder, source.split, parse_options(source.options))
    training, held_out = data.split_off(config.validation_share)
    training_source = PartSource(
        source.name,
        source,
        training,
        held_out,
        batch=config.batch,
        seed=0,
        device=device,
        validation_pairs=1,
        use_skipping=False,
    )
    requested = {HELD_OUT: [(held_out, index) for index in range(len(held_out))]}
    if not given.held_out_only:
        requested[TEST] = [(pair.data, pair.index) for pair in benchmark.open(Path(source.folder))]
    sets = {}
    for name, pairs in requested.items():
        step = max(1, len(pairs) // given.limit) if given.limit else 1
        sets[name] = make_evaluation_set(pairs[::step], benchmark, device)
    return training_source, sets


def make_evaluation_set(
    pairs: Sequence[tuple[PairData, int]], benchmark: Benchmark, device: torch.device
) -> EvaluationSet:
    numbers: dict[Path, int] = {}
    found = EvaluationSet([], [])
    for data, index in pairs:
        shown = benchmark.preparation.apply(data.read(index)).sample
        rows = []
        for path, image in zip(data.image_paths(index), (shown.image0, shown.image1), strict=True):
            if path not in numbers:
                numbers[path] = len(found.images)
                found.images.append(image.to(device))
            rows.append(numbers[path])
        length = float("nan") if shown.pck_length is None else shown.pck_length
        found.pairs.append(EvaluationPair(rows[0], rows[1], shown.points0.to(device), shown.points1, length))
    return found


def prepare(config: TrainConfig, seed: int, device: torch.device) -> CorrespondenceNetwork:
    """The initial network of a run."""
    model = start_model(replace(config, seed=seed))
    # torch's annotations do not know memory_format.
    moved: CorrespondenceNetwork = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved.train()


def train_for(
    variant: str, config: TrainConfig, seed: int, source: PartSource, seconds: float, device: torch.device
) -> tuple[CorrespondenceNetwork, dict[str, Any]]:
    """One run; only training is timed."""
    torch.set_float32_matmul_precision("high")  # as `ucn train` does; the forward pass is in bf16 anyway
    model = prepare(config, seed, device)
    if variant == CONTROL:
        for layer in list_transformers(model):
            layer.localiser.requires_grad_(False)
    generator = torch.Generator(device).manual_seed(seed)
    # Warm-up: the first steps choose kernels and allocate memory.
    spare = copy.deepcopy(model)
    take_step(spare, config, build_optimiser(spare, config), source, torch.Generator(device).manual_seed(0))
    optimiser, kept = build_optimiser(model, config), copy.deepcopy(model).requires_grad_(False)
    losses: list[Tensor] = []
    names: list[Sequence[str]] = []
    spent, points = 0.0, torch.zeros((), dtype=torch.int64, device=device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    while spent < seconds:
        begun = time.perf_counter()
        for _ in range(SYNCHRONISE_EVERY):
            share = min(1.0, (spent + time.perf_counter() - begun) / seconds)
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * learning_rate_factor(config, int(share * config.steps))
            loss, batch = take_step(model, config, optimiser, source, generator)
            update_average(kept, model, config.average_decay, len(losses) + 1)
            losses.append(loss)
            names.append(batch.names)
            points += batch.is_valid.sum()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent += time.perf_counter() - begun
    check_finite(torch.stack(losses), names)
    torch.set_float32_matmul_precision("highest")
    return kept.eval(), {
        "variant": variant,
        "seed": seed,
        "seconds": round(spent, 2),
        "steps": len(losses),
        "pairs_per_second": round(len(losses) * config.batch / spent, 1),
        "points": int(points),
        "loss": float(torch.stack(losses[-len(losses) // 5 :]).mean()),
        "window_change": measure_theta(kept, batch),
        "memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def take_step(
    model: CorrespondenceNetwork,
    config: TrainConfig,
    optimiser: torch.optim.Optimizer,
    source: PartSource,
    generator: torch.Generator,
) -> tuple[Tensor, PairBatch]:
    """One training step on a new batch; does not wait for the device."""
    batch = source.sample_batch(0, generator)
    result = training_step(
        model, batch, config.loss, optimiser, config.clip_norm, generator, config.precision
    )
    return result.loss, batch


def list_transformers(model: CorrespondenceNetwork) -> list[ConvolutionalSpatialTransformer]:
    return [layer for layer in model.modules() if isinstance(layer, ConvolutionalSpatialTransformer)]


@torch.no_grad()
def measure_theta(model: CorrespondenceNetwork, batch: PairBatch) -> list[float]:
    """Mean |θ - I| of each transformer over the images of a batch."""
    found: list[float] = []

    def look(layer: ConvolutionalSpatialTransformer, inputs: tuple[Tensor, ...]) -> None:
        theta = layer.predict_theta(inputs[0])
        identity = theta.new_tensor([1.0, 0.0, 0.0, 1.0]).view(1, 4, 1, 1)
        found.append(round(float((theta - identity).abs().mean()), 6))

    hooks = [layer.register_forward_pre_hook(look) for layer in list_transformers(model)]
    model(batch.image0)
    for hook in hooks:
        hook.remove()
    return found


def evaluate_sets(model: CorrespondenceNetwork, sets: dict[str, EvaluationSet]) -> dict[str, Any]:
    """The share of points found within each α, on each kind of pairs."""
    return {name: score(model.eval(), pairs_set) for name, pairs_set in sets.items()}


@torch.no_grad()
def score(model: CorrespondenceNetwork, pairs_set: EvaluationSet) -> dict[str, Any]:
    limits = find_benchmark("cub").curve_limits
    maps = encode_images(model, pairs_set.images)
    correct, totals = [], []
    for pair in pairs_set.pairs:
        features0, features1 = maps[pair.image0], maps[pair.image1]
        height, width = features1.image_hw
        found = find_points(features0, features1, pair.points0, (0, 0, width, height), True)
        errors = point_errors(found.cpu().numpy(), pair.points1.numpy())
        correct.append(count_within(errors, np.asarray(limits) * pair.length))
        totals.append(len(errors))
    shares = average(np.array(correct), np.array(totals))
    return {
        "pairs": len(totals),
        "points": sum(totals),
        "alphas": list(limits),
        "shares": [round(float(share), 5) for share in shares],
    }


def encode_images(model: CorrespondenceNetwork, images: list[Tensor]) -> list[Features]:
    """Features of images, those of equal size together, in float32 as when matching."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for number, image in enumerate(images):
        by_size.setdefault((image.shape[-2], image.shape[-1]), []).append(number)
    found: dict[int, Features] = {}
    for size_hw, numbers in by_size.items():
        for start in range(0, len(numbers), ENCODED_AT_ONCE):
            some = numbers[start : start + ENCODED_AT_ONCE]
            maps: FeatureMap = model.encode(torch.stack([images[number] for number in some]))
            for row, number in enumerate(some):
                found[number] = Features(maps[row], size_hw, maps.features.new_zeros(0, 2))
    return [found[number] for number in range(len(images))]


if __name__ == "__main__":
    main()
