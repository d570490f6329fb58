"""``ucn train``: a network from a recipe, and photographs or data sets."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from ucn.cli._options import Debug, Device, Json, Overwrite
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_json, print_lines, say_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ucn.config import TrainConfig
    from ucn.train.loop import Progress, Trained
    from ucn.train.sources import Mixture, Skipped

_SHOWN_FAULTS = 20


def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", readable=False, help="A recipe, .yaml.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", readable=False, help="Weights: .safetensors.")
    ],
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", readable=False, help="Folder of photographs to make pairs from."),
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
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a network on pairs made from photographs, on data sets, or on both."""
    from ucn.data.io import check_output
    from ucn.data.points import check_suffix
    from ucn.predict import choose_device
    from ucn.train.loop import train
    from ucn.train.recipe import read_recipe
    from ucn.weights import save_weights

    config = read_recipe(recipe, overrides or (), data or ())
    check_suffix(output, (".safetensors",), "weights")
    check_output(output, overwrite)
    sha256 = ""

    def keep(trained: Trained) -> None:
        nonlocal sha256
        record = _without_places(config) | {"best_step": trained.step}
        sha256 = save_weights(
            output, trained.model, calibration=trained.calibration, training=record, overwrite=True
        )

    started = time.perf_counter()
    chosen = choose_device(device)
    with _open_sources(config, images, chosen, use_skipping, is_quiet=json) as mixture:
        if not json:
            _say_skipped(mixture.skipped)
        with _TrainingBar(config.steps, is_quiet=json) as bar:
            trained = train(config, mixture, chosen, bar, keep)
    seconds = time.perf_counter() - started
    if json:
        result = {
            "command": "train",
            "ucn": find_version(),
            "config": config.to_dict(),
            "skipped": [_to_dict(skipped) for skipped in mixture.skipped],
            "validation": trained.pck,
            "score": trained.score,
            "best_step": trained.step,
            "seconds": round(seconds, 1),
            "output": str(output),
            "sha256": sha256,
        }
        print_json(result)
        return
    lines = {name: say_share(value) for name, value in trained.pck.items()}
    print_lines(lines | {"time": f"{seconds:.0f} s", "written": str(output), "sha256": sha256})


def _open_sources(
    config: TrainConfig, images: Path | None, device: torch.device, use_skipping: bool, is_quiet: bool
) -> Mixture:
    """Opens what is trained on, with a bar while data sets are checked."""
    from ucn.train.sources import open_sources

    with CountBar("checking", is_quiet) as bar:
        return open_sources(
            config, images, device, use_skipping=use_skipping, watch=lambda _, done, total: bar(done, total)
        )


def _without_places(config: TrainConfig) -> dict[str, Any]:
    """The settings with file and folder names only: where they lay on one machine tells nobody anything."""
    record = config.to_dict()
    record["init"] = Path(config.init).name
    for source in record["sources"]:
        source["folder"] = Path(source["folder"]).name
    return record


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


class _TrainingBar:
    """A progress bar on a terminal, a line per report elsewhere, both on stderr."""

    def __init__(self, steps: int, is_quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=is_quiet or not self._is_terminal,
        )
        self._task = self._bar.add_task("starting", total=steps)
        self._pck = ""

    def __call__(self, progress: Progress) -> None:
        """Shows how far the training is."""
        if progress.pck is not None:
            self._pck = ", ".join(f"{name} {say_share(value)}" for name, value in progress.pck.items())
        text = f"loss {progress.loss:.3f}, {progress.pairs_per_second:.0f} pairs/s"
        with_pck = f"{text}, {self._pck}" if self._pck else text
        self._bar.update(self._task, completed=progress.step, description=with_pck)
        is_worth_a_line = progress.pck is not None or progress.step % 500 == 0
        if is_worth_a_line and not self._is_terminal and not self._is_quiet:
            typer.echo(f"step {progress.step}: {text if progress.pck is None else with_pck}", err=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
