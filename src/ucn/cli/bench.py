"""``ucn bench``: speed and memory as ratios to named baselines."""

from __future__ import annotations

import json as json_module
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._outputs import check_folder, check_outputs
from ucn.cli._progress import Stages
from ucn.cli._report import find_version, print_json, print_table, warn, without_nan

if TYPE_CHECKING:
    from ucn.bench.report import Part, Table


def run(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PART",
            help="knn, transformer, encode, match, growth, startup or train.",
            show_default="all",
        ),
    ] = None,
    device: opt.Device = None,
    output: Annotated[Path | None, opt.output_option("Write the result as JSON.")] = None,
    plots: Annotated[Path | None, opt.path_option("Folder for plots of growth.", metavar="DIR")] = None,
    quick: Annotated[bool, opt.flag("--quick", "Smoke test on small inputs; no benchmark.")] = False,
    thorough: Annotated[bool, opt.flag("--thorough", "Also measure compiled code; takes minutes.")] = False,
    weights: Annotated[
        str, typer.Option(metavar="NAME", help="Shipped weights for real descriptors, matching and training.")
    ] = "geometric",
    xfeat: Annotated[
        Path | None, opt.path_option("ONNX file of XFeat, a baseline of encoding and matching.")
    ] = None,
    limit_seconds: Annotated[
        float, typer.Option(min=1.0, max=86400.0, help="Time limit of each series of the growth part.")
    ] = 90.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Random seed of all inputs.")] = 0,
    update: Annotated[
        bool, opt.flag("--update", "Keep the other parts in FILE; plots need --overwrite.")
    ] = False,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Measure speed and memory as ratios to named baselines, and describe this machine."""
    from ucn.bench.run import PARTS, check_mergeable, merge_results, read_parts, run_parts

    names = _choose_parts(parts or list(PARTS), list(PARTS))
    with Stages(is_quiet=json) as stages:
        from ucn.bench.machine import describe_machine
        from ucn.bench.settings import Settings
        from ucn.errors import ConfigError
        from ucn.runtime.device import choose_device

        _check_files(output, plots, xfeat, weights, overwrite, overwrite or update)
        before = _read_before(output) if update else None
        settings = Settings(
            choose_device(device), seed, quick, thorough, weights, xfeat, limit_seconds, stages
        )
        if settings.device.type not in ("cpu", "cuda"):
            raise ConfigError(f"--device must be cpu or cuda for a benchmark, got {settings.device.type}")
        if before is not None:
            check_mergeable(before, describe_machine(settings.device), quick)
        result = run_parts(names, settings, partial(_print_failure, is_debug=debug))
        failures = result["failures"]
        if before is not None:
            result = merge_results(before, result)
    result = {"command": "bench", "ucn": find_version(), **result}
    found = read_parts(without_nan(result))
    written = _write(result, found, output, plots, overwrite, overwrite or update)
    if json:
        print_json({**result, "outputs": list(map(str, written))})
    else:
        _print(result, [found[name] for name in names if name not in failures], failures)
        for path in written:
            typer.echo(f"written: {path}")
    if failures:
        raise typer.Exit(1)


def _print_failure(name: str, error: Exception, is_debug: bool) -> None:
    """Prints the error of a part at once: the others may take minutes more."""
    from ucn.bench.run import format_error

    typer.secho(f"error: part {name} failed: {format_error(error)}", err=True, fg=typer.colors.RED)
    if is_debug:
        typer.echo("".join(traceback.format_exception(error)), err=True)


def _choose_parts(requested: list[str], legal: list[str]) -> list[str]:
    for name in requested:
        if name not in legal:
            raise typer.BadParameter(f"there is no part '{name[:40]}': expected {', '.join(legal)}")
    return [name for name in legal if name in requested]


def _check_files(
    output: Path | None,
    plots: Path | None,
    xfeat: Path | None,
    weights: str,
    overwrite: bool,
    overwrite_output: bool,
) -> None:
    """Checks everything that would fail only after minutes. Plots do not say who made them."""
    from ucn.errors import WeightsError
    from ucn.features.xfeat import explain_unavailable
    from ucn.weights import list_weights

    if output is not None:
        check_outputs([output], [xfeat], overwrite_output)
    if plots is not None:
        check_folder(plots, ["growth.png", "growth.svg"], overwrite)
    legal = [info.name for info in list_weights()]
    if weights not in legal:
        raise WeightsError(f"no shipped weights '{weights[:40]}': expected one of {', '.join(legal)}")
    reason = "" if xfeat is None else explain_unavailable(xfeat)
    if reason:
        raise WeightsError(reason)


def _read_before(output: Path | None) -> dict[str, Any] | None:
    """The result to update; None where the file does not exist yet."""
    from ucn.bench.run import read_parts
    from ucn.errors import DataError
    from ucn.files.reading import read_text

    if output is None:
        raise typer.BadParameter("--update needs -o FILE")
    if not output.exists():
        return None
    try:
        before = json_module.loads(read_text(output, "result"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"cannot read {output} for --update: {error}") from error
    read_parts(before, str(output))
    return before  # type: ignore[no-any-return]


def _write(
    result: dict[str, Any],
    found: dict[str, Part],
    output: Path | None,
    plots: Path | None,
    overwrite: bool,
    overwrite_output: bool,
) -> list[Path]:
    from ucn.files.writing import check_output, write_bytes_atomically, write_files

    contents: dict[Path, bytes] = {}
    if output is not None:
        text = json_module.dumps(without_nan(result), indent=1, allow_nan=False, ensure_ascii=False)
        contents[output] = f"{text}\n".encode()
    if plots is not None and "growth" in found:
        from ucn.bench.machine import format_machine
        from ucn.bench.plots import draw_growth

        plot = draw_growth(found["growth"], format_machine(result["machine"]))
        plots.mkdir(parents=True, exist_ok=True)
        drawn = {plots / "growth.png": plot.png, plots / "growth.svg": plot.svg}
        for path in drawn:
            check_output(path, overwrite)
        contents |= drawn
    writers: dict[Path | None, Callable[[Path], object]] = {
        path: partial(write_bytes_atomically, content=each) for path, each in contents.items()
    }
    return write_files(writers, overwrite_output)


def _print(result: dict[str, Any], parts: list[Part], failures: dict[str, str]) -> None:
    from ucn.bench.machine import format_machine
    from ucn.bench.report import tabulate_failures

    typer.echo(format_machine(result["machine"]))
    for warning in result["machine"]["warnings"]:
        warn(f"warning: {warning}")
    if result["settings"]["is_quick"]:
        typer.echo("quick: small inputs and few rounds; the results are not representative")
    tables = [table for part in parts for table in part.tables]
    for table in [*tables, tabulate_failures(failures)] if failures else tables:
        _print_table(table)


def _print_table(table: Table) -> None:
    header = [column.heading for column in table.columns]
    text_columns = sum(column.unit == "text" for column in table.columns)
    print_table(header, table.format_rows(), title=table.title, text_columns=text_columns)
    for note in table.notes:
        typer.secho(note, dim=True)
