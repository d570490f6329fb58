"""``ucn train``: a network from a recipe, and photographs or data sets."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli._options import Debug, Device, Json, Overwrite, output_option, path_argument, path_option
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_json, print_lines, say_share
from ucn.cli._training_bar import TrainingBar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ucn.config import TrainConfig
    from ucn.train.checkpoint import Checkpoint
    from ucn.train.distributed import Team
    from ucn.train.log import Board, Progress, RunLog
    from ucn.train.loop import Trained
    from ucn.train.run_folder import RunFolder
    from ucn.train.sources.batches import Mixture, Skipped

_SHOWN_FAULTS = 20


def run(
    recipe: Annotated[Path, path_argument("RECIPE", "A recipe, .yaml.")],
    output: Annotated[Path, output_option("Weights: .safetensors.")],
    images: Annotated[
        Path | None,
        path_option("Folder of photographs to make pairs from.", metavar="DIR"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR",
            help="Folder of a data set: of the recipe's source of that name, or a further one; repeatable.",
        ),
    ] = None,
    use_skipping: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out pairs with faulty files instead of refusing a set.")
    ] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe.")
    ] = None,
    is_resumed: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint beside the output, if any.")
    ] = False,
    is_overfit: Annotated[
        bool, typer.Option("--overfit", help="Train and validate on the first batch only, to find faults.")
    ] = False,
    use_board: Annotated[
        bool, typer.Option("--tensorboard", help="Write figures and pictures of matches for TensorBoard.")
    ] = False,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a network on pairs made from photographs, on data sets, or on both."""
    from ucn.data.io import check_output
    from ucn.data.points import check_suffix
    from ucn.runtime.device import choose_device
    from ucn.train.distributed import join_team
    from ucn.train.log import check_board
    from ucn.train.overfit import repeat_first_batch
    from ucn.train.recipe import read_recipe
    from ucn.train.run_folder import RunFolder

    config = read_recipe(recipe, overrides or (), data or ())
    check_suffix(output, (".safetensors",), "weights")
    folder = RunFolder.beside(output)
    check_output(output, overwrite or (is_resumed and folder.has_checkpoint))
    folder.check(is_resumed=is_resumed, overwrite=overwrite)
    if use_board:
        check_board()
    started = time.perf_counter()
    with ExitStack() as stack:
        team = join_team(device)
        stack.callback(team.close)
        is_quiet = json or not team.is_first
        chosen = team.device or choose_device(device)
        mixture = _open_sources(config, images, chosen, team, use_skipping, is_quiet)
        if is_overfit:
            mixture = repeat_first_batch(mixture, team.share(config), chosen)
        stack.enter_context(mixture)
        if not is_quiet:
            _say_skipped(mixture.skipped)
            for warning in mixture.warnings:
                typer.secho(f"warning: {warning}", err=True, fg=typer.colors.YELLOW)
        session = _Session(config, output, folder, team, chosen, is_quiet)
        trained = session.train(mixture, is_resumed, use_board)
    if team.is_first:
        session.report(trained, mixture, time.perf_counter() - started, json)


def _open_sources(
    config: TrainConfig,
    images: Path | None,
    device: torch.device,
    team: Team,
    use_skipping: bool,
    is_quiet: bool,
) -> Mixture:
    """Opens what is trained on, with a bar while data sets are checked."""
    from ucn.train.distributed import open_shared_sources

    with CountBar("checking", is_quiet) as bar:
        return open_shared_sources(
            config,
            images,
            device,
            team,
            use_skipping=use_skipping,
            watch=lambda _, done, total: bar(done, total),
        )


class _Session:
    """One call of the command: what it writes and shows while a run goes on.

    Attributes:
        sha256: of the weights that were written last; empty before.
        begun_at: the step of the checkpoint from which the run went on; 0 for a new run.
    """

    def __init__(
        self,
        config: TrainConfig,
        output: Path,
        folder: RunFolder,
        team: Team,
        device: torch.device,
        is_quiet: bool,
    ) -> None:
        self._config, self._output, self._folder = config, output, folder
        self._team, self._device, self._is_quiet = team, device, is_quiet
        self._watchers: list[Callable[[Progress], None]] = []
        self.sha256 = ""
        self.begun_at = 0

    def report(self, trained: Trained, mixture: Mixture, seconds: float, is_json: bool) -> None:
        """Prints what came of it, for programs or for people."""
        if is_json:
            print_json(self._to_json(trained, mixture, seconds))
            return
        for skip in mixture.late_skips()[:_SHOWN_FAULTS]:
            typer.secho(
                f"skipped while training: {skip.label}, {skip.message}", err=True, fg=typer.colors.YELLOW
            )
        lines = {name: say_share(value) for name, value in trained.pck.items()}
        written = {"written": str(self._output), "sha256": self.sha256, "log": str(self._folder.log)}
        print_lines(lines | {"time": f"{seconds:.0f} s"} | written)

    def _to_json(self, trained: Trained, mixture: Mixture, seconds: float) -> dict[str, Any]:
        return {
            "command": "train",
            "ucn": find_version(),
            "config": self._config.to_dict(),
            "skipped": [_to_dict(skipped) for skipped in mixture.skipped],
            "skipped_while_training": [asdict(skip) for skip in mixture.late_skips()],
            "warnings": list(mixture.warnings),
            "processes": self._team.size,
            "resumed_at": self.begun_at,
            "validation": trained.pck,
            "score": trained.score,
            "best_step": trained.step,
            "seconds": round(seconds, 1),
            "output": str(self._output),
            "folder": str(self._folder.path),
            "sha256": self.sha256,
        }

    def train(self, mixture: Mixture, is_resumed: bool, use_board: bool) -> Trained:
        """Trains until the end, or until a signal comes.

        Raises:
            typer.Exit: a signal came; the code is 128 and the signal's number.
        """
        from ucn.train.loop import train
        from ucn.train.signals import StoppedError, StopSignals

        resume = self._find_checkpoint(mixture) if is_resumed else None
        self.begun_at = 0 if resume is None else resume.step
        with ExitStack() as stack:
            board = log = None
            if self._team.is_first:
                log, board = self._open_watchers(stack, is_resumed, use_board)
            signals = stack.enter_context(StopSignals(is_repeated=self._team.size > 1))
            try:
                trained = train(
                    self._config,
                    mixture,
                    self._device,
                    self._report,
                    self._keep,
                    folder=self._folder.path,
                    resume=resume,
                    look=None if board is None else board.draw,
                    is_asked_to_stop=signals.is_asked,
                    team=self._team,
                )
            except StoppedError as error:
                received = signals.received or SIGTERM  # another process got it
                if log is not None:
                    log.note("stop", step=error.step, signal=received.name)
                    self._say_stopped(error.step, received.name)
                raise typer.Exit(128 + received) from None
            if log is not None:
                log.note("end", step=self._config.steps, best_step=trained.step, score=trained.score)
            return trained

    def _find_checkpoint(self, mixture: Mixture) -> Checkpoint | None:
        """The checkpoint to go on from, as the first process finds it; it tells the others."""
        from ucn.train.checkpoint import load_run

        found = None
        if self._team.is_first:
            labels = [source.label for source in mixture.sources]
            found = load_run(self._folder.path, self._config, labels)
            if not self._is_quiet:
                where = f"no checkpoint in {self._folder.path} yet" if found is None else f"step {found.step}"
                typer.echo(f"resume: {where}", err=True)
        return self._team.tell(found)

    def _open_watchers(
        self, stack: ExitStack, is_resumed: bool, use_board: bool
    ) -> tuple[RunLog, Board | None]:
        """Opens the log, TensorBoard where asked for, and the bar, which all get the reports."""
        from ucn.train.checkpoint import find_versions, record_config
        from ucn.train.log import Board, RunLog

        step = self.begun_at
        self._folder.prepare(is_new=not step)
        log = stack.enter_context(RunLog(self._folder.log, step))
        event = "resume" if step else "start"
        run = {
            "device": str(self._device),
            "processes": self._team.size,
            "config": record_config(self._config),
        }
        log.note(event, step=step, versions=find_versions(), **run)
        self._watchers.append(log)
        board = Board(self._folder.board, step) if use_board else None
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

    def _say_stopped(self, step: int, name: str) -> None:
        text = f"stopped by {name} before the first step"
        if step:
            text = (
                f"stopped by {name} at step {step} of {self._config.steps}, kept in {self._folder.path}; "
                "the same command with --resume goes on"
            )
        typer.echo(text, err=True)


def _say_skipped(all_skipped: Sequence[Skipped]) -> None:
    for skipped in all_skipped:
        for fault in skipped.faults[:_SHOWN_FAULTS]:
            typer.secho(f"skipped: {fault}", err=True, fg=typer.colors.YELLOW)
        left = len(skipped.faults) - _SHOWN_FAULTS
        more = f" ({left:,} of them not shown)" if left > 0 else ""
        typer.secho(
            f"{skipped.label}: left out {skipped.pairs:,} pairs for {len(skipped.faults):,} faults{more}",
            err=True,
            fg=typer.colors.YELLOW,
        )


def _to_dict(skipped: Skipped) -> dict[str, Any]:
    faults = [{"file": str(f.path), "line": f.line, "message": f.message} for f in skipped.faults]
    return {"source": skipped.label, "pairs": skipped.pairs, "faults": faults}
