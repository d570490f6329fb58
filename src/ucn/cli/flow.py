"""``ucn flow``: where every pixel of one image lies in the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ucn.cli import _matcher
from ucn.cli._options import Debug, Device, Image0, Image1, Json, MaxSide, Overwrite, Weights, build_config
from ucn.cli._outputs import check_outputs
from ucn.cli._report import describe_run, print_json, print_lines, say_files, say_seconds
from ucn.cli._stages import Stages


def run(
    image0: Image0,
    image1: Image1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            readable=False,
            help="Write flow: .flo (Middlebury) or .npz.",
            show_default=False,
        ),
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="Draw the flow: .png, .jpg or .webp.", show_default=False
        ),
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
        from ucn.data.io import check_image_suffix, read_image, write_image
        from ucn.data.points import FLOW_SUFFIXES, check_suffix, write_flow

        if output is not None:
            check_suffix(output, FLOW_SUFFIXES, "flow")
        if draw is not None:
            check_image_suffix(draw)
        outputs = [path for path in (output, draw) if path is not None]
        check_outputs(outputs, (image0, image1), overwrite)
        stages("reading images")
        tensors = read_image(image0), read_image(image1)
        stages("loading weights")
        matcher = _matcher.load_matcher(weights, config, device)
        stages("matching")
        flow = matcher.flow(*tensors, progress=stages)
        meta = {**describe_run(matcher), "image0": str(image0), "image1": str(image1)}
        stages("writing")
        if output is not None:
            write_flow(output, flow, meta, overwrite)
        if draw is not None:
            from ucn.viz import draw_flow

            write_image(draw, draw_flow(flow, tensors[0]), overwrite)
    seconds = stages.report()
    confidence = float(flow.confidence.mean())
    height, width = flow.confidence.shape
    if json:
        files = [str(path) for path in outputs]
        facts = {"flow_hw": [height, width], "mean_confidence": confidence}
        print_json({"command": "flow", **meta, **facts, "seconds": seconds, "outputs": files})
        return
    lines = {
        "flow": f"{width} × {height} vectors",
        "mean confidence": f"{confidence:.3f}",
        "weights": f"{matcher.weights.name}, sha256 {matcher.weights.sha256[:16]}",
        "time": say_seconds(seconds),
        "written": say_files(outputs),
    }
    print_lines(lines)
