"""The drawing of a network: what is parallel, the twin, the K-NN search and the loss."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ucn.config import ModelConfig
from ucn.nn import CorrespondenceNetwork
from ucn.nn.summary import Layer, list_layers
from ucn.viz.network import _RED, LOSSES, _Drawing, _make_plan, draw_network

INCEPTION_GREEN, POOL_BLUE, ORANGE = (0, 158, 115), (86, 180, 233), (213, 94, 0)


def make_layer(block: str, name: str = "", kind: str = "convolution", parameters: int = 10) -> Layer:
    return Layer(block, name, kind, (16, 30, 40), parameters, 4, 19)


PLAIN = [make_layer("conv1"), make_layer("pool1", parameters=0), make_layer("normalise", parameters=0)]
BRANCHES = ("conv_1x1", "reduce_3x3", "conv_3x3", "reduce_5x5", "conv_5x5", "pool_projection", "")
INCEPTION = [make_layer("inception_3a", name) for name in BRANCHES]
BRANCHED = [
    make_layer("conv1"),
    make_layer("projection"),
    make_layer("context", "entry"),
    make_layer("context", "exit"),
    make_layer("level_2", "projection"),
    make_layer("level_4", "projection"),
    make_layer("transformer"),
    make_layer("normalise", parameters=0),
    make_layer("semantic.conv1"),
    make_layer("semantic", "projection"),
    make_layer("join", parameters=0),
]
LITE = [make_layer(f"cells_{stride}", kind) for stride, kind in ((4, "a"), (8, "a"), (16, "a"))]
LITE += [make_layer("cells_8", "up"), make_layer("cells_4", "up"), make_layer("normalise")]


def count_runs(line: NDArray[np.uint8], colour: tuple[int, int, int], shade: float = 0.92) -> int:
    """How many stretches of a line of pixels have a colour, in the shade of a slab's front."""
    is_alike = (np.abs(line.astype(int) - np.round(shade * np.array(colour))) < 4).all(axis=-1)
    return int((np.diff(is_alike.astype(int), prepend=0) == 1).sum())


def has_colour(image: NDArray[np.uint8], code: str) -> bool:
    colour = [int(code[start : start + 2], 16) for start in (1, 3, 5)]
    return bool((np.abs(image.astype(int) - colour) < 6).all(axis=-1).sum() > 20)


class TestPlan:
    def test_branches_are_no_part_of_the_main_row(self) -> None:
        plan = _make_plan(BRANCHED)
        assert [block.name for block in plan.main] == [
            "conv1",
            "projection",
            "transformer",
            "normalise",
            "join",
        ]
        assert plan.context is not None and len(plan.context.layers) == 2
        assert [block.name for block in plan.levels] == ["level_2", "level_4"]
        assert [block.name for block in plan.semantic] == ["semantic.conv1", "semantic"]
        assert (plan.trunk_end, plan.sum_at, plan.lanes, plan.skips) == (1, 2, 4, [])

    def test_resolutions_that_come_again_are_skip_connections(self) -> None:
        plan = _make_plan(LITE)
        assert [block.name for block in plan.main] == [
            *("cells_4", "cells_8", "cells_16", "cells_8", "cells_4", "normalise")
        ]
        assert plan.skips == [(1, 3), (0, 4)]

    def test_every_block_of_a_network_has_its_place(self) -> None:
        config = ModelConfig(context_layers=1, levels=2, semantic_dim=16)
        with torch.device("meta"):
            layers = list_layers(CorrespondenceNetwork(config), (64, 96))
        plan = _make_plan(layers)
        assert plan.context is not None
        placed = [*plan.main, plan.context, *plan.levels, *plan.semantic]
        assert sum(len(block.layers) for block in placed) == len(layers)
        assert [block.name for block in plan.main[plan.trunk_end :]] == [
            *("head_norm", "projection", "transformer", "normalise", "join")
        ]
        assert len(plan.semantic) == 11


class TestDrawing:
    def test_inception_has_four_parallel_branches(self) -> None:
        layers = [PLAIN[0], *INCEPTION, PLAIN[-1]]
        left = round(_Drawing(_make_plan(layers), "")._lefts[1])
        drawn = draw_network(layers, "inception")
        assert count_runs(drawn[:280, left + 48], INCEPTION_GREEN) == 4
        assert count_runs(drawn[:280, left + 104], INCEPTION_GREEN) == 1  # the bar that concatenates them

    def test_transformers_in_branches_have_their_colour(self) -> None:
        layers = [PLAIN[0], *INCEPTION, PLAIN[-1]]
        layers[3] = make_layer("inception_3a", "conv_3x3", "spatial transformer 3×3")
        left = round(_Drawing(_make_plan(layers), "")._lefts[1])
        column = draw_network(layers, "inception")[:280, left + 48]
        assert count_runs(column, INCEPTION_GREEN) == 3
        assert count_runs(column, ORANGE) == 1

    def test_the_twin_has_the_same_blocks_in_pale(self) -> None:
        drawing = _Drawing(_make_plan(PLAIN), "")
        drawn = draw_network(PLAIN, "plain")
        left = round(drawing._lefts[1])
        assert count_runs(drawn[:, left + 3], POOL_BLUE) == 1
        pale = tuple(round((channel + 255) / 2) for channel in POOL_BLUE)
        below = drawn[round(drawing._twin) :, left + 3]
        assert count_runs(below, (pale[0], pale[1], pale[2])) == 1

    def test_a_row_for_each_branch(self) -> None:
        heights = [
            draw_network(layers, "").shape[0] for layers in (PLAIN, BRANCHED[:4] + PLAIN[-1:], BRANCHED)
        ]
        assert heights[1] - heights[0] == 136
        assert heights[2] - heights[0] == 4 * 136

    @pytest.mark.parametrize("loss", LOSSES)
    def test_mined_negatives_come_from_the_search(self, loss: str) -> None:
        drawing = _Drawing(_make_plan(PLAIN), "")
        drawn = draw_network(PLAIN, "plain", loss)
        middle = round((drawing._axis + drawing._twin) / 2)
        between = drawn[middle - 50 : middle + 50, round(drawing._end) + 190 : round(drawing._end) + 260]
        assert has_colour(between, _RED) == (loss != "infonce")

    def test_title(self) -> None:
        drawn = draw_network(PLAIN, "plain")
        assert (drawn == draw_network(PLAIN, "plain")).all()
        assert (drawn != draw_network(PLAIN, "another")).any()

    def test_no_projection(self) -> None:
        layers = [make_layer("conv1"), make_layer("context", "entry"), *PLAIN[-1:]]
        assert draw_network(layers, "").shape[0] > 400

    def test_unknown_loss(self) -> None:
        with pytest.raises(ValueError, match=r"loss must be one of contrastive, .*, got 'magic'"):
            draw_network(PLAIN, "", "magic")
