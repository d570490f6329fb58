"""A drawing of the network: one slab per block, sized by its feature map and its channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from ucn.nn.summary import Layer
from ucn.viz.canvas import INK, PAPER
from ucn.viz.colours import OKABE_ITO, ImageArray

_BLOCK_WIDTH, _MARGIN, _LINE = 118, 24, 17
_TALLEST, _SLANT = 210, 0.32
_COLOURS = {"context": 0, "level": 0, "pool": 1, "inception": 2, "conv": 3, "projection": 3, "normalise": 4}
_COLOURS |= {"transformer": 5, "head_norm": 6, "semantic": 0, "join": 4}
"""Prefix of a block's name to its colour."""
_SEMANTIC = "semantic."  # before the names of blocks of the semantic level's trunk


@dataclass(frozen=True)
class _Block:
    name: str
    layers: tuple[Layer, ...]

    @property
    def last(self) -> Layer:
        return self.layers[-1]

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)


def draw_network(layers: Sequence[Layer], title: str) -> ImageArray:
    """Draws the blocks of a network from left to right.

    Args:
        layers: from `list_layers`.
        title: above the drawing.

    Returns:
        (H, W, 3) uint8.
    """
    blocks = _group(layers)
    width = 2 * _MARGIN + _BLOCK_WIDTH * len(blocks)
    height = 2 * _MARGIN + 2 * _LINE + _TALLEST + 5 * _LINE
    image = PIL.Image.new("RGB", (width, height), PAPER)
    draw = PIL.ImageDraw.Draw(image)
    draw.text((_MARGIN, _MARGIN), title, font=PIL.ImageFont.load_default(size=17), fill=INK)
    largest = max(block.last.shape[1] for block in blocks)
    floor = _MARGIN + 2 * _LINE + _TALLEST
    font = PIL.ImageFont.load_default(size=12)
    for number, block in enumerate(blocks):
        left = _MARGIN + number * _BLOCK_WIDTH
        _draw_slab(draw, left, floor, block, largest)
        channels, h, w = block.last.shape
        lines = (
            _label(block),
            f"{channels} x {h} x {w}",  # Pillow's default font has no multiplication sign
            f"{block.parameters:,} parameters" if block.parameters else "no parameters",
            f"stride {block.last.stride} px",
            f"field {block.last.receptive_field} px",
        )
        for line, text in enumerate(lines):
            draw.text((left, floor + 8 + line * _LINE), text, font=font, fill=INK)
        if number:
            middle = floor - _TALLEST // 3
            draw.line((left - 26, middle, left - 8, middle), fill=INK, width=2)
            draw.polygon([(left - 8, middle - 4), (left - 8, middle + 4), (left - 1, middle)], fill=INK)
    return np.array(image)


def _group(layers: Sequence[Layer]) -> list[_Block]:
    names = dict.fromkeys(layer.block for layer in layers)
    return [_Block(name, tuple(layer for layer in layers if layer.block == name)) for name in names]


def _draw_slab(draw: PIL.ImageDraw.ImageDraw, left: int, floor: int, block: _Block, largest: int) -> None:
    """Draws a box whose height follows the feature map and whose thickness follows the channels."""
    channels, h, _ = block.last.shape
    tall = _TALLEST * 0.72 * math.sqrt(h / largest)
    thick = 6 + 4.2 * math.log2(max(channels, 2))
    slant = tall * _SLANT
    red, green, blue = OKABE_ITO[_choose_colour(block)]
    top = floor - tall
    front = [(left, top), (left + thick, top), (left + thick, floor), (left, floor)]
    roof = [
        (left, top),
        (left + slant, top - slant),
        (left + thick + slant, top - slant),
        (left + thick, top),
    ]
    side = [
        (left + thick, top),
        (left + thick + slant, top - slant),
        (left + thick + slant, floor - slant),
        (left + thick, floor),
    ]
    for face, shade in ((roof, 1.0), (side, 0.82), (front, 0.92)):
        colour = (round(red * shade), round(green * shade), round(blue * shade))
        draw.polygon(face, fill=colour, outline=INK)


def _choose_colour(block: _Block) -> int:
    kind = block.name.removeprefix(_SEMANTIC)
    return next((colour for name, colour in _COLOURS.items() if kind.startswith(name)), 3)


def _label(block: _Block) -> str:
    """Its name; context, pyramid levels and the semantic level run beside the others, and are added."""
    is_beside = block.name.startswith(("context", "level", "semantic"))
    return f"+ {block.name.removeprefix(_SEMANTIC)}" if is_beside else block.name
