"""``ucn bench``: speed and memory as ratios."""

from __future__ import annotations

import json as json_module
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli._options import Debug, Device, Json, Overwrite, output_option, path_option
from ucn.cli._outputs import check_outputs
from ucn.cli._report import find_version, print_json, without_nan
from ucn.cli._stages import Stages

if TYPE_CHECKING:
    from ucn.bench.report import Part, Table
    from ucn.evaluate.core.report import Plot

_WIDTH = 150


def run(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PART",
            help="knn, transformer, encode, pairs, growth, startup or train.",
            show_default="all of them",
        ),
    ] = None,
    device: Device = None,
    output: Annotated[
        Path | None,
        output_option("Write everything as JSON."),
    ] = None,
    plots: Annotated[
        Path | None,
        path_option("Draw the curves of growth there.", metavar="DIR"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small inputs, few repeats: does it run? No figures to be quoted.")
    ] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="On a GPU, measure also what compiles for minutes.")
    ] = False,
    weights: Annotated[
        str, typer.Option(metavar="NAME", help="Shipped weights of real descriptors, pairs and training.")
    ] = "geometric",
    xfeat: Annotated[
        Path | None,
        path_option("XFeat as ONNX, for comparison."),
    ] = None,
    limit_seconds: Annotated[
        float, typer.Option(min=1.0, max=86400.0, help="Each series of growing sizes ends after this time.")
    ] = 90.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Of all random inputs.")] = 0,
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Keep what FILE holds of this machine, but for the parts measured now."
        ),
    ] = False,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure speed and memory as ratios against named references, with this machine described."""
    from ucn.bench.run import PARTS, check_mergeable, merge_results, read_parts, run_parts

    names = _choose_parts(parts or list(PARTS), list(PARTS))
    with Stages(is_quiet=json) as stages:
        from ucn.bench.machine import describe_machine
        from ucn.bench.settings import Settings
        from ucn.runtime.device import choose_device

        _check_files(output, plots, xfeat, weights, overwrite or update)
        before = _read_before(output) if update else None
        settings = Settings(
            choose_device(device), seed, quick, thorough, weights, xfeat, limit_seconds, stages
        )
        _check_device(settings.device.type)
        if before is not None:
            check_mergeable(before, describe_machine(settings.device), quick)
        result = run_parts(names, settings, partial(_tell_failure, is_debug=debug))
        failures = result["failures"]
        if before is not None:
            result = merge_results(before, result)
    result = {"command": "bench", "ucn": find_version(), **result}
    found = read_parts(without_nan(result))
    written = _write(result, found, output, plots, overwrite or update)
    if json:
        print_json({**result, "outputs": list(map(str, written))})
    else:
        _print(result, {name: found[name] for name in names if name not in failures}, failures)
        for path in written:
            typer.echo(f"written: {path}")
    if failures:
        raise typer.Exit(1)


def _tell_failure(name: str, error: Exception, is_debug: bool) -> None:
    """Says at once, on stderr, that a part failed: the others may take minutes more."""
    from ucn.bench.run import say_error

    typer.secho(f"error: part {name} failed: {say_error(error)}", err=True, fg=typer.colors.RED)
    if is_debug:
        typer.echo("".join(traceback.format_exception(error)), err=True)


def _choose_parts(asked: list[str], legal: list[str]) -> list[str]:
    for name in asked:
        if name not in legal:
            raise typer.BadParameter(f"there is no part '{name[:40]}': expected {', '.join(legal)}")
    return [name for name in legal if name in asked]


def _check_device(kind: str) -> None:
    from ucn.errors import ConfigError

    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"--device must be cpu or cuda to be measured, got {kind}")


def _check_files(
    output: Path | None, plots: Path | None, xfeat: Path | None, weights: str, overwrite: bool
) -> None:
    """Everything that would fail after minutes of measuring."""
    from ucn.cli._outputs import check_folder
    from ucn.errors import WeightsError
    from ucn.features.xfeat import find_obstacle
    from ucn.weights import list_weights

    if output is not None:
        check_outputs([output], [xfeat], overwrite)
    if plots is not None:
        check_folder(plots, ["growth.png", "growth.svg"], overwrite)
    legal = [info.name for info in list_weights()]
    if weights not in legal:
        raise WeightsError(f"no shipped weights '{weights[:40]}': expected one of {', '.join(legal)}")
    reason = "" if xfeat is None else find_obstacle(xfeat)
    if reason:
        raise WeightsError(reason)


def _read_before(output: Path | None) -> dict[str, Any] | None:
    """The result that is to be kept but for some parts; None where there is none yet."""
    from ucn.bench.run import read_parts
    from ucn.errors import DataError

    if output is None:
        raise typer.BadParameter("--update needs -o FILE")
    if not output.exists():
        return None
    try:
        before = json_module.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {output}, which --update is to keep: {error}") from error
    read_parts(before, str(output))
    return before  # type: ignore[no-any-return]


def _write(
    result: dict[str, Any], found: dict[str, Part], output: Path | None, plots: Path | None, overwrite: bool
) -> list[Path]:
    from ucn.data.io import write_bytes_atomically

    written = []
    if output is not None:
        text = json_module.dumps(without_nan(result), indent=1, allow_nan=False, ensure_ascii=False)
        write_bytes_atomically(output, f"{text}\n".encode(), overwrite)
        written.append(output)
    if plots is not None and "growth" in found:
        from ucn.bench.machine import say_machine
        from ucn.bench.plots import draw_growth

        plot: Plot = draw_growth(found["growth"], say_machine(result["machine"]))
        plots.mkdir(parents=True, exist_ok=True)
        for path, content in ((plots / "growth.png", plot.png), (plots / "growth.svg", plot.svg)):
            write_bytes_atomically(path, content, overwrite)
            written.append(path)
    return written


def _print(result: dict[str, Any], parts: dict[str, Part], failures: dict[str, str]) -> None:
    from rich.console import Console

    from ucn.bench.machine import say_machine
    from ucn.bench.report import tabulate_failures, tabulate_targets

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(say_machine(result["machine"]))
    for warning in result["machine"]["warnings"]:
        console.print(f"warning: {warning}", style="yellow")
    if result["settings"]["is_quick"]:
        console.print("quick: small inputs and few repeats; these figures are not to be quoted")
    for part in parts.values():
        for table in part.tables:
            _print_table(console, table)
    targets = tuple(target for part in parts.values() for target in part.targets)
    if targets:
        _print_table(console, tabulate_targets(targets))
    if failures:
        _print_table(console, tabulate_failures(failures))


def _print_table(console: Any, table: Table) -> None:
    from rich.table import Table as RichTable

    shown = RichTable(title=table.title, title_justify="left")
    for column in table.columns:
        shown.add_column(column.heading, justify="left" if column.unit == "text" else "right")
    for row in table.format_rows():
        shown.add_row(*row)
    console.print(shown)
    for note in table.notes:
        console.print(note, style="dim")
