"""The comparison of losses: its estimates by hand, and a tiny run of the whole."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from photo_cases import make_photo
from ucn.geometry.sampling import sample_descriptors
from ucn.nn import build_model
from ucn.train.step import encode_pair
from ucn.types import PairBatch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loss_comparison", BENCHMARKS / "loss_comparison.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_variance_and_mean_by_hand(script: ModuleType) -> None:
    # Mean (2, 1), deviations (∓1, 0): variance 2, squared mean 5 - 2 / 2.
    vectors = [torch.tensor([1.0, 1.0]), torch.tensor([3.0, 1.0])]
    assert script.estimate_spread(vectors) == pytest.approx((2.0, 4.0))


def test_estimates_have_no_bias(script: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([0.3, 0.0, -0.4])  # squared length 0.25, lost in a variance of 3
    estimates = [
        script.estimate_spread(mean + torch.randn(8, 3, generator=generator).double()) for _ in range(4000)
    ]
    variance, squared_mean = torch.tensor(estimates).mean(dim=0).tolist()
    assert variance == pytest.approx(3.0, rel=0.02)
    assert squared_mean == pytest.approx(0.25, abs=0.03)


def test_a_patch_is_all_that_the_network_sees_of_its_point(script: ModuleType) -> None:
    model = build_model(script.MODEL)
    image = make_photo(160, 160)[None]
    point = torch.tensor([[[82.0, 74.0]]])  # the centre of a cell
    cut = script.cut_patches(image, point, 42.0)
    assert cut.shape == (1, 3, 84, 84)
    torch.testing.assert_close(cut[0, :, 42, 42], image[0, :, 74, 82])
    none = torch.zeros(1, 1, dtype=torch.bool)
    with torch.no_grad():
        whole, _ = encode_pair(model, PairBatch(image, image, point, point, none, ("a",)))
        patch, _ = encode_pair(model, PairBatch(cut, cut, point, point, none, ("a",)))
        expected = sample_descriptors(whole, point)
        seen = sample_descriptors(patch, torch.full((1, 1, 2), 42.0))
    torch.testing.assert_close(seen, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_a_tiny_run_writes_everything(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    command = [sys.executable, str(BENCHMARKS / "loss_comparison.py"), "--tiny", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "-o", str(folder)], check=True, capture_output=True, timeout=120, env=environment
    )
    results = json.loads((folder / "loss_comparison.json").read_text(encoding="utf-8"))
    methods = [run["method"] for run in results["runs"]]
    assert [name.split(",")[0] for name in methods[:3]] == ["Siamese", "triplet", "one-example contrastive"]
    assert [run["points"] for run in results["runs"]] == [1, 1, 1, 10, 1, 10]
    assert set(results["gradients"]) == set(methods)
    for run in results["runs"]:
        assert len(run["curve"]) == 3 and run["curve"][0]["seconds"] == 0
        assert run["curve"][-1]["seconds"] >= 0.1 and run["curve"][-1]["steps"] >= 1
        assert results["gradients"][run["method"]]["variance"] > 0
    table = (folder / "loss_comparison.md").read_text(encoding="utf-8").splitlines()
    assert len(table) == 2 + len(methods) and all(line.count("|") == table[0].count("|") for line in table)
