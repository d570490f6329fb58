"""The loop round the step: data, rates, moving average, validation, checkpoints, the weights at the end."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ucn.config import Calibration, TrainConfig
from ucn.data.loading import ReaderEndedError, mix_seed
from ucn.errors import UcnError
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.calibration import fit_calibration, fit_match_curve
from ucn.train.checkpoint import (
    Checkpoint,
    TrainingState,
    Validated,
    find_best,
    load_average,
    restore,
    save_run,
)
from ucn.train.cuda_graphs import use_graphs
from ucn.train.distributed import ALONE, Team
from ucn.train.log import Progress
from ucn.train.optim import build_optimiser, read_learning_rates, set_learning_rates, update_average
from ucn.train.signals import StoppedError
from ucn.train.sources.batches import Mixture, PhotoSource, Source
from ucn.train.start import start_model
from ucn.train.step import StepResult, check_finite, training_step
from ucn.train.teacher import start_teacher
from ucn.train.validation import Validation, validate
from ucn.types import PairBatch

_CHECK_EVERY = 50
_CALIBRATION_PAIRS = 64
_SIGNALS_APART_S = 1.0  # between processes to which one signal was sent, at most


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
    *,
    folder: Path | None = None,
    resume: Checkpoint | None = None,
    look: Callable[[int, CorrespondenceNetwork, Sequence[Source]], None] | None = None,
    is_asked_to_stop: Callable[[], bool] = lambda: False,
    team: Team = ALONE,
) -> Trained:
    """Trains a network.

    Of the processes of a team only the first calls `report`, `keep` and `look`, validates and writes.

    Args:
        config: the run.
        mixture: where its pairs come from, as `open_sources` opens it.
        device: where to train.
        report: called after every 50 steps and after every validation; the last step is always validated.
        keep: called whenever a validation was the best so far, so that a run that is killed leaves something,
            and once at the end, when that network has been calibrated.
        folder: where checkpoints are written; None writes none.
        resume: a checkpoint of this run to go on from, as `load_run` gives it.
        look: called after each validation with the step, the network and the sources, to draw pictures.
        is_asked_to_stop: asked after each step, and when pairs could not be read; when it says yes, a
            checkpoint is written and the run ends.
        team: the processes that train together.

    Returns:
        The best network, calibrated.

    Raises:
        UcnError: a pair could not be read.
        NonFiniteLossError: the loss or its gradient became infinite or NaN; no checkpoint holds that.
        StoppedError: the run was asked to stop.
    """
    run = _Run(config, mixture, device, team, folder)
    run.begin(resume)
    try:
        while run.state.step < config.steps or run.is_validation_due:
            if not run.is_validation_due:  # else a run goes on that was stopped before it
                run.advance()
            step, is_stopped = run.state.step, team.agree(is_asked_to_stop())
            is_validation = run.is_validation_due and not is_stopped
            if is_validation:
                run.validate(report, keep, look)
            elif step % _CHECK_EVERY == 0 and not run.is_validation_due:
                run.report(report)
            if is_validation or is_stopped or step % config.checkpoint_every == 0:
                run.save()
            if is_stopped:
                raise StoppedError(run.saved_step)
        return run.finish(keep)
    except _ReadError as error:
        if not _is_asked_soon(is_asked_to_stop, error.cause):
            raise error.cause from None
        run.save()  # the same signal ended the processes that read; the steps before are whole
        raise StoppedError(run.saved_step) from error.cause


def _is_asked_soon(is_asked_to_stop: Callable[[], bool], error: UcnError) -> bool:
    """Whether the run is asked to stop; a signal may end a process that reads before the run gets it."""
    until = time.monotonic() + (_SIGNALS_APART_S if isinstance(error, ReaderEndedError) else 0)
    while not (is_asked := is_asked_to_stop()) and time.monotonic() < until:
        time.sleep(0.01)
    return is_asked


class _ReadError(Exception):
    """Pairs could not be read; the run is as it was before, so that a checkpoint can be written."""

    def __init__(self, cause: UcnError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _reading() -> Iterator[None]:
    """Within it, errors of reading pairs become a `_ReadError`."""
    try:
        yield
    except UcnError as error:
        raise _ReadError(error) from error


class _Run:
    """A run under way: its state, and what was measured since the last report."""

    def __init__(
        self, config: TrainConfig, mixture: Mixture, device: torch.device, team: Team, folder: Path | None
    ) -> None:
        self._config, self._mixture, self._device = config, mixture, device
        self._team, self._folder = team, folder
        self._seed = team.share(config).seed
        self._generator = torch.Generator(device)
        self._window = _Window()
        self._best: Trained | None = None
        self._saved = (0, 0)  # steps and validations that the last checkpoint holds

    def begin(self, resume: Checkpoint | None) -> None:
        """Makes the network or, to go on, takes it from a checkpoint."""
        config = self._config
        # What a checkpoint holds takes the place of all weights, so the file of `init` is not needed again.
        model = start_model(config) if resume is None else build_model(config.model)
        # torch's annotations do not know memory_format.
        model = model.to(self._device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.train()
        if config.freeze_norms:
            for module in model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.eval()
        self._teacher = start_teacher(config, model, self._device)
        average = copy.deepcopy(model).eval().requires_grad_(False)
        self.state = TrainingState(model, average, build_optimiser(model, config))
        if resume is not None:
            restore(self.state, resume)
            set_learning_rates(self.state.optimiser, config, resume.step)  # those that a report would give
            self._saved = (resume.step, len(resume.validations))
            best = find_best(resume.validations)
            if best is not None:
                self._best = Trained(copy.deepcopy(average), best.found.pck, best.found.score, best.step)
                load_average(self._best.model, resume)
        if config.use_compile and self._device.type == "cuda":  # elsewhere it costs minutes and a compiler
            # A run has few shapes, one or two per source; kernels made for any shape are slower.
            model.compile(dynamic=False)
        else:
            use_graphs(model)

    @property
    def saved_step(self) -> int:
        """Steps that the last checkpoint holds."""
        return self._saved[0]

    @property
    def is_validation_due(self) -> bool:
        """Whether the steps done so far are to be validated, and were not yet."""
        step, validations = self.state.step, self.state.validations
        if not step or (validations and validations[-1].step == step):
            return False
        return step % self._config.validate_every == 0 or step >= self._config.steps

    def advance(self) -> None:
        """Makes one step.

        Raises:
            _ReadError: its batch could not be read.
        """
        config, state = self._config, self.state
        step = state.step + 1
        self._generator.manual_seed(mix_seed(self._seed, "step", step))
        with _reading():
            batch = self._mixture.draw(step, self._generator)
        set_learning_rates(state.optimiser, config, step)
        with _fast_products(self._device, config.precision == "bf16"):
            result = training_step(
                state.model,
                batch,
                self._mixture.source_of(step).loss or config.loss,
                state.optimiser,
                config.clip_norm,
                self._generator,
                config.precision,
                self._team,
                self._teacher,
            )
        update_average(state.average, state.model, config.average_decay, step)
        state.step = step
        state.losses.append(result.loss)
        state.gradient_norms.append(result.gradient_norm)
        self._window.add(batch, result)

    def validate(
        self,
        report: Callable[[Progress], None],
        keep: Callable[[Trained], None],
        look: Callable[[int, CorrespondenceNetwork, Sequence[Source]], None] | None,
    ) -> None:
        """Measures the moving average on held-out pairs, and keeps it where it is the best so far.

        Raises:
            _ReadError: the pairs could not be read.
        """
        self._check()
        progress = self._measure()
        state, sources = self.state, self._mixture.sources
        is_first = self._team.is_first
        found = Validation({}, 0.0)
        if is_first:
            with _reading():
                found = validate(state.average, sources, self._config.precision)
        found = self._team.tell(found)
        state.validations.append(Validated(state.step, found))
        if is_first:
            report(replace(progress, pck=found.pck, score=found.score))
        if self._best is None or found.score > self._best.score:
            self._best = Trained(copy.deepcopy(state.average), found.pck, found.score, state.step)
            if is_first:
                keep(self._best)
        self._forget()
        if look is not None and is_first:
            with _reading():  # last, when all else of a validation is done
                look(state.step, state.average, sources)

    def report(self, report: Callable[[Progress], None]) -> None:
        """Says how far the run is."""
        self._check()
        progress = self._measure()
        if self._team.is_first:
            report(progress)
        self._forget()

    def save(self) -> None:
        """Writes a checkpoint, once it is known that no number in it is broken."""
        self._check()
        present = (self.state.step, len(self.state.validations))
        if self._folder is None or present == self._saved:
            return
        if self._team.is_first:
            labels = [source.label for source in self._mixture.sources]
            save_run(self._folder, self.state, self._config, labels)
        self._saved = present

    def finish(self, keep: Callable[[Trained], None]) -> Trained:
        """Weighs the levels of the best network as asked for, calibrates it, and keeps it.

        Raises:
            _ReadError: the pairs could not be read.
        """
        if self._best is None:
            raise ValueError(f"steps must be at least 1, got {self._config.steps}")
        team = self._team
        best = replace(self._best, model=copy.deepcopy(self._best.model))
        best.model.scale_coarse_levels(self._config.coarse_gain)
        calibration = best.calibration
        if team.is_first:
            with _reading():
                calibration = _calibrate(best.model, self._mixture.sources, self._config)
        best = replace(best, calibration=team.tell(calibration))
        if team.is_first:
            keep(best)
        return best

    def _check(self) -> None:
        """Stops where a loss or a gradient since the last check is not finite."""
        names = self._window.take_names()
        if not names:
            return
        for what, values in (("loss", self.state.losses), ("gradient", self.state.gradient_norms)):
            found = torch.stack(values[-len(names) :])
            if not found.isfinite().all():  # the same in all processes
                check_finite(found, [self._team.gather(tuple(samples)) for samples in names], what)

    def _measure(self) -> Progress:
        """What happened since the last report."""
        state, window = self.state, self._window
        seconds = max(time.monotonic() - window.started, 1e-9)
        is_gpu = self._device.type == "cuda"
        return Progress(
            step=state.step,
            loss=_mean(state.losses),
            pairs_per_second=window.pairs * self._team.size / seconds,
            correspondences_per_second=float(window.correspondences) / seconds,
            gradient_norm=_mean(state.gradient_norms),
            rates=read_learning_rates(state.optimiser),
            memory_bytes=torch.cuda.max_memory_allocated(self._device) if is_gpu else None,
        )

    def _forget(self) -> None:
        """Begins what is measured until the next report."""
        self.state.losses, self.state.gradient_norms = [], []
        self._window = _Window()


def _mean(values: list[Tensor]) -> float:
    return torch.stack(values).mean().item() if values else math.nan


class _Window:
    """The steps since the last report."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.pairs = 0
        self.correspondences: Tensor | int = 0
        self._names: list[Sequence[str]] = []

    def add(self, batch: PairBatch, result: StepResult) -> None:
        """Counts a step, without waiting for the GPU."""
        self.pairs += len(batch.names)
        self.correspondences = self.correspondences + result.correspondences
        self._names.append(batch.names)

    def take_names(self) -> list[Sequence[str]]:
        """The samples of the steps that were not checked yet, which then count as checked."""
        names, self._names = self._names, []
        return names


def _calibrate(model: CorrespondenceNetwork, sources: Sequence[Source], config: TrainConfig) -> Calibration:
    """Curves fitted on held-out photographs or, where there are none, on held-out pairs of the data sets.

    What two unrelated images look like can be learnt of photographs only: two pairs of a data set may well
    show the same thing.
    """
    for source in sources:
        if isinstance(source, PhotoSource):
            # Calibration takes the truth of a pair for a homography, all over the view, and two pairs for
            # unrelated where their photographs differ.
            synthetic = replace(config.synthetic, spline_share=0.0, parallax_share=0.0)
            synthetic = replace(synthetic, blend_share=0.0, collage_share=0.0, border="mirror")
            return fit_calibration(model, source.held_out, synthetic, _CALIBRATION_PAIRS, config.seed + 2)
    return fit_match_curve(model, (batch for source in sources for batch in source.validation()))


@contextmanager
def _fast_products(device: torch.device, is_allowed: bool) -> Iterator[None]:
    """Lets a GPU take TF32 for the float32 products of the loss; the forward pass is in bf16 anyway."""
    if device.type != "cuda" or not is_allowed:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
