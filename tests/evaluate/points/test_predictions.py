"""Stage 1: the right points of the right view, each image described once, nothing made twice."""

import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from support.evaluation_cases import (
    SHIFT_XY,
    BlankExtractor,
    ColourExtractor,
    make_method,
    write_ramp,
    write_sequence,
)
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import ORIGINAL_SIZE, BenchmarkPair
from ucn.evaluate.points import predictions
from ucn.evaluate.points.benchmarks import Benchmark, find_benchmark
from ucn.evaluate.points.predictions import Predictions, find_points, predict_points, sample_points
from ucn.features.method import DenseMethod
from ucn.features.pair_matcher import Alignment, NearestNeighbours
from ucn.paper.cell_flow import CellFlow
from ucn.types import FeatureMap

SMALL = replace(find_benchmark("hpatches"), preparation=ORIGINAL_SIZE, points=40)


@pytest.fixture
def pairs(tmp_path: Path) -> list[BenchmarkPair]:
    for name in ("i_one", "v_two"):
        write_sequence(tmp_path / "data", name)
    return SMALL.open(tmp_path / "data")


def run(
    pairs: list[BenchmarkPair],
    cache: Path,
    methods: Sequence[DenseMethod] | None = None,
    benchmark: Benchmark = SMALL,
    chosen: Sequence[int] = (0, 1, 5),
    seed: int = 0,
    module: ModuleType = predictions,
) -> Predictions:
    methods = methods or [make_method()]
    result = module.predict_points(benchmark, pairs, list(chosen), methods, cache, seed=seed)
    assert isinstance(result.pairs, tuple)
    return result  # type: ignore[no-any-return]


def check_shift(pairs: list[BenchmarkPair], cache: Path, module: ModuleType = predictions) -> None:
    """Both variants find the shifted places, and truth is told in image 1."""
    found = run(pairs, cache, module=module)
    assert [variant.use_refinement for variant in found.variants] == [True, False]
    for pair in found.pairs:
        assert pair.points1.shape == (40, 2)
        assert (pair.points1 >= SHIFT_XY).all()
        # Between cells to a fraction of a pixel, on cells to some half a cell along each axis.
        # Beyond the outermost centres the outermost cell answers, so those are left out.
        inner = ((pair.points1 >= (10, 6)) & (pair.points1 <= (61, 45))).all(axis=1)
        assert inner.sum() > 20
        refined, on_cells = (np.abs(points - pair.points1)[inner] for points in pair.predicted)
        assert refined.max() < 0.3
        assert 1 < on_cells.max() <= 3.1


def test_both_variants_find_the_shift(pairs: list[BenchmarkPair], tmp_path: Path) -> None:
    check_shift(pairs, tmp_path / "cache")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"points1": sample.points1.numpy()', '"points1": sample.points0.numpy()'),
        ("features[0],\n                    features[1],", "features[1],\n                    features[0],"),
        ("prepared.sample.points0,", "prepared.sample.points1,"),
        (
            "variant.use_refinement,\n                    matcher",
            "not variant.use_refinement,\n                    matcher",
        ),
    ],
    ids=["truth of the other view", "views swapped", "points of the other view", "refinement swapped"],
)
def test_swapped_views_are_noticed(
    pairs: list[BenchmarkPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    source = inspect.getsource(predictions)
    assert source.count(old) == 1, f"predictions.py no longer has one '{old}'"
    broken = ModuleType("broken_predictions")
    monkeypatch.setitem(sys.modules, broken.__name__, broken)  # dataclasses look their module up
    exec(compile(source.replace(old, new), "predictions with a fault", "exec"), broken.__dict__)
    with pytest.raises(AssertionError):
        check_shift(pairs, tmp_path / "cache", broken)


def test_each_image_is_described_once(pairs: list[BenchmarkPair], tmp_path: Path) -> None:
    extractor = ColourExtractor()
    found = run(pairs, tmp_path, [make_method(extractor=extractor)], chosen=range(10))
    # Image 1 of both sequences is the same picture, and so are all the others.
    assert extractor.calls == 2
    described = [pair.seconds[0][1] + pair.seconds[1][1] for pair in found.pairs]
    assert described == [2, *[0] * 9]


def test_a_second_run_predicts_nothing(pairs: list[BenchmarkPair], tmp_path: Path) -> None:
    first = run(pairs, tmp_path)
    extractor = ColourExtractor()
    again = run(pairs, tmp_path, [make_method(extractor=extractor)])
    assert extractor.calls == 0
    assert again.points_sha256 == first.points_sha256
    for one, other in zip(first.pairs, again.pairs, strict=True):
        assert np.array_equal(one.predicted[0], other.predicted[0])
        assert np.array_equal(one.predicted[1], other.predicted[1])
    run(pairs, tmp_path, [make_method(extractor=extractor)], chosen=(0, 1, 2, 5))
    assert extractor.calls == 2


def test_an_interrupted_run_resumes(pairs: list[BenchmarkPair], tmp_path: Path) -> None:
    class Interrupt(ColourExtractor):
        def extract(self, image: object) -> object:  # type: ignore[override]
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().extract(image)  # type: ignore[arg-type]

    write_ramp(tmp_path / "data" / "v_two" / "6.png", (8, 5))  # a third picture
    with pytest.raises(KeyboardInterrupt):
        run(pairs, tmp_path / "cache", [make_method(extractor=Interrupt())], chosen=range(10))
    kept = list((tmp_path / "cache" / "hpatches").glob("colour-refined-*/*.npz"))
    assert len(kept) == 1
    extractor = ColourExtractor()
    found = run(pairs, tmp_path / "cache", [make_method(extractor=extractor)], chosen=range(10))
    assert len(found.pairs) == 10
    # The first four pairs were kept: what is left are the third picture and the two others.
    assert extractor.calls == 3


@pytest.mark.parametrize("what", ["seed", "points", "file", "method"])
def test_what_a_prediction_depends_on_is_in_its_key(
    pairs: list[BenchmarkPair], tmp_path: Path, what: str
) -> None:
    run(pairs, tmp_path / "cache")
    extractor = ColourExtractor()
    method, benchmark, seed = make_method(extractor=extractor), SMALL, 0
    if what == "seed":
        seed = 1
    elif what == "points":
        benchmark = replace(SMALL, points=41)
    elif what == "method":
        method = replace(method, key={"synthetic": "otherwise"})
    else:
        with (tmp_path / "data" / "i_one" / "H_1_2").open("a") as file:
            file.write("\n")
    run(pairs, tmp_path / "cache", [method], benchmark, seed=seed)
    assert extractor.calls == 2


@pytest.mark.parametrize("is_lines", [False, True], ids=["csv", "json lines"])
def test_edited_own_points_are_predicted_again(tmp_path: Path, is_lines: bool) -> None:
    folder = tmp_path / "data"
    for name in "ab":
        write_ramp(folder / f"{name}.png")
    sides = {"pairs.csv": "image0,image1,points\na.png,b.png,p.csv\n", "p.csv": "x0,y0,x1,y1\n9,9,9,9\n"}
    if is_lines:
        line = {"image0": "a.png", "image1": "b.png", "points0": [[9, 9]], "points1": [[9, 9]]}
        sides = {"pairs.jsonl": json.dumps(line)}
    for name, text in sides.items():
        (folder / name).write_text(text)
    own = find_benchmark("own")
    asked = [run(own.open(folder), tmp_path, benchmark=own, chosen=[0]).pairs[0].points1.tolist()]
    *_, last = sides
    (folder / last).write_text(sides[last].replace("9", "8"))  # as long as before
    asked.append(run(own.open(folder), tmp_path, benchmark=own, chosen=[0]).pairs[0].points1.tolist())
    assert asked == [[[9, 9]], [[8, 8]]]


def test_predictions_of_other_weights_are_refused(pairs: list[BenchmarkPair], tmp_path: Path) -> None:
    run(pairs, tmp_path)
    (folder,) = (tmp_path / "hpatches").glob("colour-refined-*")
    key = json.loads((folder / "key.json").read_text())
    assert key["method"] == {"synthetic": "colour"}
    (folder / "key.json").write_text(json.dumps({**key, "method": {"ucn": "ab" * 32}}))
    with pytest.raises(DataError, match=r'another key, .*"abab.* expected .*"synthetic"'):
        run(pairs, tmp_path)


def test_points_depend_on_seed_and_name_alone() -> None:
    rows = sample_points(1000, 20, 0, "v_wall/1-2")
    assert rows.tolist() == sample_points(1000, 20, 0, "v_wall/1-2").tolist()
    assert len(set(rows.tolist())) == 20
    assert rows.tolist() != sample_points(1000, 20, 1, "v_wall/1-2").tolist()
    assert rows.tolist() != sample_points(1000, 20, 0, "v_wall/1-3").tolist()
    assert len(sample_points(7, 20, 0, "")) == 7
    assert len(sample_points(0, 20, 0, "")) == 0


def test_padding_cannot_match() -> None:
    features = BlankExtractor().extract(torch.zeros(3, 40, 48))
    points = torch.tensor([[20.0, 20.0]])
    whole = find_points(features, features, points, (0, 0, 48, 40), use_refinement=False)
    assert whole.tolist() == [[2, 2]]  # of equal cells the first
    picture = find_points(features, features, points, (11, 15, 30, 40), use_refinement=False)
    assert picture.tolist() == [[14, 18]]  # the first whose centre is on the picture
    nothing = find_points(features, features, points, (11, 15, 13, 17), use_refinement=True)
    assert np.isnan(nothing.numpy()).all()


def test_all_points_are_predicted_without_a_limit(pairs: list[BenchmarkPair], tmp_path: Path) -> None:
    found = run(pairs, tmp_path, benchmark=replace(SMALL, points=None), chosen=[0])
    assert len(found.pairs[0].points1) == (64 - SHIFT_XY[0]) * (48 - SHIFT_XY[1])


def test_progress(pairs: list[BenchmarkPair], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    predict_points(
        SMALL,
        pairs,
        [3, 4],
        [make_method()],
        tmp_path,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 2), (2, 2)]


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
    benchmark = replace(find_benchmark("hpatches"), preparation=ORIGINAL_SIZE, points=20)
    pairs = benchmark.open(tmp_path / "data")
    matcher = CountingMatcher()
    method = replace(make_method("still"), matcher=matcher)
    found = predict_points(benchmark, pairs, [0, 1], [method], tmp_path / "cache")
    assert matcher.calls == 2  # of two pairs, each in two variants
    refined, on_cells = found.pairs[0].predicted
    assert not np.array_equal(refined, on_cells)
    points0 = found.pairs[0].points1 - (8, 4)
    assert np.allclose(on_cells, points0)  # it moves nothing
    assert all(seconds[2] > 0 for pair in found.pairs for seconds in pair.seconds)


def test_a_kept_alignment_counts_its_time() -> None:
    aligner = predictions._LastAlignment(NearestNeighbours())
    features0, features1 = (ColourExtractor().extract(torch.rand(3, 40, 48)) for _ in range(2))
    first = aligner(features0, features1)
    assert aligner.saved_seconds == 0
    assert aligner(features0, features1) is first
    assert aligner.saved_seconds > 0
    assert aligner(features1, features0) is not first
    assert aligner.saved_seconds == 0
