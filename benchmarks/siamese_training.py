"""Trains the Siamese patch-similarity network on the synthetic pairs of the recipe of `geometric`.

python benchmarks/siamese_training.py --images FOLDER --trunk GOOGLENET --seconds 240 -o siamese.safetensors

Each step makes pairs of views, cuts a patch around each point of both, computes descriptors of all patches
with the branch, and compares every patch of view 0 with every patch of view 1 of the same pair by the
decision layers. The loss is the cross-entropy of the true match among them, in both directions, without
others within --radius pixels of it. Patches of view 1 are moved by up to --jitter pixels, as when images are
cut on a grid.

The learning rate follows a cosine over the seconds; the first steps, which choose kernels and compile, are
not timed. Every --report seconds it prints the validation on held-out photographs: the share of points whose
best patch among all of the pair lies within 10 pixels of the ground truth. The exponential moving average is
saved.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from command_line import make_parser
from loss_comparison import make_generator, open_banks
from torch import Tensor
from torch.optim import AdamW

from ucn.config import SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.nn.trunk_files import load_imagenet_trunk
from ucn.paper.siamese import SiameseConfig, SiameseNetwork, build_siamese, cut_patches, save_siamese
from ucn.train.recipe import find_recipe, read_recipe
from ucn.types import PairBatch

RECIPE = find_recipe("geometric")
WARMUP_STEPS = 200
UNTIMED_STEPS = 3
CLIP_NORM = 1.0
AVERAGE_DECAY = 0.999
READ_CLOCK_EVERY = 10
WITHIN = 10.0


@dataclass(frozen=True)
class Plan:
    """Settings of the training."""

    seconds: float
    batch: int
    points: int
    trunk_learning_rate: float
    head_learning_rate: float
    weight_decay: float
    radius: float
    jitter: float
    report: float
    validation_pairs: int
    seed: int


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=Path, help="folder of photographs; without it random textures")
    parser.add_argument("--trunk", type=Path, help="BVLC GoogLeNet; without it random weights")
    parser.add_argument("-o", "--output", type=Path, required=True, help=".safetensors")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="recipe of the synthetic pairs")
    parser.add_argument("--side", type=int, help="side of the views in pixels; default: the recipe's")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--batch", type=int, default=8, help="pairs of views per step")
    parser.add_argument("--points", type=int, default=128, help="points per pair, each a patch in both views")
    parser.add_argument("--trunk-learning-rate", type=float, default=5e-4)
    parser.add_argument("--head-learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=5e-2)
    parser.add_argument("--radius", type=float, default=10.0, help="pixels; nearer points are no negatives")
    parser.add_argument(
        "--jitter", type=float, default=3.0, help="largest shift of the patches of view 1, px"
    )
    parser.add_argument("--report", type=float, default=20.0, help="seconds between validations")
    parser.add_argument("--validation-pairs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patch", type=int, default=SiameseConfig.patch, help="side in pixels")
    parser.add_argument("--fusion", choices=("comparison", "concatenation"), default=SiameseConfig.fusion)
    parser.add_argument("--compile", action="store_true", help="compile the branch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    plan = Plan(**{name: getattr(given, name) for name in Plan.__annotations__})
    begun, device = time.perf_counter(), torch.device(given.device)
    torch.set_float32_matmul_precision("high")
    training, held_out = open_banks(given.images, device)
    print(f"{len(training):,} photographs read, {time.perf_counter() - begun:.0f} s", flush=True)
    synthetic = read_synthetic(given.recipe, plan.points, given.side)
    config = SiameseConfig(patch=given.patch, fusion=given.fusion)
    model = start_model(config, given.trunk, plan.seed, device)
    average, record = train(model, training, held_out, synthetic, plan, given.compile)
    record |= {
        "plan": asdict(plan),
        "synthetic": synthetic.to_dict(),
        "photographs": {"training": len(training), "held_out": len(held_out)},
        "trunk": given.trunk.name if given.trunk else "random",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "torch": torch.__version__,
    }
    sha256 = save_siamese(given.output, average, record, overwrite=True)
    print(f"{given.output}: {given.output.stat().st_size:,} bytes, sha256 {sha256}", flush=True)
    print(f"everything took {time.perf_counter() - begun:.0f} s", flush=True)


def read_synthetic(recipe: Path, points: int, side: int | None) -> SyntheticConfig:
    """The synthetic pairs of a recipe; its folders and initial weights are ignored."""
    elsewhere = [f"{name}=." for name in ("synthetic", "cub")]
    synthetic = read_recipe(recipe, overrides=["init=random"], data=elsewhere).synthetic
    return replace(synthetic, points=points, side=side or synthetic.side)


def start_model(config: SiameseConfig, trunk: Path | None, seed: int, device: torch.device) -> SiameseNetwork:
    model = build_siamese(config, torch.Generator().manual_seed(seed))
    if trunk is not None:
        load_imagenet_trunk(model.branch.trunk, trunk)
    # torch's annotations do not know memory_format.
    moved: SiameseNetwork = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved


def train(
    model: SiameseNetwork,
    training: ImageBank,
    held_out: ImageBank,
    synthetic: SyntheticConfig,
    plan: Plan,
    use_compile: bool = False,
) -> tuple[SiameseNetwork, dict[str, Any]]:
    """Trains for the seconds of the plan; returns the averaged network and the record of the run."""
    device = training.canvases.device
    generator, validation_generator = make_generator(device, plan.seed), make_generator(device, plan.seed + 1)
    plain = replace(synthetic, collage_share=0.0, blend_share=0.0)
    count = max(1, plan.validation_pairs // plan.batch)
    validation = [make_pairs(held_out, plan.batch, plain, validation_generator) for _ in range(count)]
    average = copy.deepcopy(model).eval().requires_grad_(False)
    if use_compile:
        model.branch.compile()
    model.train()
    optimiser = build_optimiser(model, plan)
    curve: list[dict[str, float]] = []
    losses: list[Tensor] = []
    clock, due = Clock(device), plan.report
    while clock.seconds < plan.seconds:
        set_learning_rates(optimiser, clock.steps, clock.seconds / plan.seconds)
        batch = make_pairs(training, plan.batch, synthetic, generator)
        losses.append(take_step(model, batch, optimiser, plan, generator))
        clock.tick()
        update_average(average, model, clock.steps)
        if clock.seconds >= min(due, plan.seconds):
            with clock.stopped():
                found = {"seconds": round(clock.seconds, 1), "steps": clock.steps}
                found |= {
                    "loss": round(torch.stack(losses).mean().item(), 4),
                    **validate(average, validation),
                }
            curve.append(found)
            losses.clear()
            due = (clock.seconds // plan.report + 1) * plan.report
            print(", ".join(f"{key} {value}" for key, value in found.items()), flush=True)
    return average, {"curve": curve, "steps": clock.steps}


class Clock:
    """Counts steps and their seconds, without the first steps, which choose kernels and compile.

    Attributes:
        steps: so far.
        seconds: at the last synchronisation, which is not after every step.
    """

    def __init__(self, device: torch.device) -> None:
        self.steps, self.seconds = 0, 0.0
        self._device, self._begun = device, time.perf_counter()

    def tick(self) -> None:
        """Counts a step."""
        self.steps += 1
        if self.steps == UNTIMED_STEPS:
            synchronise(self._device)
            self._begun = time.perf_counter()
        elif self.steps % READ_CLOCK_EVERY == 0 and self.steps > UNTIMED_STEPS:
            synchronise(self._device)
            self.seconds = time.perf_counter() - self._begun

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Excludes the time in this context."""
        before = time.perf_counter()
        yield
        self._begun += time.perf_counter() - before


def build_optimiser(model: SiameseNetwork, plan: Plan) -> AdamW:
    trunk = list(model.branch.trunk.parameters())
    known = {id(parameter) for parameter in trunk}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in known]
    groups = [
        {"params": chosen, "lr": rate, "peak": rate, "weight_decay": decay}
        for part, rate in ((trunk, plan.trunk_learning_rate), (rest, plan.head_learning_rate))
        for chosen, decay in (
            ([parameter for parameter in part if parameter.ndim > 1], plan.weight_decay),
            ([parameter for parameter in part if parameter.ndim <= 1], 0.0),
        )
    ]
    return AdamW(groups)


def set_learning_rates(optimiser: AdamW, steps: int, progress: float) -> None:
    """Linear warm-up, then a cosine over the run."""
    falling = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    for group in optimiser.param_groups:
        group["lr"] = group["peak"] * falling * min(1.0, (steps + 1) / WARMUP_STEPS)


def take_step(
    model: SiameseNetwork, batch: PairBatch, optimiser: AdamW, plan: Plan, generator: torch.Generator
) -> Tensor:
    """One update; the loss stays on the device."""
    points1 = jitter_points(batch.points1, plan.jitter, generator)
    loss = compute_loss(compare(model, batch, points1), batch, plan.radius)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimiser.step()
    return loss.detach()


def jitter_points(points: Tensor, pixels: float, generator: torch.Generator) -> Tensor:
    """Points moved by up to `pixels` along each axis."""
    moves = torch.rand(points.shape, generator=generator, device=points.device)
    return points + (2 * moves - 1) * pixels


def compare(model: SiameseNetwork, batch: PairBatch, points1: Tensor) -> Tensor:
    """Similarities (B, N, N) of the patches around points of view 0 and view 1."""
    B, N = points1.shape[:2]
    side = model.config.patch
    # An invalid point may be NaN, which would reach the gradient through any mask.
    patches = torch.cat(
        [
            cut_patches(batch.image0, batch.points0.nan_to_num(0.0), side),
            cut_patches(batch.image1, points1.nan_to_num(0.0), side),
        ]
    ).flatten(0, 1)
    patches = patches.to(memory_format=torch.channels_last)
    device = patches.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        descriptors = model.branch(patches).view(2, B, N, -1)
        similarities: Tensor = model.decision(descriptors[0, :, :, None], descriptors[1, :, None])
    return similarities.float()


def compute_loss(similarities: Tensor, batch: PairBatch, radius: float) -> Tensor:
    """Cross-entropy of the true match among all patches of the other view, in both directions.

    It is the mean over valid points. Invalid patches, and others within `radius` of the true one, are
    excluded.
    """
    is_valid, N = batch.is_valid, similarities.shape[1]
    is_own = torch.eye(N, dtype=torch.bool, device=similarities.device)
    total = similarities.new_zeros(())
    for points, values in ((batch.points1, similarities), (batch.points0, similarities.mT)):
        is_far = torch.cdist(points.nan_to_num(0.0), points.nan_to_num(0.0)) > radius
        is_counted = (is_far & is_valid[:, None]) | is_own
        masked = values.masked_fill(~is_counted, -torch.inf)
        own = masked.diagonal(dim1=1, dim2=2) - masked.logsumexp(dim=2)
        total = total - torch.where(is_valid, own, 0.0).sum() / is_valid.sum().clamp_min(1)
    return total / 2


@torch.no_grad()
def update_average(average: SiameseNetwork, model: SiameseNetwork, steps: int) -> None:
    """Updates the exponential moving average, with a shorter memory at the start."""
    kept: list[Tensor] = list(average.parameters())
    current: list[Tensor] = list(model.parameters())
    torch._foreach_lerp_(kept, current, 1 - min(AVERAGE_DECAY, steps / (steps + 10)))
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(theirs)


@torch.no_grad()
def validate(model: SiameseNetwork, batches: Sequence[PairBatch]) -> dict[str, float]:
    """Share of points whose most similar patch is the true match, and within 10 pixels of it."""
    right, near, count = 0, 0, 0
    for batch in batches:
        is_valid = batch.is_valid
        similarities = compare(model, batch, batch.points1).masked_fill(~is_valid[:, None], -torch.inf)
        best = similarities.argmax(dim=2)
        chosen = batch.points1.gather(1, best[..., None].expand(-1, -1, 2))
        errors = (chosen - batch.points1).norm(dim=-1)[is_valid]
        right += int((best == torch.arange(best.shape[1], device=best.device))[is_valid].sum())
        near += int((errors <= WITHIN).sum())
        count += len(errors)
    return {"accuracy": round(right / max(1, count), 4), "pck@10": round(near / max(1, count), 4)}


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
