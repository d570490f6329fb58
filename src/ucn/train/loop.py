"""The training loop around the step: data, learning rates, EMA, validation, checkpoints, calibration."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ucn.config import Calibration, TrainConfig
from ucn.data.loading import WorkerExitedError, derive_seed
from ucn.errors import UcnError
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.runtime.kernels import allow_tf32
from ucn.train.calibration import fit_calibration, fit_match_curve
from ucn.train.checkpoint import (
    Checkpoint,
    StepValidation,
    TrainingState,
    find_best,
    load_average,
    restore,
    save_run,
)
from ucn.train.cuda_graphs import use_graphs
from ucn.train.distributed import SINGLE_PROCESS, ProcessGroup
from ucn.train.log import Progress
from ucn.train.optim import build_optimiser, read_learning_rates, set_learning_rates, update_average
from ucn.train.signals import StoppedError
from ucn.train.sources.batches import Mixture, PhotoSource, Source
from ucn.train.start import start_calibration, start_model
from ucn.train.step import StepResult, check_finite, training_step
from ucn.train.teacher import load_teacher
from ucn.train.validation import Validation, validate
from ucn.types import PairBatch

_CHECK_EVERY = 50
_REPORT_SECONDS = 60.0
_CALIBRATION_PAIRS = 64
_SIGNAL_DELAY_S = 1.0  # at most this long after a worker, this process gets the same signal

OnValidation = Callable[[int, CorrespondenceNetwork, Sequence[Source]], None]


@dataclass(frozen=True)
class Trained:
    """The best network of a run so far, by its validation score.

    Attributes:
        model: the EMA of the weights, in evaluation mode.
        pck: its metrics, as in `Validation`.
        score: as in `Validation`.
        step: number of steps it was trained for.
        calibration: of its similarities; before the end of the run, that of the start.
    """

    model: CorrespondenceNetwork
    pck: dict[str, float]
    score: float
    step: int
    calibration: Calibration


def train(
    config: TrainConfig,
    mixture: Mixture,
    device: torch.device,
    on_progress: Callable[[Progress], None],
    on_best: Callable[[Trained], None],
    *,
    folder: Path | None = None,
    resume: Checkpoint | None = None,
    on_validation: OnValidation | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Trained:
    """Trains a network.

    Of several processes only the first validates, writes and calls the callbacks.

    Args:
        config: the run.
        mixture: the training data, from `open_sources`.
        device: where to train.
        on_progress: called every 50 steps and after every validation; the last step is always validated.
        on_best: called with each network that is the best so far, and at the end with the calibrated one.
        folder: of checkpoints; None writes none.
        resume: a checkpoint of this run to resume from, from `load_run`.
        on_validation: called after each validation with the step, the EMA network and the sources.
        should_stop: called after each step, and when pairs cannot be read; where it returns True, a
            checkpoint is written and the run ends.
        group: the processes that train together.

    Returns:
        The best network, calibrated.

    Raises:
        UcnError: a pair could not be read.
        NonFiniteLossError: the loss or its gradient became infinite or NaN; no checkpoint contains it.
        StoppedError: `should_stop` returned True.
    """
    run = _Run(config, mixture, device, group, folder)
    run.begin(resume)
    try:
        while run.state.step < config.steps or run.is_validation_due:
            if not run.is_validation_due:  # it is due at once where a run was stopped just before it
                run.advance()
            step, is_stopped = run.state.step, group.any(should_stop())
            is_validation = run.is_validation_due and not is_stopped
            if is_validation:
                run.validate(on_progress, on_best, on_validation)
            elif run.is_report_due and not run.is_validation_due:
                run.report(on_progress)
            if is_stopped or step % config.checkpoint_every == 0:
                run.save()
            if is_stopped:
                raise StoppedError(run.saved_step)
        return run.finish(on_best)
    except _ReadError as error:
        if not _should_stop_soon(should_stop, error.cause):
            raise error.cause from None
        run.save()  # the same signal ended the workers; the steps before it are complete
        raise StoppedError(run.saved_step) from error.cause


def _should_stop_soon(should_stop: Callable[[], bool], error: UcnError) -> bool:
    """Whether the run should stop; a signal may end a worker process before this process gets it."""
    until = time.monotonic() + (_SIGNAL_DELAY_S if isinstance(error, WorkerExitedError) else 0)
    while not (is_stopped := should_stop()) and time.monotonic() < until:
        time.sleep(0.01)
    return is_stopped


class _ReadError(Exception):
    """Pairs could not be read; the state is unchanged, so a checkpoint can be written."""

    def __init__(self, cause: UcnError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _reading() -> Iterator[None]:
    """Turns errors of reading pairs into a `_ReadError`."""
    try:
        yield
    except UcnError as error:
        raise _ReadError(error) from error


class _Run:
    """The state of a run, and the metrics since the last report."""

    def __init__(
        self,
        config: TrainConfig,
        mixture: Mixture,
        device: torch.device,
        group: ProcessGroup,
        folder: Path | None,
    ) -> None:
        self._config, self._mixture, self._device = config, mixture, device
        self._group, self._folder = group, folder
        self._seed = group.localise(config).seed
        self._generator = torch.Generator(device)
        self._window = _Window()
        self._best: Trained | None = None
        self._saved = (0, 0)  # steps and validations in the last checkpoint

    def begin(self, resume: Checkpoint | None) -> None:
        """Builds the network, or restores it from a checkpoint."""
        config = self._config
        # A checkpoint replaces all weights, so resuming does not need the file of `init`.
        model = start_model(config) if resume is None else build_model(config.model)
        # torch's annotations lack memory_format.
        model = model.to(self._device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.train()
        if config.freeze_norms:
            for module in model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.eval()
        self._teacher = load_teacher(config, model, self._device)
        average = copy.deepcopy(model).eval().requires_grad_(False)
        self.state = TrainingState(model, average, build_optimiser(model, config))
        if resume is None:
            self.state.start_calibration = start_calibration(config)
        else:
            restore(self.state, resume)
            set_learning_rates(self.state.optimiser, config, resume.step)
            self._saved = (resume.step, len(resume.validations))
            best = find_best(resume.validations)
            if best is not None:
                self._best = self._record(best)
                load_average(self._best.model, resume)
        if config.use_compile and self._device.type == "cuda":
            # A run has one or two shapes per source, and kernels for dynamic shapes are slower.
            model.compile(dynamic=False)
        else:
            use_graphs(model)

    def _record(self, validation: StepValidation) -> Trained:
        """The present EMA network with a validation."""
        state, found = self.state, validation.found
        model = copy.deepcopy(state.average)
        return Trained(model, found.pck, found.score, validation.step, state.start_calibration)

    @property
    def saved_step(self) -> int:
        """The step of the last checkpoint."""
        return self._saved[0]

    @property
    def is_validation_due(self) -> bool:
        """Whether the present step is to be validated, and was not yet."""
        step, validations = self.state.step, self.state.validations
        if not step or (validations and validations[-1].step == step):
            return False
        return step % self._config.validate_every == 0 or step >= self._config.steps

    @property
    def is_report_due(self) -> bool:
        """Every 50 steps; a single process reports at least once a minute, so that slow steps are seen.

        Several processes must check their losses at the same step.
        """
        if self._group.size == 1 and time.monotonic() - self._window.started > _REPORT_SECONDS:
            return True
        return self.state.step % _CHECK_EVERY == 0

    def advance(self) -> None:
        """Takes one step.

        Raises:
            _ReadError: its batch could not be read.
        """
        config, state = self._config, self.state
        step = state.step + 1
        self._generator.manual_seed(derive_seed(self._seed, "step", step))
        with _reading():
            batch = self._mixture.sample_batch(step, self._generator)
        set_learning_rates(state.optimiser, config, step)
        with allow_tf32(self._device, config.precision == "bf16"):
            result = training_step(
                state.model,
                batch,
                self._mixture.source_of(step).loss or config.loss,
                state.optimiser,
                config.clip_norm,
                self._generator,
                config.precision,
                self._group.average_gradients,
                self._teacher,
            )
        update_average(state.average, state.model, config.average_decay, step)
        state.step = step
        state.losses.append(result.loss)
        state.gradient_norms.append(result.gradient_norm)
        self._window.add(batch, result)

    def validate(
        self,
        on_progress: Callable[[Progress], None],
        on_best: Callable[[Trained], None],
        on_validation: OnValidation | None,
    ) -> None:
        """Validates the EMA network, keeps it if it is the best so far, and writes a checkpoint.

        Raises:
            _ReadError: the pairs could not be read.
        """
        self._check()
        progress = self._measure()
        state, sources = self.state, self._mixture.sources
        is_first = self._group.is_first
        found = Validation({}, 0.0)
        if is_first:
            with _reading():
                found = validate(state.average, sources, self._config.precision, self._config.loss)
        found = self._group.broadcast(found)
        state.validations.append(StepValidation(state.step, found))
        if is_first:
            on_progress(replace(progress, pck=found.pck, score=found.score))
        is_best = self._best is None or found.score > self._best.score
        if is_best:
            self._best = self._record(state.validations[-1])
        self._reset_window()
        self.save()  # first: a run that is killed here is resumed, and may replace the weights written next
        if is_best and is_first and self._best is not None:
            on_best(self._best)
        if on_validation is not None and is_first:
            with _reading():  # last, so that an error here leaves a complete validation
                on_validation(state.step, state.average, sources)

    def report(self, on_progress: Callable[[Progress], None]) -> None:
        """Reports the metrics since the last report."""
        self._check()
        progress = self._measure()
        if self._group.is_first:
            on_progress(progress)
        self._reset_window()

    def save(self) -> None:
        """Writes a checkpoint, after checking that the losses and gradients are finite."""
        self._check()
        present = (self.state.step, len(self.state.validations))
        if self._folder is None or present == self._saved:
            return
        if self._group.is_first:
            labels = [source.label for source in self._mixture.sources]
            save_run(self._folder, self.state, self._config, labels)
        self._saved = present

    def finish(self, on_best: Callable[[Trained], None]) -> Trained:
        """Scales the coarse levels of the best network by `coarse_gain`, and calibrates it.

        Raises:
            _ReadError: the pairs could not be read.
        """
        if self._best is None:
            raise ValueError(f"steps must be at least 1, got {self._config.steps}")
        group = self._group
        best = replace(self._best, model=copy.deepcopy(self._best.model))
        best.model.scale_coarse_levels(self._config.coarse_gain)
        calibration = best.calibration
        if group.is_first:
            with _reading():
                calibration = _calibrate(best.model, self._mixture.sources, self._config, calibration)
        best = replace(best, calibration=group.broadcast(calibration))
        if group.is_first:
            on_best(best)
        return best

    def _check(self) -> None:
        """Raises where a loss or a gradient since the last check is not finite."""
        names = self._window.take_names()
        if not names:
            return
        for what, values in (("loss", self.state.losses), ("gradient", self.state.gradient_norms)):
            found = torch.stack(values[-len(names) :])
            if not found.isfinite().all():  # the same in all processes
                check_finite(found, [self._group.gather(tuple(samples)) for samples in names], what)

    def _measure(self) -> Progress:
        """The metrics since the last report."""
        state, window = self.state, self._window
        seconds = max(time.monotonic() - window.started, 1e-9)
        is_gpu = self._device.type == "cuda"
        return Progress(
            step=state.step,
            loss=_mean(state.losses),
            pairs_per_second=window.pairs * self._group.size / seconds,
            correspondences_per_second=float(window.correspondences) / seconds,
            seconds_per_step=seconds / max(window.steps, 1),
            gradient_norm=_mean(state.gradient_norms),
            learning_rates=read_learning_rates(state.optimiser),
            memory_bytes=torch.cuda.max_memory_allocated(self._device) if is_gpu else None,
        )

    def _reset_window(self) -> None:
        """Resets the metrics, after a report."""
        self.state.losses, self.state.gradient_norms = [], []
        self._window = _Window()


def _mean(values: list[Tensor]) -> float:
    return torch.stack(values).mean().item() if values else math.nan


class _Window:
    """The steps since the last report."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.steps = self.pairs = 0
        self.correspondences: Tensor | int = 0
        self._names: list[Sequence[str]] = []

    def add(self, batch: PairBatch, result: StepResult) -> None:
        """Counts a step, without waiting for the device."""
        self.steps += 1
        self.pairs += len(batch.names)
        self.correspondences = self.correspondences + result.correspondences
        self._names.append(batch.names)

    def take_names(self) -> list[Sequence[str]]:
        """The sample names of the steps that were not checked yet; afterwards they count as checked."""
        names, self._names = self._names, []
        return names


def _calibrate(
    model: CorrespondenceNetwork, sources: Sequence[Source], config: TrainConfig, start: Calibration
) -> Calibration:
    """Fits the calibration on held-out photographs or, where there are none, on held-out pairs.

    The calibration of the start is the prior: the fewer pairs were held out, the less it changes.
    Only photographs provide unrelated image pairs: two pairs of a data set may show the same scene. Pairs
    that were trained on do not count: a network is surer of them than of others.
    """
    for source in sources:
        if isinstance(source, PhotoSource):
            # Calibration needs pairs that are homographies everywhere, and takes two pairs for unrelated
            # where their photographs differ.
            synthetic = replace(config.synthetic, spline_share=0.0, parallax_share=0.0)
            synthetic = replace(synthetic, blend_share=0.0, collage_share=0.0, border="mirror")
            seed = config.seed + 2
            return fit_calibration(model, source.held_out, synthetic, _CALIBRATION_PAIRS, seed, start)
    held_out = [source for source in sources if not source.warning]
    batches = (batch for source in held_out for batch in source.validation_batches())
    return fit_match_curve(model, batches, start)
