"""``ucn train``: trains a network from a recipe on photographs or data sets."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._checks import check_image_folder
from ucn.cli._progress import CountBar, TrainingBar
from ucn.cli._report import find_version, format_share, print_json, print_lines, to_dicts, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ucn.config import TrainConfig
    from ucn.train.checkpoint import Checkpoint
    from ucn.train.distributed import ProcessGroup
    from ucn.train.log import Progress, RunLog, TensorBoardLog
    from ucn.train.loop import Trained
    from ucn.train.run_folder import RunFolder
    from ucn.train.sources.batches import Mixture, Skipped

_SHOWN_PROBLEMS = 20


def run(
    recipe: Annotated[Path, opt.path_argument("RECIPE", "Shipped recipe (own, geometric, …) or .yaml file.")],
    output: Annotated[Path, opt.output_option("Weights: .safetensors.")],
    images: Annotated[Path | None, opt.path_option("Photographs for synthetic pairs.", metavar="DIR")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR", help="Folder of a data set, of the recipe or an additional one; repeatable."
        ),
    ] = None,
    use_skipping: Annotated[bool, opt.flag("--skip-bad", "Leave out pairs with bad files.")] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe.")
    ] = None,
    is_resumed: Annotated[bool, opt.flag("--resume", "Resume from the last checkpoint.")] = False,
    is_overfit: Annotated[
        bool, opt.flag("--overfit", "Train on one batch only, for debugging; reads no more.")
    ] = False,
    use_board: Annotated[
        bool, opt.flag("--tensorboard", "Write metrics and images for TensorBoard.")
    ] = False,
    device: opt.Device = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Train a network on synthetic pairs of photographs, on data sets, or on both."""
    from ucn.data.points import check_suffix
    from ucn.files.scratch import lock_output
    from ucn.files.writing import check_output
    from ucn.train.recipe import find_recipe, read_recipe

    find_recipe(recipe)
    check_suffix(output, (".safetensors",), "weights")
    check_image_folder(images)
    from ucn.runtime.device import choose_device
    from ucn.train.distributed import join_process_group
    from ucn.train.log import check_tensorboard
    from ucn.train.overfit import repeat_first_batch
    from ucn.train.run_folder import RunFolder

    config = read_recipe(recipe, overrides or (), data or ())
    folder = RunFolder.beside(output)
    check_output(output, overwrite or (is_resumed and folder.has_checkpoint))
    folder.check(resume=is_resumed, overwrite=overwrite)
    if use_board:
        check_tensorboard()
    started = time.perf_counter()
    with ExitStack() as stack:
        group = join_process_group(device)
        stack.callback(group.close)
        if group.is_first:
            stack.enter_context(lock_output(output))
        is_quiet = json or not group.is_first
        chosen = group.device or choose_device(device)
        mixture = _open_sources(config, images, chosen, group, use_skipping, is_overfit, is_quiet)
        if is_overfit:
            mixture = repeat_first_batch(mixture, group.localise(config), chosen)
        stack.enter_context(mixture)
        if not is_quiet:
            _warn_skipped(mixture.skipped)
            for warning in mixture.warnings:
                warn(f"warning: {warning}")
        session = _Session(config, output, folder, group, chosen, is_quiet)
        trained = session.train(mixture, is_resumed, use_board)
    if group.is_first:
        session.report(trained, mixture, time.perf_counter() - started, json)


def _open_sources(
    config: TrainConfig,
    images: Path | None,
    device: torch.device,
    group: ProcessGroup,
    use_skipping: bool,
    is_small: bool,
    is_quiet: bool,
) -> Mixture:
    """Opens the sources of pairs, with a bar while data sets are checked."""
    from ucn.train.distributed import open_shared_sources

    with CountBar("checking", is_quiet) as bar:
        return open_shared_sources(
            config,
            images,
            device,
            group,
            use_skipping=use_skipping,
            is_small=is_small,
            watch=lambda _, done, total: bar(done, total),
        )


class _Session:
    """One training run: its files, and what it shows meanwhile.

    Attributes:
        sha256: of the weights written last; empty before.
        start_step: step of the checkpoint that the run resumes from; 0 for a new run.
    """

    def __init__(
        self,
        config: TrainConfig,
        output: Path,
        folder: RunFolder,
        group: ProcessGroup,
        device: torch.device,
        is_quiet: bool,
    ) -> None:
        self._config, self._output, self._folder = config, output, folder
        self._group, self._device, self._is_quiet = group, device, is_quiet
        self._watchers: list[Callable[[Progress], None]] = []
        self.sha256 = ""
        self.start_step = 0

    def report(self, trained: Trained, mixture: Mixture, seconds: float, is_json: bool) -> None:
        """Prints the result as JSON or for people."""
        if is_json:
            print_json(self._to_json(trained, mixture, seconds))
            return
        for skip in mixture.skipped_pairs()[:_SHOWN_PROBLEMS]:
            warn(f"skipped while training: {skip.label}, {skip.message}")
        lines = {name: format_share(value) for name, value in trained.pck.items()}
        written = {"written": str(self._output), "sha256": self.sha256, "log": str(self._folder.log)}
        print_lines(lines | {"time": f"{seconds:.0f} s"} | written)

    def _to_json(self, trained: Trained, mixture: Mixture, seconds: float) -> dict[str, Any]:
        return {
            "command": "train",
            "ucn": find_version(),
            "config": self._config.to_dict(),
            "skipped": [
                {"source": skipped.label, "pairs": skipped.pairs, "faults": to_dicts(skipped.problems)}
                for skipped in mixture.skipped
            ],
            "skipped_while_training": [asdict(skip) for skip in mixture.skipped_pairs()],
            "warnings": list(mixture.warnings),
            "processes": self._group.size,
            "resumed_at": self.start_step,
            "validation": trained.pck,
            "score": trained.score,
            "best_step": trained.step,
            "seconds": round(seconds, 1),
            "output": str(self._output),
            "folder": str(self._folder.path),
            "sha256": self.sha256,
        }

    def train(self, mixture: Mixture, is_resumed: bool, use_board: bool) -> Trained:
        """Trains to the end, or until a signal stops it.

        Raises:
            typer.Exit: a signal was received; the code is 128 plus its number.
        """
        from ucn.train.loop import train
        from ucn.train.signals import StoppedError, StopSignals

        resume = self._find_checkpoint(mixture) if is_resumed else None
        self.start_step = 0 if resume is None else resume.step
        with ExitStack() as stack:
            board = log = None
            if self._group.is_first:
                log, board = self._open_watchers(stack, is_resumed, use_board)
            signals = stack.enter_context(StopSignals(is_repeated=self._group.size > 1))
            try:
                trained = train(
                    self._config,
                    mixture,
                    self._device,
                    self._report,
                    self._keep,
                    folder=self._folder.path,
                    resume=resume,
                    on_validation=None if board is None else board.draw_matches,
                    should_stop=signals.is_received,
                    group=self._group,
                )
            except StoppedError as error:
                received = signals.received or SIGTERM  # another process received it
                if log is not None:
                    log.write("stop", step=error.step, signal=received.name)
                    self._print_stopped(error.step, received.name)
                raise typer.Exit(128 + received) from None
            if log is not None:
                log.write("end", step=self._config.steps, best_step=trained.step, score=trained.score)
            return trained

    def _find_checkpoint(self, mixture: Mixture) -> Checkpoint | None:
        """The checkpoint to resume from; the first process reads it and broadcasts it."""
        from ucn.train.checkpoint import load_run

        found = None
        if self._group.is_first:
            labels = [source.label for source in mixture.sources]
            found = load_run(self._folder.path, self._config, labels)
            if not self._is_quiet:
                missing = f"no checkpoint in {self._folder.path}, training starts at step 0"
                typer.echo(f"resume: {missing if found is None else f'step {found.step}'}", err=True)
        return self._group.broadcast(found)

    def _open_watchers(
        self, stack: ExitStack, is_resumed: bool, use_board: bool
    ) -> tuple[RunLog, TensorBoardLog | None]:
        """Opens the log, TensorBoard where requested, and the progress bar."""
        from ucn.train.checkpoint import find_versions, record_config
        from ucn.train.log import RunLog, TensorBoardLog

        step = self.start_step
        self._folder.prepare(is_new=not step)
        log = stack.enter_context(RunLog(self._folder.log, step))
        event = "resume" if step else "start"
        run = {
            "device": str(self._device),
            "processes": self._group.size,
            "config": record_config(self._config),
        }
        log.write(event, step=step, versions=find_versions(), **run)
        self._watchers.append(log)
        board = TensorBoardLog(self._folder.tensorboard, step) if use_board else None
        if board is not None:
            stack.callback(board.close)
            self._watchers.append(board)
        self._watchers.append(stack.enter_context(TrainingBar(step, self._config.steps, self._is_quiet)))
        return log, board

    def _report(self, progress: Progress) -> None:
        for watch in self._watchers:
            watch(progress)

    def _keep(self, trained: Trained) -> None:
        from ucn.train.checkpoint import record_config
        from ucn.weights import save_weights

        record = record_config(self._config) | {"best_step": trained.step}
        self.sha256 = save_weights(
            self._output,
            trained.model,
            calibration=trained.calibration,
            training=record,
            max_side=self._config.max_side,
            overwrite=True,
        )

    def _print_stopped(self, step: int, name: str) -> None:
        text = f"stopped by {name} before the first step"
        if step:
            text = (
                f"stopped by {name} at step {step} of {self._config.steps}, saved in {self._folder.path}; "
                "continue with --resume"
            )
        typer.echo(text, err=True)


def _warn_skipped(all_skipped: Sequence[Skipped]) -> None:
    for skipped in all_skipped:
        for problem in skipped.problems[:_SHOWN_PROBLEMS]:
            warn(f"skipped: {problem}")
        left = len(skipped.problems) - _SHOWN_PROBLEMS
        more = f" ({left:,} of them not shown)" if left > 0 else ""
        count = len(skipped.problems)
        warn(f"{skipped.label}: left out {skipped.pairs:,} pairs for {count:,} problems{more}")
