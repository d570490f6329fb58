"""Matches that methods keep: which they are, and what they are worth."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import ucn
from support.evaluation_cases import SHIFT_XY, BlankExtractor, ColourExtractor, make_method, write_sequence
from ucn.config import MatchConfig
from ucn.data.bundled import Motorcycle
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.matches.predictions import HPATCHES, MatchedPair, find_keypoints, predict_matches
from ucn.evaluate.matches.report import run_matches
from ucn.evaluate.matches.scoring import LIMITS, compare_homographies, match_errors, score_matches
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.predictions import prepare_pair
from ucn.features.lightglue import LightGlueMethod, SizedKeypoints
from ucn.features.method import LoadedMethods, Method
from ucn.matching.cells import CONSENSUS_GAP, CONSENSUS_RADIUS, CONSENSUS_WEIGHT
from ucn.matching.consensus import Consensus
from ucn.matching.guided import match_guided
from ucn.matching.matcher import Matcher
from ucn.paper.registry import METHODS
from ucn.types import Features, ImageLike

# The canvas of HPatches shows the synthetic sequence ten times enlarged.
SHIFT = 10 * np.array(SHIFT_XY, np.float64)


class GridExtractor(ColourExtractor):
    """Has keypoints of its own, every 40 pixels."""

    has_own_keypoints = True

    def extract(self, image: ImageLike) -> Features:
        found = super().extract(image)
        spots = torch.cartesian_prod(torch.arange(20.0, 640, 40), torch.arange(20.0, 480, 40))
        return replace(found, keypoints=spots)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("i_one", "v_two"):
        write_sequence(tmp_path / "data", name)
    return tmp_path / "data"


def test_matches_are_mutual_and_kept(folder: Path, tmp_path: Path) -> None:
    pairs = find_benchmark("hpatches").open(folder)
    method = make_method(extractor=GridExtractor())
    (pair, _) = predict_matches([method], [0, 7], pairs, tmp_path / "cache")["colour"]
    assert len(pair.keypoints0) == len(pair.keypoints1) == 16 * 12
    truth = np.array([[1, 0, SHIFT[0]], [0, 1, SHIFT[1]], [0, 0, 1]])
    assert np.allclose(pair.true_0to1 / pair.true_0to1[2, 2], truth, atol=1e-3)
    for points, keypoints in ((pair.points0, pair.keypoints0), (pair.points1, pair.keypoints1)):
        matched = {*map(tuple, points.tolist())}
        assert matched <= {*map(tuple, keypoints.tolist())} and len(matched) == len(points)
    errors = match_errors(pair)
    assert (errors <= 3).mean() > 0.8  # of the keypoints that image 1 does not show some match by chance
    again = GridExtractor()
    predict_matches([make_method(extractor=again)], [0, 7], pairs, tmp_path / "cache")
    assert again.calls == 0


class EveryPixel:
    """Keypoints on a row of the image, padding included, and a matcher that pairs equal rows."""

    device = torch.device("cpu")

    def extract(self, image: Tensor) -> SizedKeypoints:
        x = torch.arange(0.0, image.shape[-1], 0.25)
        points = torch.stack([x, torch.full_like(x, 240)], dim=1)
        return SizedKeypoints(points, points, -x, (image.shape[-2], image.shape[-1]))

    def __call__(self, images: dict[str, dict[str, Tensor]]) -> dict[str, list[Tensor]]:
        rows = torch.arange(images["image0"]["keypoints"].shape[1])
        return {"matches": [torch.stack([rows, rows], dim=1)], "scores": [-rows.float()]}


def test_methods_with_a_matcher_of_their_own(folder: Path, tmp_path: Path) -> None:
    own: Any = EveryPixel()
    method = LightGlueMethod(name="own", title="", key={"own": 1}, extractor=own, matcher=own)
    pairs = find_benchmark("hpatches").open(folder)
    (pair,) = predict_matches([method], [0], pairs, tmp_path / "cache")["own"]
    assert len(pair.keypoints0) == len(pair.keypoints1) == 1000  # the strongest, none in the padding
    left = max(0.0, pair.content0[0] - 0.5)
    assert pair.keypoints0[0].tolist() == [math.ceil(4 * left) / 4, 240]
    assert pair.points0.tolist() == pair.keypoints0.tolist()
    assert pair.points1.tolist() == pair.keypoints1.tolist()
    report = run_matches(folder, LoadedMethods[Method]([method]), RunSettings(tmp_path / "cache", limit=1))
    assert [info.name for info in report.methods] == ["own"]
    assert "LightGlue's and DISK, which have the 1,000 strongest keypoints" in report.protocol[2]


def test_keypoints_are_corners_unless_a_method_has_its_own() -> None:
    image = torch.zeros(3, 60, 60)
    image[:, 20:40, 20:40] = 1
    extractor = ColourExtractor()
    corners = find_keypoints(extractor, image, extractor.extract(image))
    assert 4 <= len(corners) < 30
    assert torch.pdist(corners).min() >= 5
    own = GridExtractor()
    assert len(find_keypoints(own, image, own.extract(image))) == 192


def make_pair(
    errors: list[float], group: str = "viewpoint", shift: tuple[float, float] = (7.0, 0.0)
) -> MatchedPair:
    """Matches on a circle with errors in pixels, between images of 100 × 80 moved by a shift."""
    angles = np.linspace(0, 6, len(errors))
    points0 = np.stack([45 + 30 * np.cos(angles), 40 + 30 * np.sin(angles)], axis=-1).astype(np.float32)
    points1 = (points0 + shift + np.stack([errors, np.zeros(len(errors))], axis=-1)).astype(np.float32)
    truth = np.array([[1, 0, shift[0]], [0, 1, shift[1]], [0, 0, 1]], np.float64)
    pair = BenchmarkPair(Motorcycle(), 0, group, group, group)
    whole = (0, 0, 100, 80)
    scored = np.zeros((0, 5), np.float32)
    return MatchedPair(pair, truth, whole, whole, points0, points1, points0, points1, scored)


def test_figures_by_hand() -> None:
    pairs = [make_pair([0.0, 0, 0, 0, 0, 0, 4, 20]), make_pair([], "illumination")]
    one, two, both = score_matches("m", pairs)
    assert [figure.group for figure in (one, two, both)] == ["viewpoint", "illumination", "all"]
    assert one.mma == pytest.approx((6 / 8, 7 / 8, 7 / 8))
    assert both.mma == pytest.approx((3 / 8, 7 / 16, 7 / 16))
    assert (one.matches, both.matches) == (8, 4)
    assert (one.failures, two.failures, both.failures) == (0, 1, 0.5)
    assert two.auc == (0, 0, 0)
    assert one.curve[9] == one.mma[2] and len(one.curve) == 10
    assert two.covered == 0 < one.covered < 0.6
    assert one.repeatable == pytest.approx(7 * 2 / 16, abs=0.13)
    assert math.isnan(two.repeatable) and math.isnan(one.calibration_error)


def test_calibration_of_scores_by_hand() -> None:
    pair = make_pair([0.0] * 8)
    points0 = pair.points0[:4]
    # Moved by 7 px: three of four are within 3 px of it.
    points1 = points0 + np.array([[7, 0], [9.9, 0], [7, 2.9], [10.1, 0]], np.float32)
    scores = np.array([0.95, 0.95, 0.45, 0.45], np.float32)
    scored = np.concatenate([points0, points1, scores[:, None]], axis=1)
    (figure,) = score_matches("m", [replace(pair, scored=scored)])
    # Two bins of two: 0.95 of 1, and 0.45 of a half.
    assert figure.calibration_error == pytest.approx(0.05)
    both = score_matches("m", [replace(pair, scored=scored), make_pair([0.0])])
    assert both[0].calibration_error == pytest.approx(0.05)


def choose_slowly(similarities: Tensor, support: Tensor, points: Tensor) -> list[int]:
    """Reference of the choice among candidates, one query at a time."""
    chosen = []
    for own, backing in zip(similarities.tolist(), support.tolist(), strict=True):
        best = max(range(len(own)), key=own.__getitem__)
        far = [j for j in range(len(own)) if (points[j] - points[best]).norm() > CONSENSUS_RADIUS]
        lead = own[best] - max((own[j] for j in far), default=-1.0)
        weight = CONSENSUS_WEIGHT * math.exp(-lead / CONSENSUS_GAP)
        winner = max(range(len(own)), key=lambda j: own[j] + weight * backing[j])
        chosen.append(winner if winner in far else best)
    return chosen


def test_guided_matches_equal_the_reference() -> None:
    generator = torch.Generator().manual_seed(3)
    descriptors = [F.normalize(torch.rand(n, 4, generator=generator), dim=1) for n in (70, 50)]
    points = [torch.rand(n, 2, generator=generator) * 60 for n in (70, 50)]
    support = torch.rand(4, 5, 3, 6, generator=generator)
    consensus = Consensus(support, 4, 4, 1.5)
    similarities = descriptors[0] @ descriptors[1].t()
    pairs = torch.tensor(
        [[float(consensus.read_pairs(p[None], q[None])) for q in points[1]] for p in points[0]]
    )
    forward = choose_slowly(similarities, pairs, points[1])
    backward = choose_slowly(similarities.t(), pairs.t(), points[0])
    expected = [j if backward[j] == i else -1 for i, j in enumerate(forward)]
    found = match_guided(descriptors[0], descriptors[1], points[0], points[1], consensus)
    assert found.tolist() == expected
    plain = similarities.argmax(dim=1).tolist()
    assert forward != plain  # consensus decides somewhere
    none = torch.zeros(0, 4), torch.zeros(0, 2)
    assert match_guided(none[0], descriptors[1], none[1], points[1], consensus).tolist() == []
    assert match_guided(descriptors[0], none[0], points[0], none[1], consensus).tolist() == [-1] * 70


@pytest.mark.slow
def test_networks_have_scores_and_consensus(folder: Path, tmp_path: Path) -> None:
    loaded = METHODS.load_dense(["geometric-lite", "geometric-lite+nearest", "sift"])
    report = run_matches(folder, LoadedMethods(loaded.methods), RunSettings(tmp_path / "cache", limit=1))
    errors = [row["calibration_error"] for row in report.rows]
    assert [math.isnan(error) for error in errors] == [False, False, True]
    assert [row[-1] for row in report.tables[0].rows][-1] == "–"
    (line,) = [line for line in report.protocol if line.startswith("neighbourhood consensus")]
    assert line.startswith("neighbourhood consensus: geometric-lite; where a second candidate")


def test_homographies_leave_wrong_matches_out() -> None:
    (figure,) = score_matches("m", [make_pair([0.0] * 12 + [40, 50, 60])])
    assert figure.auc == pytest.approx((1, 1, 1), abs=1e-3)
    # All moved by 4 px, the corners too: the curve rises to 1 at 4 px and stays there.
    (figure,) = score_matches("m", [make_pair([4.0] * 12)])
    assert figure.auc == pytest.approx((0, (2 + 1) / 5, (2 + 6) / 10), abs=1e-2)


def test_views_are_not_swapped() -> None:
    pair = make_pair([0.0] * 8, shift=(30.0, -10.0))
    swapped = replace(pair, points0=pair.points1, points1=pair.points0)
    assert score_matches("m", [pair])[0].mma == (1, 1, 1)
    assert score_matches("m", [swapped])[0].mma == (0, 0, 0)
    assert score_matches("m", [swapped])[0].auc == (0, 0, 0)
    crossed = replace(pair, points1=pair.points1[::-1])
    assert score_matches("m", [crossed])[0].mma[0] < 0.3


def test_keypoints_outside_the_other_image_do_not_count_for_repeatability() -> None:
    pair = make_pair([0.0] * 8, shift=(60.0, 0.0))
    far = replace(
        pair,
        keypoints0=np.array([[10, 10], [90, 10]], np.float32),
        keypoints1=np.array([[70, 10]], np.float32),
    )
    figure = score_matches("m", [far])[0]
    assert figure.repeatable == 1  # (90, 10) would lie at (150, 10)


def test_corners_are_those_of_the_image() -> None:
    # On a canvas with a margin, a homography about the margin's corner is as good as one about the canvas's.
    pair = make_pair([0.0] * 8)
    margin = np.array([40, 20], np.float32)
    moved = replace(
        pair,
        points0=pair.points0 + margin,
        points1=pair.points1 + margin,
        content0=(40, 20, 140, 100),
        content1=(40, 20, 140, 100),
    )
    assert score_matches("m", [moved])[0].auc == pytest.approx((1, 1, 1), abs=1e-3)


def test_comparison_by_hand() -> None:
    sure = [make_pair([0.0] * 12) for _ in range(4)]
    moved = [make_pair([1.5] * 12) for _ in range(4)]
    scores = [score_matches(name, own)[0] for name, own in (("first", sure), ("second", moved))]
    scores.append(replace(scores[0], method="third", corners=(math.nan, math.inf, 0.0, 0.0)))
    first, second, third = compare_homographies(scores, ["a", "a", "b", "b"])
    assert first.lead == (0, 0, 0) and first.intervals == ((0, 0),) * 3
    assert (first.median, second.median) == pytest.approx((0, 1.5), abs=1e-4)
    # All four pairs are off by 1.5 px: the curve rises to 1/4 until there, and jumps to 1.
    assert second.lead == pytest.approx([1.5 * (1 - 1 / 8) / limit for limit in LIMITS], abs=1e-3)
    assert second.intervals[0] == pytest.approx((0.4375, 0.4375), abs=1e-3)
    # Sequence a fails: a resample of two sequences has it never, once or twice.
    assert third.lead == pytest.approx((0.5, 0.5, 0.5), abs=1e-3)
    assert third.intervals[0] == pytest.approx((0, 1), abs=1e-3)
    assert math.isinf(third.median)


def test_networks_match_as_the_matcher_does(folder: Path, tmp_path: Path) -> None:
    photograph = Image.open(Path(ucn.__file__).parent / "data" / "pictures" / "coffee.jpg")
    for number, left in ((1, 0), (2, 6)):
        photograph.crop((left, 0, left + 160, 120)).save(folder / "v_two" / f"{number}.png")
    (folder / "v_two" / "H_1_2").write_text("1 0 -6\n0 1 0\n0 0 1\n")
    pairs = find_benchmark("hpatches").open(folder)
    methods = METHODS.load_dense(["geometric-lite"]).methods
    (pair,) = predict_matches(methods, [0], pairs, tmp_path / "cache")["geometric-lite"]
    matcher = methods[0].extractor
    assert isinstance(matcher, Matcher)
    sample = prepare_pair(HPATCHES, pairs[0], seed=0).sample
    features0, features1 = matcher.extract(sample.image0), matcher.extract(sample.image1)
    features0 = replace(features0, keypoints=torch.from_numpy(pair.keypoints0))
    masks = []
    for left, top, right, bottom in (pair.content0, pair.content1):
        masks.append(np.zeros((480, 640), np.bool_))
        masks[-1][top:bottom, left:right] = True
    expected = matcher.with_config(MatchConfig(max_side=None)).match_features(
        features0, features1, mask0=masks[0], mask1=masks[1]
    )
    assert len(pair.points0) == len(expected) > 20
    assert np.median(match_errors(pair)) < 0.5  # pixels of a canvas of four times the size
    np.testing.assert_allclose(pair.points0, expected.points0)
    np.testing.assert_allclose(pair.points1, expected.points1, atol=1e-3)
    assert len(pair.scored) == len(pair.keypoints0) >= len(pair.points0)


def test_run(folder: Path, tmp_path: Path) -> None:
    class Whole:
        """Matches images, not points."""

    whole = replace(make_method("whole"), matcher=Whole())  # type: ignore[arg-type]
    loaded = LoadedMethods([make_method(extractor=GridExtractor()), whole], {"x": "no"})
    settings = RunSettings(tmp_path / "cache", limit=4, command="ucn evaluate")
    report = run_matches(folder, loaded, settings)
    assert [table.title[:9] for table in report.tables] == ["viewpoint", "illuminat", "all, 4 pa"]
    assert report.skipped == {
        "x": "no",
        "whole": "it matches whole images, and has no descriptors of keypoints",
    }
    assert report.rows[-1]["mma_10"] > 0.8
    assert "4 pairs of 10, evenly spread" in report.protocol[0]
    assert report.plots[0].png.startswith(b"\x89PNG")


def test_no_match_at_all(folder: Path, tmp_path: Path) -> None:
    class Blind(BlankExtractor):
        has_own_keypoints = True

        def extract(self, image: ImageLike) -> Features:
            return replace(super().extract(image), keypoints=torch.zeros(0, 2))

    loaded = LoadedMethods([make_method("blind", Blind())])
    with pytest.raises(DataError, match="no method found a match in the 1 pairs"):
        run_matches(folder, loaded, RunSettings(tmp_path / "cache", limit=1))
