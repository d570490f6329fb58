"""``ucn export``: a network as an ONNX file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _options as opt
from ucn.cli._outputs import Output, check_files
from ucn.cli._progress import Stages
from ucn.cli._report import (
    find_version,
    format_seconds,
    format_share,
    format_weights,
    print_json,
    print_lines,
)

if TYPE_CHECKING:
    from ucn.formats.onnx import Export


def run(
    weights: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE", help="Shipped weights by name, or a .safetensors file.", show_default=False
        ),
    ],
    output: Annotated[Path, opt.output_option("Write the network: .onnx.")],
    pair: Annotated[bool, opt.flag("--pair", "Export a graph from two images to matches.")] = False,
    k: Annotated[
        int | None,
        typer.Option(
            "-k", "--matches", metavar="N", min=1, help="Number of matches of --pair.", show_default="1024"
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="HxW",
            help="Fix the image size, such as 480x640: for OpenCV 5 and others without dynamic shapes.",
            show_default="any",
        ),
    ] = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Write a network as an ONNX file for images of any size, or of one.

    The file is kept only if onnxruntime agrees with torch, also at the size at which the weights match. Its
    metadata holds the image format, the positions of the feature cells, the weights and their licence.
    """
    if k is not None and not pair:
        raise typer.BadParameter("-k is for --pair: a graph of descriptors has no matches")
    size_hw = None if size is None else _read_size(size)
    with Stages(is_quiet=json) as stages:
        from ucn.weights import check_weights

        check_files([Output(output, "a network", (".onnx",))], [], overwrite)
        check_weights(weights)
        from ucn.formats.onnx import DEFAULT_K, check_packages, export_onnx
        from ucn.weights import load_weights

        check_packages()
        stages("loading weights")
        loaded = load_weights(weights)
        export = export_onnx(
            loaded,
            output,
            kind="pair" if pair else "network",
            k=DEFAULT_K if k is None else k,
            size_hw=size_hw,
            overwrite=overwrite,
            progress=stages,
        )
    if json:
        print_json(_to_json(export, stages.report()))
    else:
        _print(export, stages.report())


def _read_size(given: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,5})[x×]([0-9]{1,5})", given.strip().lower())
    if found is None:
        raise typer.BadParameter(f"--size must be height x width, such as 480x640, got {given[:40]!r}")
    return int(found[1]), int(found[2])


def _print(export: Export, seconds: dict[str, float]) -> None:
    worst = min(parity.same_matches for parity in export.parity)
    weights = {"name": export.metadata["weights"], "sha256": export.metadata["weights_sha256"]}
    print_lines(
        {
            "graph": "two images to matches" if export.kind == "pair" else "images to descriptors",
            "parity": f"{format_share(worst)} of the matches of torch, values within",
            **{
                f"{parity.size_hw[1]} × {parity.size_hw[0]}": f"{parity.max_difference:.1e} (at most "
                f"{parity.limit:.1e})"
                for parity in export.parity
            },
            "weights": format_weights(weights),
            "licence": export.metadata["licence"],
            "time": format_seconds(seconds),
            "written": f"{export.path} ({export.file_bytes / 1e6:.1f} MB)",
        }
    )


def _to_json(export: Export, seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "command": "export",
        "ucn": find_version(),
        "kind": export.kind,
        "metadata": export.metadata,
        "parity": [{**vars(parity), "size_hw": list(parity.size_hw)} for parity in export.parity],
        "file_bytes": export.file_bytes,
        "seconds": seconds,
        "outputs": [str(export.path)],
    }
