"""The paper's claim about training: many correspondences per pair train faster than one example.

python benchmarks/loss_comparison.py --images FOLDER --trunk GOOGLENET --seconds 20 -o FOLDER

Every run starts from the same ImageNet trunk (the paper's network without a transformer: the 512 channels of
inception_4a) and trains for the same seconds, validation not counted, on synthetic pairs of photographs. The
methods are those of the paper's Table 2:

- Siamese: one example per image pair, positive or negative, as two patches of the size of the receptive
  field; contrastive loss
- triplet: one point, its match and a random other position per image pair
- one-example contrastive: the example of the Siamese network, sampled from whole images
- correspondence contrastive: many points per image pair, with one random negative each, or with hard
  negatives as the paper mines them

and the last one is trained with N = 1, 10, 100, 1,000 and 3,000 points per pair. The learning rate follows a
cosine over the seconds; with several --rates, each method is reported at its best one. Validation: held-out
photographs, dense nearest neighbour with sub-cell refinement, PCK@5 and PCK@10. The variance of the gradient
is measured at the start: trace of its covariance over random batches, divided by the squared length of its
mean, both without bias.

Writes training-claim.json after each run (a later call with the same settings resumes), training-claim.md and
training-claim.png; loss_comparison_figure.py makes the last two from the first.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from command_line import make_parser
from loss_comparison_figure import write_report
from resumable import open_results, save_results
from torch import Tensor
from torch.optim import AdamW

from ucn.config import LossConfig, ModelConfig, SyntheticConfig
from ucn.data.io import read_image
from ucn.data.synthetic import ImageBank, list_images, make_pairs
from ucn.geometry.sampling import sample_descriptors, sample_image
from ucn.losses import correspondence_contrastive_loss
from ucn.matching.cells import match_forward
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.nn.trunk_files import load_imagenet_trunk
from ucn.train.step import compute_loss, encode_pair
from ucn.types import PairBatch

MODEL = ModelConfig(dim=None, head_norm="none", transformer="none")
RANDOM = LossConfig(kind="contrastive", mining="random", radius=20.0, direction="0to1")
HARD = LossConfig(kind="contrastive", mining="nearest", radius=16.0, direction="0to1")
TRIPLET = replace(RANDOM, kind="triplet")
ONE_EXAMPLE = replace(RANDOM, kind="one_contrastive")
CANVAS_SIDE = 448
HELD_OUT_EVERY = 20
WARMUP_STEPS = 50
CLIP_NORM = 1.0
THRESHOLDS = (5, 10)

LossFunction = Callable[[CorrespondenceNetwork, PairBatch, torch.Generator], Tensor]


@dataclass(frozen=True)
class Method:
    """A loss, and its number of points per image pair."""

    name: str
    points: int
    compute_loss: LossFunction


@dataclass(frozen=True)
class Plan:
    """Settings of the comparison."""

    seconds: float
    rates: tuple[float, ...]
    points: tuple[int, ...]
    batch: int
    side: int
    checkpoints: int
    validation_pairs: int
    draws: int
    seed: int


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=Path, help="folder of photographs; without it random textures")
    parser.add_argument("--trunk", type=Path, help="BVLC GoogLeNet; without it random weights")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=20.0, help="training time of each run")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4], help="learning rates to try")
    parser.add_argument("--points", type=int, nargs="+", default=[1, 10, 100, 1000, 3000])
    parser.add_argument("--batch", type=int, default=16, help="pairs of images per step")
    parser.add_argument("--side", type=int, default=256, help="side of the views in pixels")
    parser.add_argument("--checkpoints", type=int, default=8, help="validations after the first")
    parser.add_argument("--validation-pairs", type=int, default=64)
    parser.add_argument("--draws", type=int, default=64, help="batches for the variance of the gradient")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a few seconds on a CPU, for a test")
    given = parser.parse_args()
    values = {name: getattr(given, name) for name in Plan.__annotations__}
    plan = Plan(**values | {"rates": tuple(given.rates), "points": tuple(given.points)})
    if given.tiny:
        plan = Plan(
            0.1, (1e-4,), (1, 10), batch=2, side=64, checkpoints=2, validation_pairs=2, draws=3, seed=0
        )
    given.output.mkdir(parents=True, exist_ok=True)
    path = given.output / "training-claim.json"
    measure(plan, given.images, given.trunk, torch.device(given.device), path)
    print(write_report(path))


def measure(plan: Plan, images: Path | None, trunk: Path | None, device: torch.device, path: Path) -> None:
    """Makes all runs that the file of results lacks, and writes it after each."""
    begun = time.perf_counter()
    torch.set_float32_matmul_precision("high")  # as training does; the forward pass is in bf16 anyway
    training, held_out = open_banks(images, device)
    start = build_model(MODEL, torch.Generator().manual_seed(plan.seed))
    if trunk is not None:
        load_imagenet_trunk(start.trunk, trunk)
    # torch's annotations do not know memory_format.
    start = start.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    generator, count = make_generator(device, plan.seed + 1), max(1, plan.validation_pairs // plan.batch)
    validation = [make_batch(held_out, plan.batch, 500, plan, generator) for _ in range(count)]
    methods = list_methods(plan)
    settings = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "torch": torch.__version__,
        "photographs": {"training": len(training), "held_out": len(held_out)},
        "trunk": trunk.name if trunk else "random",
        "plan": asdict(plan) | {"clip_norm": CLIP_NORM, "warmup_steps": WARMUP_STEPS},
    }
    results = open_results(path, settings)
    gradients, runs = results.setdefault("gradients", {}), results["runs"]
    done = {(run["method"], run["rate"]) for run in runs}
    todo = [(method, rate) for method in methods for rate in plan.rates if (method.name, rate) not in done]
    unmeasured = [method for method in methods if method.name not in gradients]
    print(f"{len(training):,} photographs read, {time.perf_counter() - begun:.0f} s", flush=True)
    results["start"] = print_plan(todo, unmeasured, start, training, validation, plan)
    for method in unmeasured:
        gradients[method.name] = measure_gradient(method, start, training, plan)
        save_results(path, results)
        print(f"{method.name}: {gradients[method.name]}", flush=True)
    for method, rate in todo:
        runs.append(train_for(method, rate, start, training, validation, results["start"], plan))
        save_results(path, results)
        print(f"{method.name}, rate {rate:g}: {runs[-1]['curve'][-1]}", flush=True)
    print(f"everything took {time.perf_counter() - begun:.0f} s", flush=True)


def print_plan(
    todo: Sequence[tuple[Method, float]],
    unmeasured: Sequence[Method],
    start: CorrespondenceNetwork,
    bank: ImageBank,
    validation: Sequence[PairBatch],
    plan: Plan,
) -> dict[str, float]:
    """Prints the expected duration; returns the initial PCK of every run."""
    validate(start, validation)  # warm-up: libraries choose kernels
    begun = time.perf_counter()
    found = validate(start, validation)
    validating = len(todo) * plan.checkpoints * (time.perf_counter() - begun)
    sampling, model = 0.0, copy.deepcopy(start).train()
    generator = make_generator(bank.canvases.device, plan.seed)
    for method in unmeasured:
        for _ in range(2):
            begun = time.perf_counter()
            take_step(method, model, None, bank, generator, plan)
        sampling += plan.draws * (time.perf_counter() - begun)
    total = len(todo) * plan.seconds + validating + sampling
    print(
        f"plan: {len(todo)} runs of {plan.seconds:g} s, validation {validating:.0f} s, gradients of "
        f"{len(unmeasured)} methods {sampling:.0f} s: about {total:.0f} s",
        flush=True,
    )
    return found


def list_methods(plan: Plan) -> list[Method]:
    many = max((count for count in plan.points if count <= 1000), default=min(plan.points))
    return [
        Method("Siamese, patches", 1, compute_patch_loss),
        Method("triplet", 1, make_image_loss(TRIPLET)),
        Method("one-example contrastive", 1, make_image_loss(ONE_EXAMPLE)),
        Method(f"correspondence contrastive, random negatives, N = {many:,}", many, make_image_loss(RANDOM)),
        *(
            Method(f"correspondence contrastive, hard negatives, N = {count:,}", count, make_image_loss(HARD))
            for count in plan.points
        ),
    ]


def make_image_loss(config: LossConfig) -> LossFunction:
    """A loss on whole images."""

    def compute(model: CorrespondenceNetwork, batch: PairBatch, generator: torch.Generator) -> Tensor:
        return compute_loss(*encode_pair(model, batch), batch, config, generator)

    return compute


def compute_patch_loss(model: CorrespondenceNetwork, batch: PairBatch, generator: torch.Generator) -> Tensor:
    """One example per image pair, as two patches of the size of the receptive field."""
    B, device = len(batch.names), batch.image0.device
    height, width = batch.image1.shape[-2:]
    points0, points1 = batch.points0[:, :1], batch.points1[:, :1]
    is_positive = torch.rand(B, generator=generator, device=device) < 0.5
    # The first of 64 random positions that is far enough from the true match.
    size = torch.tensor([width, height], device=device)
    positions = torch.rand(B, 64, 2, generator=generator, device=device) * size - 0.5
    is_far = (positions - points1).square().sum(-1) >= RANDOM.radius**2
    first = is_far.int().argmax(dim=1)[:, None, None].expand(-1, 1, 2)
    other = torch.where(is_positive[:, None, None], points1, positions.gather(1, first))
    is_used = batch.is_valid[:, 0] & (is_positive | is_far.any(1))
    labels = torch.where(is_used, is_positive.long(), -1)[:, None]
    # An invalid point may be NaN, which would reach the gradient through any mask.
    points0, other = points0.nan_to_num(0.0), other.nan_to_num(0.0)
    centre = model.stride * math.ceil((model.reach - model.offset) / model.stride) + model.offset
    patches = replace(
        batch,
        image0=cut_patches(batch.image0, points0, centre),
        image1=cut_patches(batch.image1, other, centre),
    )
    map0, map1 = encode_pair(model, patches)
    centres = torch.full((B, 1, 2), centre, device=device)
    return correspondence_contrastive_loss(
        sample_descriptors(map0, centres), sample_descriptors(map1, centres), labels, RANDOM.margin
    )


def cut_patches(images: Tensor, points: Tensor, centre: float) -> Tensor:
    """Patches (B, 3, S, S) whose pixel (centre, centre) is the point (B, 1, 2)."""
    steps = torch.arange(2 * int(centre), device=images.device) - centre
    offsets = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1)
    return sample_image(images, points[:, None] + offsets, "border")


def train_for(
    method: Method,
    rate: float,
    start: CorrespondenceNetwork,
    bank: ImageBank,
    validation: Sequence[PairBatch],
    begin: dict[str, float],
    plan: Plan,
) -> dict[str, Any]:
    """One run; validation is not timed. All start with the same PCK."""
    model = copy.deepcopy(start).train()
    optimiser = AdamW(model.parameters(), lr=rate, weight_decay=1e-4)
    generator = make_generator(bank.canvases.device, plan.seed)
    # Warm-up: the first step chooses kernels and allocates memory.
    take_step(method, copy.deepcopy(model), None, bank, generator, plan)
    curve: list[dict[str, float]] = [{"seconds": 0.0, "steps": 0, **begin}]
    seconds, steps = 0.0, 0
    while len(curve) <= plan.checkpoints:
        if seconds >= plan.seconds * len(curve) / plan.checkpoints:
            curve.append({"seconds": round(seconds, 2), "steps": steps, **validate(model, validation)})
            continue
        begun = time.perf_counter()
        falling = 0.5 * (1 + math.cos(math.pi * min(1.0, seconds / plan.seconds)))
        for group in optimiser.param_groups:
            group["lr"] = rate * falling * min(1.0, (steps + 1) / WARMUP_STEPS)
        take_step(method, model, optimiser, bank, generator, plan)
        seconds += time.perf_counter() - begun
        steps += 1
    return {
        "method": method.name,
        "points": method.points,
        "rate": rate,
        "steps_per_second": round(steps / seconds, 2),
        "curve": curve,
    }


def take_step(
    method: Method,
    model: CorrespondenceNetwork,
    optimiser: AdamW | None,
    bank: ImageBank,
    generator: torch.Generator,
    plan: Plan,
) -> None:
    """Computes the gradient of one batch and, with an optimiser, updates; then synchronises."""
    batch = make_batch(bank, plan.batch, method.points, plan, generator)
    loss = method.compute_loss(model, batch, generator)
    model.zero_grad(set_to_none=True)
    loss.backward()
    if optimiser is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimiser.step()
    if bank.canvases.device.type == "cuda":
        torch.cuda.synchronize()


def make_batch(bank: ImageBank, pairs: int, points: int, plan: Plan, generator: torch.Generator) -> PairBatch:
    """Pairs with up to `points` points, sampled alike for all methods, so that data costs the same."""
    made = max(points, *plan.points, 1000)
    batch = make_pairs(bank, pairs, SyntheticConfig(side=plan.side, points=made), generator)
    # Rows are in random order, the valid ones first.
    return replace(
        batch,
        points0=batch.points0[:, :points],
        points1=batch.points1[:, :points],
        is_valid=batch.is_valid[:, :points],
    )


@torch.no_grad()
def validate(model: CorrespondenceNetwork, batches: Sequence[PairBatch]) -> dict[str, float]:
    errors = []
    for batch in batches:
        map0, map1 = encode_pair(model, batch)
        for row, is_valid in enumerate(batch.is_valid):
            found = match_forward(map0[row], map1[row], batch.points0[row][is_valid])
            errors.append((found.points - batch.points1[row][is_valid]).norm(dim=-1))
    merged = torch.cat(errors)
    return {f"pck@{pixels}": round((merged <= pixels).float().mean().item(), 4) for pixels in THRESHOLDS}


def measure_gradient(
    method: Method, start: CorrespondenceNetwork, bank: ImageBank, plan: Plan
) -> dict[str, float | None]:
    """Variance of the gradient over batches, at the start."""
    model = copy.deepcopy(start).train()
    generator = make_generator(bank.canvases.device, plan.seed + 2)

    def sample_gradients() -> Iterable[Tensor]:
        for _ in range(plan.draws):
            take_step(method, model, None, bank, generator, plan)
            gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            yield torch.cat(gradients).double()

    variance, squared_mean = estimate_variance(sample_gradients())
    is_known = squared_mean > 0
    return {
        "variance": variance,
        "squared_mean": squared_mean,
        "relative_variance": variance / squared_mean if is_known else None,
    }


def estimate_variance(vectors: Iterable[Tensor]) -> tuple[float, float]:
    """Unbiased trace of the covariance and squared length of the mean of at least two vectors.

    The second is negative where noise dominates the mean.
    """
    total, squares, count = torch.zeros(()), 0.0, 0
    for vector in vectors:
        total = total + vector
        squares += vector.square().sum().item()
        count += 1
    squared_mean = (total / count).square().sum().item()
    variance = (squares - count * squared_mean) / (count - 1)
    return variance, squared_mean - variance / count


def open_banks(folder: Path | None, device: torch.device) -> tuple[ImageBank, ImageBank]:
    """Photographs, or random textures, for training and validation."""
    if folder is not None:
        return split_banks(list_images(folder), read_image, device)
    noise = torch.rand(4, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    textures = F.interpolate(noise, (160, 160), mode="bicubic").clamp(0, 1)
    return split_banks([Path(str(row)) for row in range(4)], lambda path: textures[int(path.name)], device)


def split_banks(
    paths: Sequence[Path], read: Callable[[Path], Tensor], device: torch.device
) -> tuple[ImageBank, ImageBank]:
    parts = [path for index, path in enumerate(paths) if index % HELD_OUT_EVERY], paths[::HELD_OUT_EVERY]
    with ThreadPoolExecutor() as pool:
        training, held_out = (ImageBank(part, CANVAS_SIDE, device, pool.map(read, part)) for part in parts)
    return training, held_out


def make_generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


if __name__ == "__main__":
    main()
