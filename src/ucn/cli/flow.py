"""``ucn flow``: where every pixel of one image lies in the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _matcher
from ucn.cli._options import (
    Debug,
    Device,
    Image0,
    Image1,
    Json,
    MaxSide,
    Overwrite,
    Weights,
    build_config,
    output_option,
    path_option,
)
from ucn.cli._outputs import check_names, check_outputs, write_result
from ucn.cli._report import describe_run, print_json, print_lines, say_files, say_seconds
from ucn.cli._stages import Stages

if TYPE_CHECKING:
    from torch import Tensor

    from ucn.types import Flow


def run(
    image0: Image0,
    image1: Image1,
    output: Annotated[
        Path | None,
        output_option("Write flow: .flo (Middlebury) or .npz."),
    ] = None,
    draw: Annotated[
        Path | None,
        path_option("Draw the flow: .png, .jpg or .webp."),
    ] = None,
    weights: Weights = "geometric",
    max_side: MaxSide = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find where every pixel of one image lies in the other."""
    if output is None and draw is None:
        raise typer.BadParameter("nothing to write: give -o FILE.flo, -o FILE.npz or --draw FILE.png")
    config = build_config(max_side)
    with Stages(is_quiet=json) as stages:
        from ucn.data.io import read_image
        from ucn.data.points import FLOW_SUFFIXES

        outputs = [path for path in (output, draw) if path is not None]
        check_names(output, FLOW_SUFFIXES, "flow", draw)
        check_outputs(outputs, (image0, image1), overwrite)
        stages("reading images")
        tensors = read_image(image0), read_image(image1)
        stages("loading weights")
        matcher = _matcher.load_matcher(weights, config, device)
        stages("matching")
        flow = matcher.flow(*tensors, progress=stages)
        meta = {**describe_run(matcher), "image0": str(image0), "image1": str(image1)}
        stages("writing")
        _write(flow, meta, tensors[0], (output, draw), overwrite)
    facts = {"flow_hw": list(flow.confidence.shape), "mean_confidence": float(flow.confidence.mean())}
    summary = {"command": "flow", **meta, **facts, "seconds": stages.report()}
    if json:
        print_json({**summary, "outputs": [str(path) for path in outputs]})
    else:
        _print(summary, outputs)


def _write(
    flow: Flow, meta: dict[str, Any], image0: Tensor, paths: tuple[Path | None, Path | None], overwrite: bool
) -> None:
    from ucn.data.points import write_flow
    from ucn.viz import draw_flow

    output, draw = paths
    write_result(
        output, lambda place: write_flow(place, flow, meta), draw, lambda: draw_flow(flow, image0), overwrite
    )


def _print(summary: dict[str, Any], outputs: list[Path]) -> None:
    height, width = summary["flow_hw"]
    print_lines(
        {
            "flow": f"{width} × {height} vectors",
            "mean confidence": f"{summary['mean_confidence']:.3f}",
            "weights": f"{summary['weights']['name']}, sha256 {summary['weights']['sha256'][:16]}",
            "time": say_seconds(summary["seconds"]),
            "written": say_files(outputs),
        }
    )
