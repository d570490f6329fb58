"""``ucn flow``: dense correspondence between two images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ucn.cli import _options as opt
from ucn.cli._command import PairCommand
from ucn.cli._outputs import Output


@opt.expand_options
def run(
    image0: opt.Image0,
    image1: opt.Image1,
    output: Annotated[Path | None, opt.output_option("Write the flow: .flo (Middlebury) or .npz.")] = None,
    draw: Annotated[Path | None, opt.path_option("Draw the flow: .png, .jpg or .webp.")] = None,
    *,
    options: opt.PairOptions,
) -> None:
    """Find the position in B of every pixel of A."""
    if output is None and draw is None:
        raise typer.BadParameter("nothing to write: give -o FILE.flo, -o FILE.npz or --draw FILE.png")
    with PairCommand("flow", options) as command:
        from ucn.data.points import FLOW_SUFFIXES, write_flow

        command.check_outputs(Output(output, "flow", FLOW_SUFFIXES), Output(draw), inputs=(image0, image1))
        command.check_images(image0, image1)
        from ucn.data.io import to_pixels, write_image
        from ucn.viz import draw_flow

        matcher = command.load_matcher()
        flow = matcher.flow(image0, image1, progress=command.stages)
        height, width = flow.confidence.shape
        mean_confidence = float(flow.confidence.mean())
        command.summary |= {"flow_hw": [height, width], "mean_confidence": mean_confidence}
        command.write(
            {
                output: lambda path: write_flow(path, flow, command.run),
                draw: lambda path: write_image(path, draw_flow(flow, to_pixels(image0))),
            }
        )
    command.report({"flow": f"{width} × {height} vectors", "mean confidence": f"{mean_confidence:.3f}"})
