"""Systems that optimise as methods: names, features of others, keys, and one alignment for all variants."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.evaluation_cases import ColourExtractor, make_method, write_sequence
from support.trunk_cases import make_arrays, write_npz
from ucn.config import ModelConfig
from ucn.errors import ConfigError
from ucn.evaluate.core.methods import OPTIMISERS, MethodFiles, list_methods, load_methods
from ucn.evaluate.core.preparation import AS_THEY_ARE
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.pair_alignment import OnceAligned
from ucn.evaluate.points.predictions import predict_pairs
from ucn.nn import build_model
from ucn.paper import Alignment, CellFlow, DeepMatching, NearestNeighbours, SiftFlow
from ucn.paper.figures import find_systems
from ucn.types import FeatureMap
from ucn.weights import save_weights


@pytest.fixture(autouse=True)
def no_sample_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)


def test_names() -> None:
    assert set(OPTIMISERS) == {"sift-flow", "dsp", "deepmatching"}
    assert {*OPTIMISERS, "pixel-sift", "nn-transfer", "surf"} <= set(list_methods())
    quick = load_methods(None)
    measured = {*(method.name for method in quick.methods), *quick.skipped}
    assert not measured & {*OPTIMISERS, "pixel-sift", "nn-transfer"}


def test_the_paper_knows_them() -> None:
    methods = load_methods(["sift-flow", "dsp", "deepmatching", "geometric+sift-flow", "sift"]).methods
    assert [find_systems(method) for method in methods] == [
        *(("SIFT flow",), ("DSP",), ("DeepMatching",)),
        (),  # neither the network of the paper nor SIFT flow
        ("SIFT",),
    ]


def test_features_of_others() -> None:
    methods = load_methods(["daisy", "daisy+sift-flow", "daisy+deepmatching", "deepmatching"]).methods
    plain, flow, deep, own = methods
    assert [method.name for method in methods[1:]] == [
        "daisy+sift-flow",
        "daisy+deepmatching",
        "deepmatching",
    ]
    assert flow.extractor is plain.extractor
    assert flow.matcher == SiftFlow(smoothness=0.4)
    assert (deep.matcher, own.matcher) == (DeepMatching(atom_cells=2, finest_pixels=4), DeepMatching())
    assert [method.is_nearest for method in methods] == [True, False, False, False]
    assert flow.key["features"] == plain.key
    assert flow.key["sift-flow"]["smoothness"] == 0.4
    assert plain.title in flow.title and "SIFT Flow" in flow.title


def test_all_keys_differ() -> None:
    names = [
        *OPTIMISERS,
        "pixel-sift",
        "sift",
        "sift+dsp",
        "hog+dsp",
        "sift+sift-flow",
        "pixel-sift+sift-flow",
    ]
    methods = load_methods(names).methods
    assert [method.name for method in methods] == names
    assert len({str(method.key) for method in methods}) == len(names)


def test_features_of_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    sha256 = save_weights(path, build_model(ModelConfig(dim=16)))
    loaded = load_methods(["mine+dsp"], MethodFiles(weights=[path]))
    assert [method.name for method in loaded.methods] == ["mine", "mine+dsp"]
    assert loaded.methods[1].key["features"] == {"ucn": sha256}
    trunk = write_npz(tmp_path / "trunk.npz", make_arrays())
    (method,) = load_methods(["trunk+sift-flow"], MethodFiles(trunk=trunk)).methods
    assert method.extractor.extract(torch.zeros(3, 32, 32)).map.features.shape == (1, 512, 8, 8)


def test_absent_features_are_reasons() -> None:
    loaded = load_methods(["trunk+sift-flow", "dsp"])
    assert [method.name for method in loaded.methods] == ["dsp"]
    assert "--trunk" in loaded.skipped["trunk+sift-flow"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sift+siftflow", r"did you mean 'sift\+sift-flow'"),
        ("sift-flow+sift", r"no method 'sift-flow\+sift'"),
        ("dsp+sift-flow", r"no method"),
        ("nn-transfer+dsp", r"no method"),
        ("siamese+dsp", r"no method 'siamese\+dsp'"),
        ("siamese+sift-flow", r"no method"),
        ("sift+", r"no method 'sift\+'"),
        ("mine+dsp", r"also work on features of others, as trunk\+sift-flow"),
    ],
)
def test_unknown_combinations(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        load_methods([name])


class CountingMatcher:
    """Finds the same cell again, and counts how often it is asked to align.

    Attributes:
        calls: so often.
    """

    def __init__(self) -> None:
        self.calls = 0

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        self.calls += 1
        return CellFlow(map0, map1, torch.zeros(*map0.grid_hw, 2, dtype=torch.int64), is_allowed1)


def test_pairs_are_aligned_once(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    benchmark = replace(find_benchmark("hpatches"), preparation=AS_THEY_ARE, points=20)
    entries = benchmark.open(tmp_path / "data")
    matcher = CountingMatcher()
    method = replace(make_method("still"), matcher=matcher)
    found = predict_pairs(benchmark, entries, [0, 1], [method], tmp_path / "cache")
    assert matcher.calls == 2  # of two pairs, each in two variants
    refined, on_cells = found.pairs[0].found
    assert not np.array_equal(refined, on_cells)
    points0 = found.pairs[0].points1 - (8, 4)
    assert np.allclose(on_cells, points0)  # it moves nothing
    assert all(seconds[2] > 0 for pair in found.pairs for seconds in pair.seconds)


def test_a_kept_alignment_counts_its_time() -> None:
    aligner = OnceAligned(NearestNeighbours())
    map0, map1 = (ColourExtractor().extract(torch.rand(3, 40, 48)).map for _ in range(2))
    first = aligner.align(map0, map1)
    assert aligner.saved_seconds == 0
    assert aligner.align(map0, map1) is first
    assert aligner.saved_seconds > 0
    assert aligner.align(map1, map0) is not first
    assert aligner.saved_seconds == 0
