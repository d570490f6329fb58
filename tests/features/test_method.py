"""Loaded methods: extraction with keypoints, and the matches that each kind keeps."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ucn.features.method as method_module
from ucn.features.baselines import BASELINES
from ucn.features.classical import DenseSift
from ucn.features.method import DenseMethod, Method, MethodInfo, wrap_extractor
from ucn.features.pair_matcher import NearestNeighbours
from ucn.matching.cells import match_points
from ucn.matching.consensus import measure_consensus
from ucn.paper.registry import METHODS
from ucn.types import Features, ImageLike
from ucn.weights.table import SHIPPED, shipped_path

INFO = MethodInfo("sift", "dense SIFT", {})
SHIFT = 8


def make_pair() -> tuple[Tensor, Tensor]:
    """Two crops of a random texture; a point (x, y) of image 0 lies at (x - 8, y) in image 1."""
    coarse = torch.rand(1, 3, 16, 26, generator=torch.Generator().manual_seed(0))
    wide = F.interpolate(coarse, (96, 168), mode="bicubic", align_corners=False)[0].clamp(0, 1)
    return wide[:, :, : 168 - SHIFT].contiguous(), wide[:, :, SHIFT:].contiguous()


class OwnKeypoints(DenseSift):
    has_own_keypoints = True

    def extract(self, image: ImageLike) -> Features:
        features = super().extract(image)
        points = torch.cartesian_prod(torch.arange(26.0, 130, 8), torch.arange(26.0, 70, 8))
        return replace(features, keypoints=points)


def load_kind(kind: str) -> Method:
    if kind == "corners":
        return DenseMethod(**INFO.metadata(), extractor=DenseSift(), max_corners=100)
    if kind == "own keypoints":
        return DenseMethod(**INFO.metadata(), extractor=OwnKeypoints(), max_corners=100)
    name, _, suffix = kind.partition(" ")
    method = METHODS.find(name, kind="sparse" if suffix else "dense").load("cpu")
    assert isinstance(method, Method)
    return method


@pytest.mark.parametrize(
    "kind",
    [
        *("corners", "own keypoints", "sift", "sift sparse", "sift-ratio sparse"),
        *("geometric-lite sparse", "sift+dsp"),
    ],
)
def test_matches_are_the_shift_best_first(kind: str) -> None:
    method = load_kind(kind)
    found = method.match(*(method.extract(image) for image in make_pair()))
    assert found.points0.shape == found.points1.shape == (len(found.scores), 2)
    assert len(found.scores) >= 20
    moved = (found.points1 - found.points0)[: len(found.scores) // 2]
    assert torch.median((moved - torch.tensor([-float(SHIFT), 0.0])).norm(dim=1)) < 1
    assert (found.scores[:-1] >= found.scores[1:]).all()


def test_consensus_of_the_matcher_guides_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = DenseMethod(**INFO.metadata(), extractor=DenseSift(), max_corners=40)
    guided = replace(plain, matcher=NearestNeighbours(consensus=True))
    features = [plain.extract(image) for image in make_pair()]
    guides = []
    real = match_points

    def record(*args: Any, **settings: Any) -> Any:
        guides.append(settings["consensus"])
        return real(*args, **settings)

    monkeypatch.setattr(method_module, "match_points", record)
    expected = measure_consensus(features[0].map, features[1].map)
    for method in (plain, guided):
        assert len(method.match(features[0], features[1]).points0) > 10
    assert guides[0] is None
    assert torch.equal(guides[1].support, expected.support)


def test_corners_or_own_keypoints() -> None:
    image = make_pair()[0]
    corners, own = (
        DenseMethod(**INFO.metadata(), extractor=extractor, max_corners=7).extract(image).keypoints
        for extractor in (DenseSift(), OwnKeypoints())
    )
    assert corners.shape == (7, 2)
    assert len(own) > 7


def test_no_matches_on_a_blank_pair() -> None:
    method = BASELINES.find("sift", kind="sparse").load("cpu")
    blank = method.extract(torch.full((3, 64, 64), 0.5))
    assert method.match(blank, blank).points0.shape == (0, 2)


def test_loaders_give_the_metadata() -> None:
    info = replace(INFO, dim=128, stride=4, max_side=99, loader=wrap_extractor(DenseSift()))
    method = info.load("cpu")
    assert method.metadata() == info.metadata()
    assert method.load("cpu").max_side == 99


_COUNT = """
import sys
import ucn.weights.store as store

calls = []
load_weights = store.load_weights
def count(name):
    calls.append(name)
    return load_weights(name)
store.load_weights = count
import ucn.weights
ucn.weights.load_weights = count

from typer.testing import CliRunner
from ucn.cli.app import app

result = CliRunner().invoke(app, sys.argv[1:])
is_expected = result.exit_code == 0 or "model" in result.output  # two images of a plane make no model
assert is_expected, (result.output, result.exception)
assert len(calls) == 1, calls
loaded = {name for name in sys.modules if name.startswith(("ucn.evaluate", "ucn.paper"))}
assert loaded <= {"ucn.paper", "ucn.paper.names"}, loaded  # the names alone
heavy = {"onnxruntime", "kornia", "mahotas"} & set(sys.modules)
assert not heavy, heavy
others = ("classical", "disk", "hog", "pixel_sift", "surf", "trunk", "vgg", "xfeat")
loaded = {f"ucn.features.{name}" for name in others} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "source"), [("extract", "name"), ("extract", "file"), ("reconstruct", "name")]
)
def test_folder_commands_load_weights_once_and_nothing_of_evaluate_or_paper(
    command: str, source: str, tmp_path: Path
) -> None:
    if command == "reconstruct":
        pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
    (tmp_path / "images").mkdir()
    for number, image in enumerate(make_pair()):
        pixels = (image.permute(1, 2, 0) * 255).byte().numpy()
        PIL.Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / "images" / f"{number}.png")
    name = "geometric-lite"
    weights = name if source == "name" else str(shipped_path(SHIPPED[name]))
    output = tmp_path / ("features.h5" if command == "extract" else "model")
    arguments = [command, str(tmp_path / "images"), "-o", str(output), "--weights", weights]
    subprocess.run([sys.executable, "-c", _COUNT, *arguments, "--device", "cpu"], check=True, timeout=300)
    assert output.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["ucn.features.extractor", "ucn.paper.registry", "ucn.folders.reconstruction"]
)
def test_modules_import_neither_evaluate_nor_optional_packages(module: str) -> None:
    code = (
        f"import sys, {module}; names = set(sys.modules); "
        "found = {'onnxruntime', 'kornia', 'mahotas', 'pycolmap'} & names; "
        "found |= {n for n in names if n.startswith('ucn.evaluate')}; assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
