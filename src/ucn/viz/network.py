"""A drawing of the network in training: parallel branches, the Siamese twin, the K-NN search and the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ucn.nn.summary import Layer
from ucn.viz.colours import OKABE_ITO, ImageArray
from ucn.viz.diagram import Colour, Point, Sheet

_MARGIN, _GAP, _ICON = 24, 44, (84, 63)
_NARROW, _COLUMN, _WIDE = 106, 124, 138  # widths of columns: pools, other blocks, Inception
_TALLEST, _TEXT, _LANE, _TWIN = 150, 96, 136, 170
_AXIS = 62  # height of the arrows of a row above its floor
_ARC = 18  # between skip connections above the main row
_COLOURS = {"context": 0, "level": 0, "pool": 1, "inception": 2, "conv": 3, "projection": 3, "normalise": 4}
_COLOURS |= {"transformer": 5, "head_norm": 6, "semantic": 0, "join": 4, "stem": 3, "cells": 2}
"""Prefix of a block's name to its colour."""
_SEMANTIC = "semantic."  # before the names of blocks of the semantic level's trunk
_AFTER_SUM = ("transformer", "normalise")
_AFTER_TRUNK = ("head_norm", "projection", *_AFTER_SUM)
_BRANCHES = {"conv_1x1": "1×1", "conv_3x3": "3×3", "conv_5x5": "5×5", "pool_projection": "pool"}
_HARD = "hard negatives"
_BLUE, _RED = "#0072b2", "#d03020"
LOSSES = {
    "contrastive": ("contrastive loss", _HARD),
    "one_contrastive": ("contrastive loss", _HARD),
    "triplet": ("triplet loss", _HARD),
    "infonce": ("InfoNCE loss", "all other positions"),
}
"""Kinds of losses, as `LossConfig.kind`, with their names and negatives."""


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

    @property
    def colour(self) -> Colour:
        kind = self.name.removeprefix(_SEMANTIC)
        return OKABE_ITO[next((number for name, number in _COLOURS.items() if kind.startswith(name)), 3)]

    @property
    def pale(self) -> Colour:
        """The colour, halfway to white."""
        red, green, blue = (round((channel + 255) / 2) for channel in self.colour)
        return red, green, blue

    @property
    def column(self) -> float:
        """Width of its column in the drawing."""
        is_inception = any(layer.name in _BRANCHES for layer in self.layers)
        return _WIDE if is_inception else _COLUMN if self.parameters else _NARROW

    @property
    def thickness(self) -> float:
        """In the drawing: grows with the channels."""
        return 6 + 4.2 * math.log2(max(self.last.shape[0], 2))


@dataclass(frozen=True)
class _Plan:
    """The blocks by their place in the graph.

    Attributes:
        main: one after the other, from the image to the descriptors.
        context: from the features, added after the projection.
        levels: the same trunk at reduced sizes, added there, too.
        semantic: one after the other, from the image, joined with the descriptors.
        trunk_end: index of the first block of `main` after the trunk.
        sum_at: index of the block of `main` before which branches are added.
    """

    main: tuple[_Block, ...]
    context: _Block | None
    levels: tuple[_Block, ...]
    semantic: tuple[_Block, ...]
    trunk_end: int
    sum_at: int

    @property
    def lanes(self) -> int:
        """Number of rows of branches below the main row."""
        return (self.context is not None) + len(self.levels) + bool(self.semantic)

    @property
    def skips(self) -> list[tuple[int, int]]:
        """Pairs of blocks of `main` at equal resolution, the first of which is added to the second."""
        names = [block.name for block in self.main]
        pairs = ((names.index(name), number) for number, name in enumerate(names))
        return [(first, second) for first, second in pairs if first < second]


def draw_network(layers: Sequence[Layer], title: str, loss: str = "contrastive") -> ImageArray:
    """Draws a network as it is trained: both images pass through it, and a loss compares their descriptors.

    Blocks are slabs, as tall as their feature maps and as thick as their channels are many. Branches that run
    in parallel are drawn in parallel.

    Args:
        layers: from `list_layers`.
        title: above the drawing.
        loss: as `LossConfig.kind`.

    Returns:
        (H, W, 3) uint8.

    Raises:
        ValueError: the loss is unknown.
    """
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got '{loss}'")
    plan = _make_plan(layers)
    return _Drawing(plan, title).draw(LOSSES[loss])


def _make_plan(layers: Sequence[Layer]) -> _Plan:
    blocks = [_Block(name, tuple(own)) for name, own in groupby(layers, key=lambda layer: layer.block)]
    branches = [block for block in blocks if block.name.startswith(("context", "level", "semantic"))]
    main = tuple(block for block in blocks if block not in branches)
    return _Plan(
        main,
        next((block for block in branches if block.name == "context"), None),
        tuple(block for block in branches if block.name.startswith("level")),
        tuple(block for block in branches if block.name.startswith("semantic")),
        next(number for number, block in enumerate(main) if block.name in _AFTER_TRUNK),
        next(number for number, block in enumerate(main) if block.name in _AFTER_SUM),
    )


class _Drawing:
    """Places the blocks of a plan on a sheet, row by row."""

    def __init__(self, plan: _Plan, title: str) -> None:
        self._plan = plan
        self._largest = max(block.last.shape[1] for block in plan.main)
        self._lefts, self._end = self._place_columns()
        self._floor = _MARGIN + 64 + _TALLEST + _ARC * len(plan.skips)
        self._axis = self._floor - _AXIS
        self._lanes_top = self._floor + _TEXT + 10
        self._frame_bottom = self._lanes_top + _LANE * plan.lanes
        self._twin = self._frame_bottom + _TWIN / 2 + 14
        self._sheet = Sheet(self._end + 440, self._frame_bottom + _TWIN + _MARGIN)
        self._sheet.write(_MARGIN, _MARGIN, title, size=15)

    def draw(self, loss: tuple[str, str]) -> ImageArray:
        """The whole drawing."""
        left, top = self._lefts[0] - 16, _MARGIN + 26
        width, height = self._end - left, self._frame_bottom - top
        self._sheet.box(left, top, width, height, colour="white", is_dashed=True)
        begin = self._draw_main()
        self._draw_lanes()
        self._draw_twin()
        self._draw_training(begin, *loss)
        return self._sheet.render()

    def _place_columns(self) -> tuple[list[float], float]:
        """Where the blocks of the main row begin, and where the row ends; nodes need room, too."""
        lefts, x = [], _MARGIN + _ICON[0] + 52.0
        for number, block in enumerate(self._plan.main):
            if self._has_node(number):
                # Branches run below the projection, or below nothing where there is none.
                is_alone = block.name != "join" and self._plan.main[number - 1].name != "projection"
                x += _GAP + _COLUMN * is_alone
            lefts.append(x)
            x += block.column
        return lefts, x

    def _has_node(self, number: int) -> bool:
        """Whether branches end before a block of the main row."""
        plan = self._plan
        has_sum = plan.context is not None or bool(plan.levels)
        return (has_sum and number == plan.sum_at) or plan.main[number].name == "join"

    def _draw_main(self) -> float:
        """The network from image 0 to its descriptors; returns where the last block ends."""
        self._draw_image(self._axis, "image 0", is_second=False)
        begin = float(_MARGIN + _ICON[0])
        for number, (block, left) in enumerate(zip(self._plan.main, self._lefts, strict=True)):
            if self._has_node(number):
                node = left - _GAP
                self._sheet.arrow([(begin + 4, self._axis), (node - 10, self._axis)])
                self._sheet.node(node, self._axis, "c" if block.name == "join" else "+")
                begin = node + 6
            self._sheet.arrow([(begin + 4, self._axis), (left - 3, self._axis)])
            begin = self._draw_block(block, left, self._floor)
            self._sheet.write_lines(left, self._floor + 8, _describe(block))
        for level, (first, second) in enumerate(self._plan.skips):
            y = self._floor - _TALLEST - 8 - _ARC * level
            start, end = (self._lefts[number] + 26 for number in (first, second))
            tops = [self._floor - 1.25 * self._find_height(self._plan.main[first])] * 2
            self._sheet.arrow([(start, tops[0]), (start, y), (end, y), (end, tops[1])])
        return begin

    def _find_height(self, block: _Block) -> float:
        return 0.72 * _TALLEST * math.sqrt(block.last.shape[1] / self._largest)

    def _draw_block(self, block: _Block, left: float, floor: float, scale: float = 1.0) -> float:
        """Draws a block, and returns where its arrow begins."""
        parallel = [layer for layer in block.layers if layer.name in _BRANCHES]
        if parallel and scale == 1.0:
            return self._draw_inception(parallel, left, block)
        return self._sheet.slab(
            left, floor, scale * self._find_height(block), scale * block.thickness, block.colour
        )

    def _draw_inception(self, branches: Sequence[Layer], left: float, block: _Block) -> float:
        """The parallel branches of an Inception block, concatenated at the bar at the right."""
        split, bar, tall = left + 4, left + 100, 22.0
        tops = [self._axis + (number - 1.5) * 32 for number in range(len(branches))]
        self._sheet.line([(left - 3, self._axis), (split, self._axis)])
        self._sheet.line([(split, tops[0]), (split, tops[-1])])
        for branch, y in zip(branches, tops, strict=True):
            thick = 3 + 2.6 * math.log2(max(branch.shape[0], 2))
            self._sheet.line([(split, y), (left + 46, y)])
            has_transformer = branch.kind.startswith("spatial transformer")
            colour = OKABE_ITO[_COLOURS["transformer"]] if has_transformer else block.colour
            end = self._sheet.slab(left + 46, y + tall / 2, tall * 0.8, thick, colour)
            self._sheet.line([(end, y), (bar, y)])
            self._sheet.write(left + 9, y - 8, _BRANCHES[branch.name], size=9.5)
        self._sheet.slab(bar, self._axis + 62, 124, 8, block.colour, is_flat=True)
        return bar + 8

    def _draw_image(self, axis: float, name: str, is_second: bool) -> None:
        """A picture with a point; the second one has the same point, and a wrong one."""
        width, height = _ICON
        top = axis - height / 2
        self._sheet.picture(_MARGIN, top, width, height)
        self._sheet.write(_MARGIN + width / 2, top - 12, name, anchor="center", is_bold=True)
        self._sheet.dot(_MARGIN + (30 if is_second else 26), top + 24, _BLUE)
        if is_second:
            self._sheet.dot(_MARGIN + 62, top + 42, _RED)

    def _draw_lanes(self) -> None:
        """The branches, each in a row of its own."""
        plan, lane = self._plan, 0
        node = self._lefts[plan.sum_at] - _GAP
        column = node - _COLUMN
        image = (_MARGIN + _ICON[0] / 2, self._axis + _ICON[1] / 2)
        if plan.context is not None:
            self._draw_lane(lane, [plan.context], [column], (column - 16, self._axis), node)
            lane += 1
        for level in plan.levels:
            y = self._find_lane_axis(lane)
            begin, end = self._lefts[0], min(self._lefts[plan.trunk_end], column) - 30
            factor = level.name.removeprefix("level_")
            text = ("the same trunk", f"on the image at 1/{factor} of its size")
            self._sheet.box(begin, y - 28, end - begin, 56, text)
            self._sheet.arrow([image, (image[0], y), (begin - 1, y)])
            self._draw_lane(lane, [level], [column], (end, y), node)
            lane += 1
        if plan.semantic:
            step = (self._lefts[-1] - _GAP - 20 - self._lefts[0]) / len(plan.semantic)
            lefts = [self._lefts[0] + number * min(step, _COLUMN) for number in range(len(plan.semantic))]
            self._draw_lane(lane, plan.semantic, lefts, image, self._lefts[-1] - _GAP)

    def _find_lane_axis(self, lane: int) -> float:
        return self._lanes_top + lane * _LANE + 36

    def _draw_lane(
        self, lane: int, blocks: Sequence[_Block], lefts: Sequence[float], start: Point, node: float
    ) -> None:
        """A branch from a point of the main row, or of its own, to a node there."""
        y = self._find_lane_axis(lane)
        path = [start, (start[0], y)] if start[1] != y else [start]
        for block, left in zip(blocks, lefts, strict=True):
            self._sheet.arrow([*path, (left - 3, y)])
            path = [(self._draw_block(block, left, y + 26, 0.55) + 4, y)]
            self._sheet.write_lines(left, y + 31, _describe_briefly(block))
        self._sheet.arrow([*path, (node, y), (node, self._axis + 11)])

    def _draw_twin(self) -> None:
        """The second image, through the same network."""
        y, left = self._twin, self._lefts[0] - 16
        self._draw_image(y, "image 1", is_second=True)
        self._sheet.arrow([(_MARGIN + _ICON[0] + 4, y), (left - 1, y)])
        self._sheet.box(left, y - 56, self._end - left, 112, colour="white", is_dashed=True)
        for block, x in zip(self._plan.main, self._lefts, strict=True):
            self._sheet.slab(x, y + 42, 0.45 * self._find_height(block), 0.45 * block.thickness, block.pale)
        text = "Siamese twin: the same network, with the same weights"
        self._sheet.write(left + 16, y - 38, text, is_bold=True)
        for x in (left + 60, self._end - 60):
            self._sheet.line([(x, self._frame_bottom), (x, y - 56)], is_dashed=True)
        middle = (self._frame_bottom + y - 56) / 2
        self._sheet.write(left + 70, middle, "shared weights")

    def _draw_training(self, begin: float, loss: str, negatives: str) -> None:
        """Descriptors of both images, the K-NN search and the loss."""
        middle = (self._axis + self._twin) / 2
        knn, box = self._end + 105, self._end + 345
        for y, start, side in ((self._axis, begin + 4, -1), (self._twin, self._end, 1)):
            number = 0 if side < 0 else 1
            self._sheet.write(self._end + 12, y + 14 * side, f"descriptors {number}", is_bold=True)
            for x in (knn, box):
                self._sheet.arrow([(start, y), (x, y), (x, middle + side * 52)])
        text = ("K-NN search", "the nearest descriptor", "of image 1: the match")
        self._sheet.box(knn - 80, middle - 50, 160, 100, text)
        self._sheet.box(box - 80, middle - 50, 160, 100)
        self._sheet.write(box, middle - 32, loss, anchor="center", is_bold=True)
        self._sheet.write(box, middle - 12, "at known correspondences", size=10, anchor="center")
        self._sheet.write(box, middle + 12, "positives: closer", anchor="center", colour=_BLUE)
        self._sheet.write(box, middle + 32, f"{negatives}: apart", size=10.5, anchor="center", colour=_RED)
        if negatives == _HARD:
            self._sheet.arrow([(knn + 80, middle + 32), (box - 81, middle + 32)], _RED)
            for line, words in enumerate(_HARD.split()):
                self._sheet.write((knn + box) / 2, middle + 2 + 15 * line, words, 10, "center", _RED)


def _describe(block: _Block) -> tuple[str, ...]:
    """Lines of text below a block."""
    return (
        block.name,
        " × ".join(map(str, block.last.shape)),
        _count(block),
        f"stride {block.last.stride} px",
        f"field {block.last.receptive_field:,} px",
    )


def _describe_briefly(block: _Block) -> tuple[str, ...]:
    """Lines of text below a block of a branch; those of the semantic level's trunk are like the main ones."""
    name, shape, count, stride, field = _describe(block)
    if name.startswith(_SEMANTIC):
        return name.removeprefix(_SEMANTIC), shape, stride
    return name, shape, count, field


def _count(block: _Block) -> str:
    if not block.parameters:
        return "no parameters"
    large = block.parameters >= 1e6
    return f"{block.parameters / 1e6:.2f} M parameters" if large else f"{block.parameters:,} parameters"
