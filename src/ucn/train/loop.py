"""The loop round the step: data, schedule, moving average, validation, and the weights at the end."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from ucn.config import SyntheticConfig, TrainConfig
from ucn.data.synthetic import ImageBank, list_images, make_pairs
from ucn.matching import match_cells
from ucn.nn import CorrespondenceNetwork, build_model, load_imagenet_trunk
from ucn.train.step import check_finite, encode_pair, training_step
from ucn.types import PairBatch

_CANVAS_SIDE = 448
_CHECK_EVERY = 50
_VALIDATION_PAIRS = 64


@dataclass(frozen=True)
class Progress:
    """What the loop reports: after every `_CHECK_EVERY` steps, with `pck` at validations."""

    step: int
    loss: float
    pairs_per_second: float
    pck: dict[str, float] | None = None


def train(
    config: TrainConfig, images: Path, device: torch.device, report: Callable[[Progress], None]
) -> tuple[CorrespondenceNetwork, dict[str, float]]:
    """Trains on synthetic pairs of the photographs in a folder.

    Returns:
        The moving average of the weights, on the CPU, and its validation figures.
    """
    training, validation = _split(images, config, device)
    model = _start_model(config).to(device, memory_format=torch.channels_last).train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    if config.use_compile:
        model.compile()
    optimiser = AdamW(_parameter_groups(model, config), weight_decay=config.weight_decay)
    schedule = LambdaLR(optimiser, lambda step: _rate_factor(step, config))
    generator = torch.Generator(device).manual_seed(config.seed)

    losses: list[Tensor] = []
    names: list[tuple[str, ...]] = []
    started = time.monotonic()
    for step in range(1, config.steps + 1):
        batch = make_pairs(training, config.batch, config.synthetic, generator)
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
            losses, names, started = [], [], time.monotonic()
    assert pck is not None  # the last step validates
    return average.cpu(), pck


def validate(model: CorrespondenceNetwork, bank: ImageBank, config: TrainConfig) -> dict[str, float]:
    """PCK at several pixel thresholds of refined dense nearest neighbours, on the same held-out pairs each time."""
    device = bank.canvases.device
    generator = torch.Generator(device).manual_seed(config.seed + 1)
    settings: SyntheticConfig = config.synthetic
    errors: list[Tensor] = []
    with torch.no_grad():
        for _ in range(max(1, _VALIDATION_PAIRS // config.batch)):
            batch = make_pairs(bank, config.batch, settings, generator)
            errors += [_match_errors(model, pair) for pair in batch]
    merged = torch.cat(errors)
    return {f"pck@{t}": (merged <= t).float().mean().item() for t in (1, 3, 5, 10)}


def _match_errors(model: CorrespondenceNetwork, pair: PairBatch) -> Tensor:
    map0, map1 = encode_pair(model, pair)
    points0, points1 = pair.points0[0][pair.is_valid[0]], pair.points1[0][pair.is_valid[0]]
    found = match_cells(map0, map1, points0)
    return (found.points1 - points1).norm(dim=-1)


def _split(images: Path, config: TrainConfig, device: torch.device) -> tuple[ImageBank, ImageBank]:
    """Every n-th photograph, in sorted order, is held out."""
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
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@torch.no_grad()
def _update_average(average: CorrespondenceNetwork, model: CorrespondenceNetwork, decay: float) -> None:
    kept, current = list(average.parameters()), list(model.parameters())
    torch._foreach_lerp_(kept, current, 1 - decay)
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(theirs)
