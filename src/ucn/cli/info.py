"""``ucn info``: the layers of a network."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli import _options as opt
from ucn.cli._outputs import Output, check_files
from ucn.cli._report import print_json, print_lines, print_table

if TYPE_CHECKING:
    from ucn.nn.summary import Layer
    from ucn.weights import LoadedWeights


def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="Shipped weights by name, or a .safetensors file.")
    ] = "geometric",
    size: Annotated[str, typer.Option(metavar="WxH", help="Image size for the output shapes.")] = "640x480",
    draw: Annotated[Path | None, opt.path_option("Draw the network: .png, .jpg or .webp.")] = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """List the layers of a network: output shapes, parameters, strides and receptive fields."""
    from ucn.weights import check_weights

    image_hw = _parse_size(size)
    outputs = [] if draw is None else [draw]
    check_files([Output(draw)], [], overwrite)
    check_weights(name)
    from ucn.data.io import write_image
    from ucn.nn.summary import list_layers
    from ucn.viz.network import draw_network
    from ucn.weights import load_weights

    loaded = load_weights(name)
    layers = list_layers(loaded.model, image_hw)
    if draw is not None:
        title = f"{name}: feature maps of an image of {image_hw[1]} × {image_hw[0]} pixels"
        picture = draw_network(layers, title, _find_loss(loaded))
        write_image(draw, picture, overwrite=overwrite)
    summary = _summarise(loaded, layers)
    if json:
        rows = [asdict(layer) for layer in layers]
        print_json(
            {"command": "info", "name": name, **summary, "layers": rows, "outputs": list(map(str, outputs))}
        )
        return
    _print_table(name, layers, image_hw)
    print_lines({key.replace("_", " "): f"{value}" for key, value in summary.items()})
    if draw is not None:
        typer.echo(f"written: {draw}")


def _parse_size(text: str) -> tuple[int, int]:
    from ucn.config import MIN_SIDE
    from ucn.errors import ConfigError

    found = re.fullmatch(r"([0-9]{1,5})[x×]([0-9]{1,5})", text)
    if found is None:
        raise ConfigError(f"--size must be WIDTHxHEIGHT such as 640x480, got '{text[:40]}'")
    width, height = int(found[1]), int(found[2])
    if min(width, height) < MIN_SIDE:
        raise ConfigError(f"--size must be at least {MIN_SIDE} px a side, got {width}x{height}")
    return height, width


def _find_loss(loaded: LoadedWeights) -> str:
    """The loss that the weights were trained with; where the file does not say, the paper's."""
    from ucn.viz.network import LOSSES

    loss = loaded.training.get("loss")
    kind = loss.get("kind") if isinstance(loss, dict) else None
    return kind if isinstance(kind, str) and kind in LOSSES else "contrastive"


def _summarise(loaded: LoadedWeights, layers: list[Layer]) -> dict[str, object]:
    model = loaded.model
    return {
        "parameters": sum(layer.parameters for layer in layers),
        "dimensions": layers[-1].shape[0],
        "stride_px": model.stride,
        "offset_px": model.offset,
        "receptive_field_px": layers[-1].receptive_field,
        "reach_px": model.reach,
        "file_bytes": loaded.info.file_bytes,
        "sha256": loaded.info.sha256,
    }


def _print_table(name: str, layers: list[Layer], image_hw: tuple[int, int]) -> None:
    header = ("layer", "kind", "channels × h × w", "parameters", "stride, px", "receptive field, px")
    rows = [
        (
            layer.title,
            layer.kind,
            " × ".join(map(str, layer.shape)),
            f"{layer.parameters:,}",
            f"{layer.stride}",
            f"{layer.receptive_field}",
        )
        for layer in layers
    ]
    title = f"{name}, an image of {image_hw[1]} × {image_hw[0]} pixels"
    print_table(header, rows, title=title, text_columns=2)
