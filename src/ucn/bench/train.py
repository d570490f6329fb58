"""One training step as `ucn train` makes it: steps and pairs a second, and memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from ucn.bench.report import Cell, Column, Part, Table, Target
from ucn.bench.settings import Settings
from ucn.bench.timing import measure_memory, time_work
from ucn.config import LossConfig, SourceConfig, SyntheticConfig, TrainConfig
from ucn.data.io import read_image
from ucn.data.synthetic import ImageBank
from ucn.errors import WeightsError
from ucn.evaluate.core.bundled import find_self_images
from ucn.nn import build_model
from ucn.train.cuda_graphs import use_graphs
from ucn.train.optim import build_optimiser, set_learning_rates, update_average
from ucn.train.sources.batches import PHOTOGRAPHS
from ucn.train.sources.photographs import Photographs, PhotoSource
from ucn.train.step import training_step
from ucn.train.teacher import start_teacher
from ucn.types import PairBatch
from ucn.weights import load_weights

_CANVAS_SIDE = 448
_PHOTOGRAPHS = 16
_STEPS_TO_BEAT = 23.0
_COLUMNS = (
    Column("network and loss"),
    Column("way"),
    Column("steps", "rate"),
    Column("pairs", "rate"),
    Column("time of a step", "ms"),
    Column("of it making pairs", "ms"),
    Column("memory", "MB"),
)


@dataclass(frozen=True)
class _Stepper:
    """Makes steps of a run.

    Attributes:
        draw: makes the pairs of some steps.
        advance: makes these pairs and steps.
        steps: how many; more than one where `ucn train` makes the pairs of several at once.
    """

    draw: Callable[[], object]
    advance: Callable[[], None]
    steps: int


def make_bank(device: torch.device, seed: int, count: int = _PHOTOGRAPHS) -> ImageBank:
    """Photographs that need no folder: the bundled one, scikit-image's where installed, and made-up ones."""
    images = [read_image(path) for path in find_self_images()][:count]
    generator = torch.Generator().manual_seed(seed)
    images += [_make_picture(generator) for _ in range(count - len(images))]
    bank = ImageBank([Path(f"{number}.png") for number in range(count)], _CANVAS_SIDE, "cpu", images)
    return ImageBank.join([bank], [1.0], device)


def _make_picture(generator: torch.Generator) -> Tensor:
    """Blocks of several sizes, 3 × 448 × 448."""
    total = torch.zeros(3, _CANVAS_SIDE, _CANVAS_SIDE)
    for block in (7, 28, 64):
        small = torch.rand((3, _CANVAS_SIDE // block, _CANVAS_SIDE // block), generator=generator)
        total += small.repeat_interleave(block, dim=1).repeat_interleave(block, dim=2) / 3
    return total


def list_runs(settings: Settings) -> dict[str, TrainConfig]:
    """The paper's network with its loss, and what the shipped weights were trained with, at one size."""
    batch, side, points = (16, 320, 1000) if settings.is_cuda and not settings.is_quick else (2, 96, 100)
    paper = TrainConfig(
        name="paper",
        steps=1000,
        batch=batch,
        loss=LossConfig(kind="contrastive", mining="hardest", radius=16.0),
        synthetic=SyntheticConfig(side=side, points=points),
    )
    record = {k: v for k, v in load_weights(settings.weights).training.items() if k != "best_step"}
    shipped = TrainConfig.from_dict(record)
    shipped = replace(
        shipped, batch=batch, synthetic=replace(shipped.synthetic, side=side, points=points), steps=1000
    )
    return {"the paper's, hardest negatives": paper, f"{settings.weights}'s recipe": shipped}


def settle_teacher(config: TrainConfig) -> tuple[TrainConfig, str]:
    """A run whose teacher is there, whichever file it is; else without one, and a sentence that says so.

    Speed does not hang on the numbers in a file, so another training of the same network will do.
    """
    if config.teacher is None:
        return config, ""
    named = config.teacher.weights
    try:
        load_weights(named)
    except WeightsError as error:
        return replace(config, teacher=None), f"Without the teacher '{named}', which is not there: {error}."
    found = replace(config.teacher, sha256="")
    return replace(config, teacher=found), f"The steps of {config.name} include its teacher, {named}."


def measure(settings: Settings) -> Part:
    """Steps of both runs; compiled as well where asked for on a CUDA device."""
    bank = make_bank(settings.device, settings.seed)
    rows: list[tuple[Cell, ...]] = []
    notes = ["Pairs are made on the device, of photographs that come with the package or are made up."]
    best = 0.0
    for name, recorded in list_runs(settings).items():
        config, about_teacher = settle_teacher(recorded)
        notes += [about_teacher] if about_teacher else []
        for is_compiled in (False, True) if settings.is_cuda and settings.is_thorough else (False,):
            way = "compiled" if is_compiled else "eager"
            settings.report(f"training: {name}, {way}")
            stepper = make_stepper(config, bank, settings, is_compiled)
            ms = time_work(stepper.advance, settings.device, settings.effort) / stepper.steps
            drawing = time_work(stepper.draw, settings.device, settings.effort) / stepper.steps
            memory = measure_memory(stepper.advance, settings.device)
            rate = 1000 / ms
            rows.append((name, way, rate, config.batch * rate, ms, drawing, memory))
            best = max(best, rate)
            del stepper
    some = next(iter(list_runs(settings).values()))
    title = (
        f"Training step: {some.batch} pairs of {some.synthetic.side} × {some.synthetic.side}, "
        f"{some.synthetic.points:,} points each"
    )
    if settings.is_cuda and not settings.is_thorough:
        notes.append("The network's passes are captured; compiled ones are measured with --thorough.")
    asked = [Target("steps a second", "an H200", best, _STEPS_TO_BEAT, "rate")] if settings.is_cuda else []
    return Part((Table(title, _COLUMNS, tuple(rows), tuple(notes)),), tuple(asked))


def make_stepper(config: TrainConfig, bank: ImageBank, settings: Settings, is_compiled: bool) -> _Stepper:
    """A run that is ready for its next step."""
    device = settings.device
    model = build_model(config.model).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimiser = build_optimiser(model, config)
    teacher = start_teacher(replace(config, use_compile=is_compiled), model, device)
    if is_compiled:
        model.compile(dynamic=False)
    else:
        use_graphs(model)
    photographs = Photographs("photographs", SourceConfig(name=PHOTOGRAPHS), bank, bank, ())
    source = PhotoSource([photographs], config, device, validation_pairs=1)
    generator = torch.Generator(device).manual_seed(settings.seed)
    numbers = count()

    def draw() -> PairBatch:
        return source.draw(next(numbers), generator)

    def advance() -> None:
        batch = draw()
        set_learning_rates(optimiser, config, 1)
        with _fast_products(device):
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
    return _Stepper(_repeat(draw, steps), _repeat(advance, steps), steps)


def _repeat(work: Callable[[], object], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            work()

    return run


@contextmanager
def _fast_products(device: torch.device) -> Iterator[None]:
    """TF32 for the float32 products of the loss, as `ucn train` allows itself on a GPU."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
