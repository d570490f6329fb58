"""Matching and non-matching pairs, their cached scores, and the results computed from them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from support.evaluation_cases import (
    BlankExtractor,
    make_method,
    share_with_copies,
    write_ramp,
    write_sequence,
)
from ucn.config import MatchConfig, ModelConfig
from ucn.data.bundled import MINI_IMAGES
from ucn.errors import DataError
from ucn.evaluate.core import predictions as core_predictions
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.pair_score.drawn import VARIANTS, Drawn, Photograph, pair_drawn
from ucn.evaluate.pair_score.predictions import (
    BIRDS,
    ONE_SIZE,
    OWN_SIZES,
    LabelledPair,
    PairScores,
    choose_pairs,
    digest_labelled,
    list_pairs,
    predict_scores,
)
from ucn.evaluate.pair_score.report import describe_groups, run_pair_score
from ucn.evaluate.pair_score.scoring import score_separation
from ucn.features.method import DenseMethod, LoadedMethods
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.types import Features, Matches, PairSample
from ucn.weights import save_weights

GROUP = "HPatches: same or other scene"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("i_one", "v_three", "v_two")):
        write_sequence(tmp_path / "data" / "planes", name, (4 * number, 4))
    return tmp_path / "data"


def test_half_of_the_pairs_match(folder: Path) -> None:
    every = list_pairs(folder)
    pairs = [pair for pair in every if pair.group == GROUP]
    assert pairs == every[:30]
    for pair in pairs:
        assert isinstance(pair.image0, Path) and isinstance(pair.image1, Path)
        assert (pair.image0.parent == pair.image1.parent) == pair.is_match
        assert pair.image0.stem == "1"
    assert sum(pair.is_match for pair in pairs) == 15
    limited = [pairs[row] for row in choose_pairs(pairs, 6)]
    assert [pair.is_match for pair in limited] == [True, False] * 6
    assert len({str(Path(str(pair.image0)).parent) for pair in limited}) == 3
    assert choose_pairs(pairs, None) == list(range(30))
    assert choose_pairs(every, None) == list(range(len(every)))


def test_drawn_images_match_nothing(folder: Path) -> None:
    drawn = list_pairs(folder)[30:]
    counts = Counter(pair.group for pair in drawn)
    assert counts == {
        f"{a} and {b}": 100
        for a, b in (
            *(("noise", "noise"), ("noise", "blank"), ("noise", "pattern"), ("noise", "photograph")),
            *(("blank", "blank"), ("blank", "pattern"), ("blank", "photograph")),
            *(("pattern", "pattern"), ("pattern", "photograph"), ("photograph", "photograph")),
        )
    }
    assert not any(pair.is_match for pair in drawn)
    assert len(choose_pairs(drawn, 4)) == 10 * 4
    assert drawn == list_pairs(folder)[30:]
    for pair in drawn:
        images = (pair.image0, pair.image1)
        kinds = sorted(_find_kind(image) for image in images)
        assert kinds == sorted(pair.group.split(" and "))
        if pair.group == "pattern and pattern":
            assert len({image.variant for image in images if isinstance(image, Drawn)}) == 2
        if pair.group == "photograph and photograph":
            assert len({image.path for image in images if isinstance(image, Photograph)}) == 2
    assert digest_labelled(drawn) == digest_labelled(list(drawn))
    first, last = drawn[0], drawn[-1]
    assert isinstance(first.image0, Drawn)
    others = [replace(first, image0=replace(first.image0, seed=1)), replace(first, group="x")]
    assert len({digest_labelled([pair]) for pair in (first, last, *others)}) == 4


def test_photographs_that_match_nothing(folder: Path) -> None:
    """Those of a folder `photos` are used, too, but not the last 106, on which scores were fitted."""
    names = [f"{number:03d}.png" for number in range(108)]
    for name in names:
        write_ramp(folder / "photos" / name, size_hw=(40, 48))
    used = {
        image.path.name
        for pair in list_pairs(folder)
        for image in (pair.image0, pair.image1)
        if isinstance(image, Photograph)
    }
    assert used == {"1.png", *(path.name for path in MINI_IMAGES), *names[:2]}
    one = pair_drawn([folder / "photos" / names[0]])
    assert "noise and photograph" in dict(one) and "photograph and photograph" not in dict(one)
    assert not any("photograph" in group for group, _ in pair_drawn([]))


def _find_kind(image: Path | Drawn | Photograph) -> str:
    if isinstance(image, Drawn):
        assert all(160 <= side <= 320 for side in image.size_hw)
        return next(kind for kind, variants in VARIANTS.items() if image.variant in variants)
    assert isinstance(image, Photograph) and image.path.is_file() and 160 <= image.side <= 320
    return "photograph"


@pytest.mark.parametrize("variant", [variant for variants in VARIANTS.values() for variant in variants])
def test_drawings(variant: str) -> None:
    image = Drawn(variant, 3, (160, 200)).render()
    assert image.shape == (3, 160, 200) and image.dtype == torch.float32
    assert image.min() >= 0 and image.max() <= 1
    assert torch.equal(image, Drawn(variant, 3, (160, 200)).render())
    flat = image.flatten(1)
    is_grey = torch.equal(image[0], image[1]) and torch.equal(image[0], image[2])
    match variant:
        case "black" | "white":
            assert flat.unique().tolist() == [float(variant == "white")]
        case "grey":
            assert is_grey and len(flat.unique()) == 1
        case "gradient":  # from edge to edge in small steps
            assert image.diff(dim=1).abs().max() < 0.02 and image.diff(dim=2).abs().max() < 0.02
            assert image.std() > 0.02
        case "gaussian grey" | "gaussian colour":
            assert float(image.mean()) == pytest.approx(0.5, abs=0.01)
            assert float(image.std()) == pytest.approx(0.2, abs=0.01)
            assert is_grey == variant.endswith("grey")
        case "uniform grey" | "uniform colour":
            assert float(image.std()) == pytest.approx(12**-0.5, abs=0.01)
            assert is_grey == variant.endswith("grey")
        case _:  # two colours, both frequent
            colours, counts = flat.unique(dim=1, return_counts=True)
            assert colours.shape == (3, 2)
            assert counts.min() > 0.1 * counts.sum()
    if variant not in ("black", "white"):
        assert not torch.equal(image, Drawn(variant, 4, (160, 200)).render())


def test_patterns_by_hand() -> None:
    # A quarter of a right angle and so on would hide errors; the seed's own turn and period are used.
    generator = torch.Generator().manual_seed(9)
    period, turn = torch.rand(2, generator=generator).tolist()
    step, angle = 8 + 32 * period, turn * np.pi / 2
    image = Drawn("checkerboard", 9, (170, 160)).render()[0]
    dark = float(image.min())
    for x, y in ((0, 0), (31, 7), (77, 140), (159, 169)):
        u = (np.cos(angle) * x + np.sin(angle) * y) / step
        v = (np.cos(angle) * y - np.sin(angle) * x) / step
        is_dark = (int(np.floor(u)) + int(np.floor(v))) % 2 == 0
        assert (float(image[y, x]) == dark) == is_dark


def test_real_pairs(data_folder: Path) -> None:
    pairs = [pair for pair in list_pairs(data_folder) if isinstance(pair.image0, Path)]
    assert len(choose_pairs(pairs, 7)) == 4 * 14
    groups = dict.fromkeys(pair.group for pair in pairs)
    assert list(groups) == [GROUP, "CUB: same or other kind of bird", ONE_SIZE, OWN_SIZES]
    for pair in pairs:
        assert isinstance(pair.image0, Path) and isinstance(pair.image1, Path)
        if pair.group in (ONE_SIZE, OWN_SIZES):
            assert ("hpatches" in pair.image1.parts) != pair.is_match
        else:
            assert (pair.image0.parent == pair.image1.parent) == pair.is_match
        assert pair.use_one_size == (pair.group == ONE_SIZE)
        assert (pair.read is not None) == (pair.group == BIRDS and pair.is_match)


def test_one_size_means_one_size(tmp_path: Path, untrained: DenseMethod) -> None:
    """Whether a pair matches must not be told by the sizes of its images."""
    small = write_ramp(tmp_path / "small.png", size_hw=(40, 48))
    large = write_ramp(tmp_path / "large.png", size_hw=(96, 160))
    seen: list[tuple[int, int]] = []

    class Watching:
        def extract(self, image: Path | Tensor) -> Features:
            features = BlankExtractor().extract(image)
            seen.append(features.image_hw)
            return features

        def match_features(self, features0: Features, features1: Features) -> Matches:
            return make_matches(np.zeros((0, 2)), np.zeros((0, 2)), [])

    pairs = [LabelledPair("g", False, small, large, use) for use in (True, False)]
    predict_scores(pairs, [0, 1], {untrained: Watching()}, tmp_path / "cache")  # type: ignore[dict-item]
    assert seen == [(40, 48), (29, 48), (96, 160)]  # the small one is described once


def make_matches(points0: ArrayLike, points1: ArrayLike, scores: ArrayLike) -> Matches:
    first, second, values = (np.asarray(array, np.float32) for array in (points0, points1, scores))
    return Matches(first, second, values, np.ones(len(values), np.bool_), 0.5, (40, 48), (40, 48))


def test_errors_of_matches(folder: Path, tmp_path: Path, untrained: DenseMethod) -> None:
    """Corners by the homography, parts by their positions, and nothing in other pairs."""
    first, other = (folder / "planes" / "v_two" / name for name in ("1.png", "3.png"))
    (first.parent / "H_1_3").write_text("1 0 2\n0 1 5\n0 0 1\n", encoding="utf-8")
    asked: list[bool] = []

    class Known:
        def extract(self, image: Path | Tensor) -> Features:
            return BlankExtractor().extract(image)

        def match_features(
            self, features0: Features, features1: Features, points: Tensor | None = None
        ) -> Matches:
            asked.append(points is not None)
            if points is not None:
                return make_matches(points, points + torch.tensor([[0.0, 4.9], [0.0, 5.1]]), [0.6, 0.4])
            ends = [[2.0, 7.9], [12, 18.1], [np.nan, np.nan]]
            return make_matches([[0, 0], [10, 10], [20, 20]], ends, [0.9, 0.8, 0])

    parts = torch.tensor([[5.0, 5.0], [9.0, 9.0]])
    image = torch.zeros(3, 40, 48)
    sample = PairSample(image, image, parts, parts, "birds", pck_length=50.0)
    pairs = [
        LabelledPair(GROUP, True, first, other),
        LabelledPair(GROUP, False, first, other),
        LabelledPair(BIRDS, True, first, other, read=lambda: sample),
        LabelledPair(ONE_SIZE, True, first, other),
    ]
    rows = list(range(4))
    found = predict_scores(pairs, rows, {untrained: Known()}, tmp_path / "cache")["untrained"]  # type: ignore[dict-item]
    assert asked == [False, False, False, True, False]
    assert [entry.pair for entry in found] == [0.5] * 4
    assert [entry.is_correct.tolist() for entry in found] == [
        [True, False, False],
        [False] * 3,
        [True, False],
        [],
    ]
    assert found[0].matches == pytest.approx([0.9, 0.8, 0.0])
    assert found[2].matches == pytest.approx([0.6, 0.4])


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither hpatches nor cub"):
        list_pairs(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        list_pairs(tmp_path / "missing")
    write_sequence(tmp_path / "data", "v_one")
    with pytest.raises(DataError, match="need at least two sequences, got 1"):
        list_pairs(tmp_path / "data")
    write_sequence(tmp_path / "data", "v_two")
    (tmp_path / "data" / "v_two" / "3.png").unlink()
    with pytest.raises(DataError, match="lists all 1 problems"):
        list_pairs(tmp_path / "data")


def test_protocol_is_of_what_was_measured() -> None:
    def name(*groups: str) -> list[str]:
        return [line.split(":")[0] for line in describe_groups(groups)]

    assert name(GROUP) == ["HPatches"]
    assert name(BIRDS) == ["CUB"]
    assert name(GROUP, BIRDS, ONE_SIZE, OWN_SIZES) == ["HPatches", "CUB", "sizes"]
    assert "HPatches" not in "".join(describe_groups([BIRDS]))


def make_pairs(labels: list[bool]) -> list[LabelledPair]:
    return [LabelledPair("g", label, Path("a"), Path("b")) for label in labels]


def make_scores(values: list[float], matches: ArrayLike = (), is_correct: ArrayLike = ()) -> list[PairScores]:
    own = np.asarray(matches, np.float64), np.asarray(is_correct, np.bool_)
    return [PairScores(value, *own) for value in values]


def test_figures_by_hand() -> None:
    scores = make_scores([0.9, 0.4, 0.6, 0.1])
    (figure,), (bins,) = score_separation("m", make_pairs([True, True, False, False]), scores)
    assert (figure.matching, figure.others) == (2, 2)
    assert figure.auroc == 0.75
    assert figure.brier == pytest.approx((0.01 + 0.36 + 0.36 + 0.01) / 4)
    assert (figure.accepted, figure.wrongly_accepted) == (0.5, 0.5)
    assert figure.calibration_error == pytest.approx((0.1 + 0.6 + 0.6 + 0.1) / 4)
    assert (figure.rejected, figure.largest) == (0.5, 0.6)
    assert (sum(bins.counts), bins.mean_scores[9], bins.shares[9]) == (4, 0.9, 1.0)
    two = [*make_pairs([True, False]), LabelledPair("h", True, Path("a"), Path("b"))]
    assert [f.group for f in score_separation("m", two, make_scores([0.5] * 3))[0]] == ["g", "h"]


def test_groups_without_matching_pairs() -> None:
    scenes = [LabelledPair(GROUP, label, Path("a"), Path("b")) for label in (True, False)]
    drawn = [LabelledPair(group, False, Path("a"), Path("b")) for group in ("x", "x", "y")]
    scores = make_scores([0.95, 0.05, 0.1, 0.2, 0.35])
    figures, diagrams = score_separation("m", [*scenes, *drawn], scores)
    assert [(f.group, f.matching, f.others) for f in figures] == [
        (GROUP, 1, 1),
        ("x", 0, 2),
        ("y", 0, 1),
        ("all that match nothing", 0, 3),
        ("HPatches and all that match nothing", 1, 4),
    ]
    assert (figures[1].rejected, figures[1].largest) == (0.5, 0.2)
    assert np.isnan(figures[1].auroc) and np.isnan(figures[1].accepted)
    assert figures[3].rejected == pytest.approx(1 / 3) and figures[3].largest == 0.35
    assert (figures[4].rejected, figures[4].largest) == (0.5, 0.35)
    assert figures[4].calibration_error == pytest.approx((0.05 + 0.05 + 0.1 + 0.2 + 0.35) / 5)
    assert diagrams[4].counts == (1, 1, 1, 1, 0, 0, 0, 0, 0, 1)


def test_groups_of_matches() -> None:
    """Of matching pairs alone, and of all that have the same label for all weights."""
    pairs = [LabelledPair(GROUP, label, Path("a"), Path("b")) for label in (True, False)]
    pairs += [LabelledPair(BIRDS, label, Path("a"), Path("b")) for label in (True, False)]
    pairs += [LabelledPair("x", False, Path("a"), Path("b"))]
    scores = [
        *make_scores([0.9], [0.8, 0.6], [True, False]),
        *make_scores([0.1], [0.3], [False]),
        *make_scores([0.9], [0.7], [True]),
        *make_scores([0.9], [0.2], [False]),
        *make_scores([0.1], [0.05], [False]),
    ]
    figures, diagrams = score_separation("m", pairs, scores)
    assert [(f.group, f.matching, f.others) for f in figures[-3:]] == [
        ("matches of corners, HPatches", 1, 1),
        ("matches of corners, HPatches and all that match nothing", 1, 3),
        ("matches of parts, CUB", 1, 0),
    ]
    errors = [f.calibration_error for f in figures[-3:]]
    assert errors == pytest.approx([(0.2 + 0.6) / 2, (0.2 + 0.6 + 0.3 + 0.05) / 4, 0.3])
    assert [sum(bins.counts) for bins in diagrams[-3:]] == [2, 4, 1]


@pytest.fixture
def untrained(tmp_path: Path) -> DenseMethod:
    path = tmp_path / "untrained.safetensors"
    save_weights(path, build_model(ModelConfig(dim=16)))
    matcher = Matcher.from_pretrained(path, config=MatchConfig(max_side=None), device="cpu")
    return DenseMethod(
        "untrained", "an untrained network", {"ucn": matcher.weights.sha256}, extractor=matcher
    )


@pytest.mark.slow
def test_scores_are_kept(
    folder: Path, tmp_path: Path, untrained: DenseMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list_pairs(folder)
    chosen = choose_pairs(pairs, 2)[:5]
    matcher = untrained.extractor
    assert isinstance(matcher, Matcher)
    first = predict_scores(pairs, chosen, {untrained: matcher}, tmp_path / "cache")["untrained"]
    assert len(first) == 5  # the last is of drawn images
    assert all(0 <= scores.pair <= 1 for scores in first)
    assert [bool(scores.is_correct.any()) for scores in first[1::2]] == [False, False]
    images = [
        [image if isinstance(image, Path) else image.render() for image in (pair.image0, pair.image1)]
        for pair in map(pairs.__getitem__, chosen)
    ]
    direct = [matcher.match(*both).pair_score for both in images]
    assert [scores.pair for scores in first] == pytest.approx(direct, abs=1e-6)

    with monkeypatch.context() as patch:
        patch.setattr(core_predictions, "share_work", share_with_copies)
        shared = predict_scores(pairs, chosen, {untrained: matcher}, tmp_path / "shared", jobs=2)["untrained"]
    for own, other in zip(shared, first, strict=True):
        assert own.pair == pytest.approx(other.pair, abs=1e-6)
        assert np.array_equal(own.is_correct, other.is_correct)

    class Asleep:
        """Would fail if it were asked."""

    again = predict_scores(pairs, chosen[:2], {untrained: Asleep()}, tmp_path / "cache")  # type: ignore[dict-item]
    assert [scores.pair for scores in again["untrained"]] == [scores.pair for scores in first[:2]]


@pytest.mark.slow
def test_run(folder: Path, tmp_path: Path, untrained: DenseMethod) -> None:
    loaded = LoadedMethods([untrained, make_method()], {"xfeat": "not here"})
    settings = RunSettings(tmp_path / "cache", limit=2, command="ucn evaluate")
    report = run_pair_score(folder, loaded, settings)
    assert report.skipped == {"xfeat": "not here", "colour": "it has no pair score"}
    assert [method.name for method in report.methods] == ["untrained"]
    titles = [table.title.split(", ")[0] for table in report.tables]
    both = "HPatches and all that match nothing"
    assert titles == [
        "Summary of pair scores",
        *(GROUP, both, "matches of corners", "matches of corners"),
        "Pairs that match nothing: below 0.2",
        f"{GROUP}: pairs that match",
        f"{both}: pairs that match",
        *("matches of corners", "matches of corners"),
    ]
    summary, nothing, reliability = report.tables[0], report.tables[5], report.tables[7]
    assert summary.header[1:3] == ("HPatches matching ≥ 0.5, %", "match nothing < 0.2, %")
    assert summary.rows[0][0] == "untrained" and len(summary.rows[0]) == len(summary.header) == 4
    assert report.tables[2].title == f"{both}, 2 and 22 pairs"
    assert report.tables[3].title.startswith("matches of corners, HPatches, ")
    assert report.tables[3].header[4] == "correct ≥ 0.5, %"
    assert nothing.header == ("pairs", "untrained") and len(nothing.rows) == 11
    assert (
        nothing.rows[0][0] == "noise and noise (2)" and nothing.rows[-1][0] == "all that match nothing (20)"
    )
    assert reliability.header[1:3] == ("0-0.1", "0.1-0.2") and len(reliability.rows[0]) == 11
    assert report.protocol[0].startswith("data: 24 pairs, 2 of them matching; at most 2 matching ones")
    assert np.isfinite(report.rows[0]["auroc"])
    assert "CUB" not in report.title
    assert not any(line.startswith(("CUB", "sizes")) for line in report.protocol)
    (note,) = report.notes
    assert note.startswith("CUB was not found")
    assert str(folder) in note
    counts = [sum(bins["counts"]) for bins in report.values["reliability"]]
    assert counts[:13] == [4, *[2] * 10, 20, 24] and 0 < counts[13] < counts[14] and len(counts) == 15
    assert report.plots[0].png.startswith(b"\x89PNG")
    with pytest.raises(DataError, match="no method can be evaluated: colour: it has no pair score"):
        run_pair_score(folder, LoadedMethods([make_method()]), settings)
