"""One training step as in `ucn train`: throughput and memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from ucn.bench.report import Cell, Column, Part, Table
from ucn.bench.settings import Settings
from ucn.bench.timing import measure_memory, time_work
from ucn.config import LossConfig, SourceConfig, SyntheticConfig, TrainConfig
from ucn.data.bundled import find_self_images
from ucn.data.io import read_image
from ucn.data.synthetic import ImageBank
from ucn.errors import WeightsError
from ucn.nn import build_model
from ucn.runtime.kernels import allow_tf32
from ucn.train.cuda_graphs import use_graphs
from ucn.train.optim import build_optimiser, set_learning_rates, update_average
from ucn.train.sources.batches import PHOTOGRAPHS
from ucn.train.sources.photographs import Photographs, PhotoSource
from ucn.train.step import training_step
from ucn.train.teacher import load_teacher
from ucn.types import PairBatch
from ucn.weights import load_weights

_CANVAS_SIDE = 448
_PHOTOGRAPHS = 16
_COLUMNS = (
    Column("network and loss"),
    Column("mode"),
    Column("steps", "rate"),
    Column("pairs", "rate"),
    Column("time per step", "ms"),
    Column("of which sampling pairs", "ms"),
    Column("memory", "MB"),
)


@dataclass(frozen=True)
class _Stepper:
    """A training run.

    Attributes:
        sample: samples the pairs of `steps` steps.
        advance: samples pairs and makes `steps` steps.
        steps: more than one where `ucn train` samples the pairs of several steps at once.
    """

    sample: Callable[[], object]
    advance: Callable[[], None]
    steps: int


def make_bank(device: torch.device, seed: int, count: int = _PHOTOGRAPHS) -> ImageBank:
    """Photographs without a data folder: the bundled one, scikit-image's if installed, and synthetic ones."""
    images = [read_image(path) for path in find_self_images()][:count]
    generator = torch.Generator().manual_seed(seed)
    images += [_sample_image(generator) for _ in range(count - len(images))]
    bank = ImageBank([Path(f"{number}.png") for number in range(count)], _CANVAS_SIDE, "cpu", images)
    return ImageBank.join([bank], [1.0], device)


def _sample_image(generator: torch.Generator) -> Tensor:
    """A synthetic image (3, 448, 448) of random blocks of several sizes."""
    total = torch.zeros(3, _CANVAS_SIDE, _CANVAS_SIDE)
    for block in (7, 28, 64):
        small = torch.rand((3, _CANVAS_SIDE // block, _CANVAS_SIDE // block), generator=generator)
        total += small.repeat_interleave(block, dim=1).repeat_interleave(block, dim=2) / 3
    return total


def list_runs(settings: Settings) -> dict[str, TrainConfig]:
    """The paper's network and loss, and the recipe of the shipped weights, at one batch size."""
    batch, side, points = (16, 320, 1000) if settings.is_cuda and not settings.is_quick else (2, 96, 100)
    paper = TrainConfig(
        name="paper",
        steps=1000,
        batch=batch,
        loss=LossConfig(kind="contrastive", mining="hardest", radius=16.0),
        synthetic=SyntheticConfig(side=side, points=points),
    )
    shipped = TrainConfig.from_record(load_weights(settings.weights).training)
    synthetic = replace(shipped.synthetic, side=side, points=points)
    shipped = replace(shipped, batch=batch, synthetic=synthetic, steps=1000)
    return {"the paper's, hardest negatives": paper, f"{settings.weights}'s recipe": shipped}


def resolve_teacher(config: TrainConfig) -> tuple[TrainConfig, str]:
    """A configuration whose teacher can be loaded, and a note about it.

    The hash is not checked, since speed depends on the network only. A missing teacher is left out.
    """
    if config.teacher is None:
        return config, ""
    named = config.teacher.weights
    try:
        load_weights(named)
    except WeightsError as error:
        return replace(config, teacher=None), f"Without the teacher '{named}', which is missing: {error}."
    found = replace(config.teacher, sha256="")
    return replace(config, teacher=found), f"The steps of {config.name} include its teacher, {named}."


def measure(settings: Settings) -> Part:
    """Measures both runs; with --thorough on a CUDA device also compiled."""
    bank = make_bank(settings.device, settings.seed)
    rows: list[tuple[Cell, ...]] = []
    notes = ["Pairs are made on the device from bundled and synthetic photographs."]
    runs = list_runs(settings)
    for name, recorded in runs.items():
        config, note = resolve_teacher(recorded)
        notes += [note] if note else []
        for is_compiled in (False, True) if settings.is_cuda and settings.is_thorough else (False,):
            mode = "compiled" if is_compiled else "eager"
            settings.report(f"training: {name}, {mode}")
            stepper = make_stepper(config, bank, settings, is_compiled)
            ms = time_work(stepper.advance, settings.device, settings.effort) / stepper.steps
            sampling = time_work(stepper.sample, settings.device, settings.effort) / stepper.steps
            memory = measure_memory(stepper.advance, settings.device)
            rows.append((name, mode, 1000 / ms, config.batch * 1000 / ms, ms, sampling, memory))
            del stepper
    some = next(iter(runs.values()))
    side, points = some.synthetic.side, some.synthetic.points
    title = f"Training step: {some.batch} pairs of {side} × {side}, {points:,} points each"
    if settings.is_cuda and not settings.is_thorough:
        notes.append("The network runs in CUDA graphs; compiled steps are measured with --thorough.")
    return Part((Table(title, _COLUMNS, tuple(rows), tuple(notes)),))


def make_stepper(config: TrainConfig, bank: ImageBank, settings: Settings, is_compiled: bool) -> _Stepper:
    """A run that is ready for its next step."""
    device = settings.device
    model = build_model(config.model).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimiser = build_optimiser(model, config)
    teacher = load_teacher(replace(config, use_compile=is_compiled), model, device)
    if is_compiled:
        model.compile(dynamic=False)
    else:
        use_graphs(model)
    photographs = Photographs("photographs", SourceConfig(name=PHOTOGRAPHS), bank, bank, ())
    source = PhotoSource([photographs], config, device, validation_pairs=1)
    generator = torch.Generator(device).manual_seed(settings.seed)
    numbers = count()

    def sample() -> PairBatch:
        return source.sample_batch(next(numbers), generator)

    def advance() -> None:
        batch = sample()
        set_learning_rates(optimiser, config, 1)
        with allow_tf32(device):
            training_step(
                model,
                batch,
                config.loss,
                optimiser,
                config.clip_norm,
                generator,
                config.precision,
                teacher=teacher,
            )
        update_average(average, model, config.average_decay, 1)

    steps = source.ahead
    return _Stepper(_repeat(sample, steps), _repeat(advance, steps), steps)


def _repeat(work: Callable[[], object], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            work()

    return run
