"""The Siamese network: what a patch is, what a pair costs, and decisions recomputed slowly."""

import math

import pytest
import torch
from torch import Tensor

from support.photo_cases import make_photo
from ucn.errors import ConfigError
from ucn.nn import GoogLeNetTrunk
from ucn.paper.siamese import SiameseConfig, build_siamese, cut_patches
from ucn.paper.siamese.network import STRIDES, DecisionNetwork

TINY = SiameseConfig(patch=32, cell_channels=4, dim=6, hidden=(5, 3))


def decide_slowly(decision: DecisionNetwork, one: list[float], other: list[float]) -> float:
    """One decision, number by number."""
    scaled = [(a * math.sqrt(len(one)), b * math.sqrt(len(one))) for a, b in zip(one, other, strict=True)]
    if decision.fusion == "comparison":
        values = [a * b for a, b in scaled] + [abs(a - b) for a, b in scaled]
    else:
        values = [a for a, _ in scaled] + [b for _, b in scaled]
    for layer in (decision.first, decision.second, decision.last):
        rows, biases = layer.weight.tolist(), layer.bias.tolist()
        values = [
            sum(w * v for w, v in zip(row, values, strict=True)) + bias
            for row, bias in zip(rows, biases, strict=True)
        ]
        if layer is not decision.last:
            values = [max(0.0, value) for value in values]
    return float(values[0])


def test_pixels_of_a_patch_by_hand() -> None:
    image = torch.arange(5 * 7, dtype=torch.float32).view(1, 1, 5, 7).expand(1, 3, 5, 7)
    (patch,) = cut_patches(image, torch.tensor([[[3.0, 2.0]]]), 4)[0]
    # Rows 0 to 3, columns 1 to 4: the point is pixel (2, 2) of its patch.
    expected = torch.tensor([[1, 2, 3, 4], [8, 9, 10, 11], [15, 16, 17, 18], [22, 23, 24, 25.0]])
    assert torch.allclose(patch[0], expected, atol=1e-4)
    (corner,) = cut_patches(image, torch.tensor([[[0.0, 0.0]]]), 4)[0]
    expected = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [7, 7, 7, 8.0]])
    assert torch.allclose(corner[1], expected, atol=1e-4)
    (between,) = cut_patches(image, torch.tensor([[[3.5, 2.0]]]), 4)[0]
    assert torch.allclose(between[2], patch[2] + 0.5, atol=1e-4)


def test_patches_of_two_images_and_of_none() -> None:
    images = torch.stack([make_photo(40, 50, seed=0), make_photo(40, 50, seed=1)])
    points = torch.tensor(
        [[[10.0, 11.0], [30.2, 20.7], [49.0, 39.0]], [[3.0, 4.0], [20.0, 20.0], [40.0, 3.0]]]
    )
    patches = cut_patches(images, points, 32)
    assert patches.shape == (2, 3, 3, 32, 32)
    for row in range(2):
        for column in range(3):
            alone = cut_patches(images[row][None], points[row, column][None, None], 32)[0, 0]
            assert torch.equal(alone, patches[row, column])
    assert cut_patches(images, points[:, :0], 32).shape == (2, 0, 3, 32, 32)


@pytest.mark.parametrize("fusion", ["comparison", "concatenation"])
def test_decisions_against_a_slow_reference(fusion: str) -> None:
    config = SiameseConfig.from_dict(TINY.to_dict() | {"fusion": fusion})
    decision = build_siamese(config, torch.Generator().manual_seed(1)).decision
    generator = torch.Generator().manual_seed(2)
    for layer in (decision.first, decision.second, decision.last):
        torch.nn.init.normal_(layer.bias, generator=generator)
    one, other = torch.randn(4, 6, generator=generator), torch.randn(3, 6, generator=generator)
    with torch.no_grad():
        found = decision(one[:, None], other[None])
    assert found.shape == (4, 3)
    slow = [[decide_slowly(decision, a, b) for b in other.tolist()] for a in one.tolist()]
    assert torch.allclose(found, torch.tensor(slow), atol=1e-4)
    with torch.no_grad():
        is_symmetric = torch.allclose(decision(other[None], one[:, None]), found, atol=1e-5)
    assert is_symmetric == (fusion == "comparison")


@pytest.mark.parametrize("side", [32, 48, 64])
def test_a_descriptor_for_every_patch_whatever_comes_beside_it(side: int) -> None:
    model = build_siamese(SiameseConfig(patch=side, dim=16)).eval()
    patches = torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model.branch(patches)
        assert torch.allclose(found[1:2], model.branch(patches[1:2]), atol=1e-5)
    assert found.shape == (3, 16)
    assert torch.allclose(found.norm(dim=1), torch.ones(3), atol=1e-5)


def test_the_whole_network_is_two_branches_and_a_decision() -> None:
    model = build_siamese(TINY).eval()
    patches = torch.rand(2, 5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected: Tensor = model.decision(model.branch(patches[0]), model.branch(patches[1]))
        assert torch.allclose(model(patches[0], patches[1]), expected, atol=1e-6)
        assert model(patches[0, :0], patches[1, :0]).shape == (0,)


def test_the_trunk_has_the_budget_of_the_network() -> None:
    model = build_siamese(SiameseConfig())
    assert model.branch.trunk.strides == STRIDES == (2, 2, 2, 2)
    count = sum(parameter.numel() for parameter in model.branch.trunk.parameters())
    assert count == sum(parameter.numel() for parameter in GoogLeNetTrunk().parameters()) == 1_053_024


def test_random_weights_follow_the_generator_alone() -> None:
    state = torch.random.get_rng_state()
    first, second = build_siamese(TINY), build_siamese(TINY)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = build_siamese(TINY, torch.Generator().manual_seed(5))
    assert not torch.equal(first.decision.first.weight, other.decision.first.weight)


@pytest.mark.parametrize(
    ("values", "match"),
    [({"patch": 40}, "multiple of 16"), ({"patch": 16}, "at least 32"), ({"dim": 0}, "at least 1")],
)
def test_sizes_that_make_no_network(values: dict[str, int], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SiameseConfig.from_dict(values)
