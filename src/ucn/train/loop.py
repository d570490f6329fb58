"""The loop round the step: data, schedule, moving average, validation, and the weights at the end."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from ucn.config import Calibration, TrainConfig
from ucn.data.loading import mix_seed
from ucn.matching import match_cells
from ucn.nn import CorrespondenceNetwork, build_model, load_imagenet_trunk
from ucn.train.calibration import fit_calibration, fit_match_curve
from ucn.train.sources import Mixture, PhotoSource, Source
from ucn.train.step import check_finite, encode_pair, training_step
from ucn.types import PairBatch

_CHECK_EVERY = 50
_CALIBRATION_PAIRS = 64
_PIXELS = (1, 3, 5, 10)
_SHARES = (0.1, 0.05)  # of a pair's length, for semantic sets
_HEADLINES = ("pck@5", "pck@0.1")  # by which networks are compared: of pixels, and of lengths


@dataclass(frozen=True)
class Progress:
    """What the loop reports.

    Attributes:
        step: steps done.
        loss: mean over the steps since the last report.
        pairs_per_second: over the same steps.
        pck: after a validation its figures, as in `Validation`; else None.
    """

    step: int
    loss: float
    pairs_per_second: float
    pck: dict[str, float] | None = None


@dataclass(frozen=True)
class Validation:
    """How well held-out pairs are matched.

    Attributes:
        pck: share of the points matched within some pixels (``pck@5``) or, where pairs have a length, within
            some share of it (``pck@0.1``); with several sources each name begins with its source's.
        score: mean over the sources of their PCK within 5 pixels or a tenth of the length.
    """

    pck: dict[str, float]
    score: float


@dataclass(frozen=True)
class Trained:
    """The best network of a run so far, by its score on held-out pairs.

    Attributes:
        model: the moving average of the weights, in evaluation mode.
        pck: its validation figures, as in `Validation`.
        score: their mean, by which it is the best.
        step: after how many steps.
        calibration: how its similarities become probabilities; the default one before the end of the run.
    """

    model: CorrespondenceNetwork
    pck: dict[str, float]
    score: float
    step: int
    calibration: Calibration = field(default_factory=Calibration)


def train(
    config: TrainConfig,
    mixture: Mixture,
    device: torch.device,
    report: Callable[[Progress], None],
    keep: Callable[[Trained], None],
) -> Trained:
    """Trains a network.

    Args:
        config: the run.
        mixture: where its pairs come from, as `open_sources` opens it.
        device: where to train.
        report: called after every 50 steps and after every validation; the last step is always validated.
        keep: called whenever a validation was the best so far, so that a run that is killed leaves something,
            and once at the end, when that network has been calibrated.

    Returns:
        The best network, calibrated.

    Raises:
        UcnError: a pair could not be read.
        NonFiniteLossError: the loss became infinite or NaN.
    """
    # torch's annotations do not know memory_format.
    model = _start_model(config).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    if config.use_compile and device.type == "cuda":  # elsewhere it costs minutes and a C++ compiler
        model.compile()
    optimiser = AdamW(_parameter_groups(model, config), weight_decay=config.weight_decay)
    schedule = LambdaLR(optimiser, lambda step: _rate_factor(step, config))
    generator = torch.Generator(device)

    best: Trained | None = None
    losses: list[Tensor] = []
    names: list[tuple[str, ...]] = []
    started = time.monotonic()
    for step in range(1, config.steps + 1):
        generator.manual_seed(mix_seed(config.seed, "step", step))
        batch = mixture.draw(step, generator)
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
            speed = sum(map(len, names)) / (time.monotonic() - started)
            found = validate(average, mixture.sources) if is_validation else None
            report(Progress(step, stacked.mean().item(), speed, found.pck if found else None))
            if found and (best is None or found.score > best.score):
                best = Trained(copy.deepcopy(average), found.pck, found.score, step)
                keep(best)
            losses, names, started = [], [], time.monotonic()
    if best is None:
        raise ValueError(f"steps must be at least 1, got {config.steps}")
    best = replace(best, calibration=_calibrate(best.model, mixture.sources, config))
    keep(best)
    return best


def validate(model: CorrespondenceNetwork, sources: Sequence[Source]) -> Validation:
    """PCK of refined dense nearest neighbours on the held-out pairs of each source, the same each time."""
    pck: dict[str, float] = {}
    scores: list[float] = []
    for source in sources:
        figures = _measure(model, source)
        prefix = f"{source.label} " if len(sources) > 1 else ""
        pck |= {prefix + name: value for name, value in figures.items()}
        scores += [figures[name] for name in _HEADLINES if not math.isnan(figures.get(name, math.nan))]
    return Validation(pck, sum(scores) / max(1, len(scores)))


@torch.no_grad()
def _measure(model: CorrespondenceNetwork, source: Source) -> dict[str, float]:
    """The figures of one source; NaN where its held-out pairs have no points."""
    errors: list[Tensor] = []
    has_lengths = False
    for batch in source.validation():
        has_lengths = batch.pck_length is not None
        errors += [_match_errors(model, pair) for pair in batch]
    merged = torch.cat(errors)
    thresholds: tuple[float, ...] = _SHARES if has_lengths else _PIXELS
    return {f"pck@{t:g}": (merged <= t).float().mean().item() for t in thresholds}


def _match_errors(model: CorrespondenceNetwork, pair: PairBatch) -> Tensor:
    """How far matches are from the truth: in pixels, or as a share of the pair's length where it has one."""
    map0, map1 = encode_pair(model, pair)
    points0, points1 = pair.points0[0][pair.is_valid[0]], pair.points1[0][pair.is_valid[0]]
    found = match_cells(map0, map1, points0)
    errors: Tensor = (found.points1 - points1).norm(dim=-1)
    return errors if pair.pck_length is None else errors / pair.pck_length


def _calibrate(model: CorrespondenceNetwork, sources: Sequence[Source], config: TrainConfig) -> Calibration:
    """Curves fitted on held-out photographs or, where there are none, on held-out pairs of the data sets.

    What two unrelated images look like can be learnt of photographs only: two pairs of a data set may well
    show the same thing.
    """
    for source in sources:
        if isinstance(source, PhotoSource):
            # Calibration takes the truth of a pair for a homography.
            synthetic = replace(config.synthetic, spline_share=0.0, parallax_share=0.0)
            return fit_calibration(model, source.held_out, synthetic, _CALIBRATION_PAIRS, config.seed + 2)
    return fit_match_curve(model, (batch for source in sources for batch in source.validation()))


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
