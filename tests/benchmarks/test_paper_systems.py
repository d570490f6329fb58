"""The made pairs on which systems rebuilt from papers are judged."""

from types import ModuleType

import pytest
import torch

from support.benchmark_scripts import load_script
from ucn.geometry.sampling import sample_image
from ucn.paper.registry import METHODS


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("paper_systems")


@pytest.mark.parametrize("name", ["flat", "copies", "tiles"])
def test_ground_truth_is_exact(script: ModuleType, name: str) -> None:
    case = script.CASES[name]()
    colours = sample_image(case.image1[None], case.points1[None, None], "border")[0, :, 0]
    rows, columns = case.points0[:, 1].long(), case.points0[:, 0].long()
    torch.testing.assert_close(colours, case.image0[:, rows, columns], atol=1e-4, rtol=0)
    height, width = case.image1.shape[1:]
    inside = (case.points1 >= 0) & (case.points1 <= torch.tensor([width - 1, height - 1]))
    assert inside.all() and len(case.points0) >= 32


def test_what_is_hidden_is_hidden(script: ModuleType) -> None:
    flat = script.CASES["flat"]()
    rows, columns = flat.points0[:, 1].long(), flat.points0[:, 0].long()
    assert flat.image0[:, rows, columns].std() < 1e-6
    copies = script.CASES["copies"]().image1
    assert torch.equal(copies[:, 36:124, 152:240], copies[:, 36:124, 16:104])


def test_every_system_is_judged(script: ModuleType) -> None:
    assert script.OWN_CASES.keys() == METHODS.systems.keys()
    assert {*script.OWN_CASES.values()} == {*script.CASES}
    assert script.behaves(0.9, 0.6)
    assert not script.behaves(0.89, 0.1) and not script.behaves(1.0, 0.61)
