"""``ucn train``: a network from a recipe and a folder of photographs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from ucn.cli._options import Debug, Device, Json, Overwrite
from ucn.cli._report import find_version, print_json, print_lines

if TYPE_CHECKING:
    from ucn.train.loop import Progress, Trained


def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", readable=False, help="A recipe, .yaml.")],
    images: Annotated[
        Path, typer.Option(metavar="DIR", readable=False, help="Folder of photographs to make pairs from.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", readable=False, help="Weights: .safetensors.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe.")
    ] = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a network on pairs made from photographs."""
    from ucn.data.io import check_output
    from ucn.data.points import check_suffix
    from ucn.predict import choose_device
    from ucn.train.loop import train
    from ucn.train.recipe import read_recipe
    from ucn.weights import save_weights

    config = read_recipe(recipe, overrides or ())
    check_suffix(output, (".safetensors",), "weights")
    check_output(output, overwrite)
    sha256 = ""

    def keep(trained: Trained) -> None:
        nonlocal sha256
        # The trunk's file name without its folder: where it lay on one machine tells nobody anything.
        record = config.to_dict() | {"init": Path(config.init).name, "best_step": trained.step}
        sha256 = save_weights(
            output, trained.model, calibration=trained.calibration, training=record, overwrite=True
        )

    started = time.perf_counter()
    with _TrainingBar(config.steps, is_quiet=json) as bar:
        trained = train(config, images, choose_device(device), bar, keep)
    seconds = time.perf_counter() - started
    if json:
        print_json(
            {
                "command": "train",
                "ucn": find_version(),
                "config": config.to_dict(),
                "validation": trained.pck,
                "best_step": trained.step,
                "seconds": round(seconds, 1),
                "output": str(output),
                "sha256": sha256,
            }
        )
        return
    lines = {name: f"{100 * value:.1f} %" for name, value in trained.pck.items()}
    print_lines(lines | {"time": f"{seconds:.0f} s", "written": str(output), "sha256": sha256})


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
            self._pck = ", ".join(f"{name} {100 * value:.1f} %" for name, value in progress.pck.items())
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
