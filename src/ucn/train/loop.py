"""The loop round the step: data, schedule, moving average, validation, and the weights at the end."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from ucn.config import Calibration, TrainConfig
from ucn.data.synthetic import ImageBank, list_images, make_pairs
from ucn.matching import match_cells
from ucn.nn import CorrespondenceNetwork, build_model, load_imagenet_trunk
from ucn.train.calibration import fit_calibration
from ucn.train.step import check_finite, encode_pair, training_step
from ucn.types import PairBatch

_CANVAS_SIDE = 448
_CHECK_EVERY = 50
_VALIDATION_PAIRS = 64
_CALIBRATION_PAIRS = 64


@dataclass(frozen=True)
class Progress:
    """What the loop reports.

    Attributes:
        step: steps done.
        loss: mean over the steps since the last report.
        pairs_per_second: over the same steps.
        pck: share of points matched within some pixels, after a validation; else None.
    """

    step: int
    loss: float
    pairs_per_second: float
    pck: dict[str, float] | None = None


@dataclass(frozen=True)
class Trained:
    """The best network of a run so far, by its PCK@5 on held-out photographs.

    Attributes:
        model: the moving average of the weights, in evaluation mode.
        pck: its validation figures.
        step: after how many steps.
        calibration: how its similarities become probabilities; the default one before the end of the run.
    """

    model: CorrespondenceNetwork
    pck: dict[str, float]
    step: int
    calibration: Calibration = field(default_factory=Calibration)


def train(
    config: TrainConfig,
    images: Path,
    device: torch.device,
    report: Callable[[Progress], None],
    keep: Callable[[Trained], None],
) -> Trained:
    """Trains on synthetic pairs of the photographs in a folder.

    Args:
        config: the run.
        images: folder of the photographs.
        device: where to train.
        report: called after every 50 steps and after every validation; the last step is always validated.
        keep: called whenever a validation was the best so far, so that a run that is killed leaves something,
            and once at the end, when that network has been calibrated.

    Returns:
        The best network, calibrated.

    Raises:
        DataError: the folder is missing or holds no images.
        NonFiniteLossError: the loss became infinite or NaN.
    """
    training, validation = _split(images, config, device)
    # torch's annotations do not know memory_format.
    model = _start_model(config).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    if config.use_compile and device.type == "cuda":  # elsewhere it costs minutes and a C++ compiler
        model.compile()
    optimiser = AdamW(_parameter_groups(model, config), weight_decay=config.weight_decay)
    schedule = LambdaLR(optimiser, lambda step: _rate_factor(step, config))
    generator = torch.Generator(device).manual_seed(config.seed)

    best: Trained | None = None
    losses: list[Tensor] = []
    names: list[tuple[str, ...]] = []
    started = time.monotonic()
    for step in range(1, config.steps + 1):
        batch = make_pairs(training, config.batch, config.synthetic, generator)
        with _fast_products(device):
            result = training_step(model, batch, config.loss, optimiser, config.clip_norm, generator)
        schedule.step()
        _update_average(average, model, min(config.average_decay, step / (step + 10)))
        losses.append(result.loss)
        names.append(batch.names)
        is_validation = step % config.validate_every == 0 or step == config.steps
        if step % _CHECK_EVERY == 0 or is_validation:
            stacked = torch.stack(losses)
            check_finite(stacked, names)
            speed = len(losses) * config.batch / (time.monotonic() - started)
            pck = validate(average, validation, config) if is_validation else None
            report(Progress(step, stacked.mean().item(), speed, pck))
            if pck is not None and (best is None or pck["pck@5"] > best.pck["pck@5"]):
                best = Trained(copy.deepcopy(average), pck, step)
                keep(best)
            losses, names, started = [], [], time.monotonic()
    if best is None:
        raise ValueError(f"steps must be at least 1, got {config.steps}")
    calibration = fit_calibration(
        best.model, validation, config.synthetic, _CALIBRATION_PAIRS, config.seed + 2
    )
    best = replace(best, calibration=calibration)
    keep(best)
    return best


def validate(model: CorrespondenceNetwork, bank: ImageBank, config: TrainConfig) -> dict[str, float]:
    """PCK at several pixel thresholds of refined dense nearest neighbours, on the same pairs each time."""
    device = bank.canvases.device
    generator = torch.Generator(device).manual_seed(config.seed + 1)
    errors: list[Tensor] = []
    with torch.no_grad():
        for _ in range(max(1, _VALIDATION_PAIRS // config.batch)):
            batch = make_pairs(bank, config.batch, config.synthetic, generator)
            errors += [_match_errors(model, pair) for pair in batch]
    merged = torch.cat(errors)
    return {f"pck@{t}": (merged <= t).float().mean().item() for t in (1, 3, 5, 10)}


def _match_errors(model: CorrespondenceNetwork, pair: PairBatch) -> Tensor:
    map0, map1 = encode_pair(model, pair)
    points0, points1 = pair.points0[0][pair.is_valid[0]], pair.points1[0][pair.is_valid[0]]
    found = match_cells(map0, map1, points0)
    errors: Tensor = (found.points1 - points1).norm(dim=-1)
    return errors


def _split(images: Path, config: TrainConfig, device: torch.device) -> tuple[ImageBank, ImageBank]:
    """Banks for training and validation: every n-th photograph, in sorted order, is held out.

    A lone photograph serves both.
    """
    paths = list_images(images)
    every = max(2, round(1 / config.validation_share))
    held_out = paths[::every]
    rest = [path for index, path in enumerate(paths) if index % every] or held_out
    return ImageBank(rest, _CANVAS_SIDE, device), ImageBank(held_out, _CANVAS_SIDE, device)


def _start_model(config: TrainConfig) -> CorrespondenceNetwork:
    model = build_model(config.model, torch.Generator().manual_seed(config.seed))
    if config.init != "random":
        load_imagenet_trunk(model.trunk, config.init)
    return model


def _parameter_groups(model: CorrespondenceNetwork, config: TrainConfig) -> list[dict[str, object]]:
    trunk = list(model.trunk.parameters())
    in_trunk = {id(parameter) for parameter in trunk}
    head = [parameter for parameter in model.parameters() if id(parameter) not in in_trunk]
    return [{"params": trunk, "lr": config.trunk_rate}, {"params": head, "lr": config.head_rate}]


def _rate_factor(step: int, config: TrainConfig) -> float:
    """Share of the peak rates at a step, counted from 0: a linear rise, then a cosine to 0 after the last."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@contextmanager
def _fast_products(device: torch.device) -> Iterator[None]:
    """Lets a GPU take TF32 for the float32 products of the loss; the forward pass is in bf16 anyway."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def _update_average(average: CorrespondenceNetwork, model: CorrespondenceNetwork, decay: float) -> None:
    kept: list[Tensor] = list(average.parameters())
    current: list[Tensor] = list(model.parameters())
    torch._foreach_lerp_(kept, current, 1 - decay)
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(theirs)
