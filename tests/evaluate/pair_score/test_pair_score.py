"""Matching and non-matching pairs, their cached scores, and the results computed from them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import Tensor

from support.evaluation_cases import (
    BlankExtractor,
    make_method,
    share_with_copies,
    write_ramp,
    write_sequence,
)
from ucn.config import MatchConfig, ModelConfig
from ucn.errors import DataError
from ucn.evaluate.core import predictions as core_predictions
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.pair_score.predictions import (
    BIRDS,
    ONE_SIZE,
    OWN_SIZES,
    LabelledPair,
    choose_pairs,
    list_pairs,
    predict_scores,
)
from ucn.evaluate.pair_score.report import describe_groups, run_pair_score
from ucn.evaluate.pair_score.scoring import score_separation
from ucn.features.method import DenseMethod, LoadedMethods
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.types import Features
from ucn.weights import save_weights

GROUP = "HPatches: same or other scene"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("i_one", "v_three", "v_two")):
        write_sequence(tmp_path / "data" / "planes", name, (4 * number, 4))
    return tmp_path / "data"


def test_half_of_the_pairs_match(folder: Path) -> None:
    pairs = list_pairs(folder)
    assert len(pairs) == 30
    for pair in pairs:
        assert pair.group == GROUP
        assert (pair.image0.parent == pair.image1.parent) == pair.is_match
        assert pair.image0.stem == "1"
    assert sum(pair.is_match for pair in pairs) == 15
    limited = [pairs[row] for row in choose_pairs(pairs, 6)]
    assert [pair.is_match for pair in limited] == [True, False] * 6
    assert len({pair.image0.parent for pair in limited}) == 3
    assert choose_pairs(pairs, None) == list(range(30))


def test_real_pairs(data_folder: Path) -> None:
    pairs = list_pairs(data_folder)
    assert len(choose_pairs(pairs, 7)) == 4 * 14
    groups = dict.fromkeys(pair.group for pair in pairs)
    assert list(groups) == [GROUP, "CUB: same or other kind of bird", ONE_SIZE, OWN_SIZES]
    for pair in pairs:
        if pair.group in (ONE_SIZE, OWN_SIZES):
            assert ("hpatches" in pair.image1.parts) != pair.is_match
        else:
            assert (pair.image0.parent == pair.image1.parent) == pair.is_match
        assert pair.use_one_size == (pair.group == ONE_SIZE)


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

        def match_features(self, features0: Features, features1: Features) -> SimpleNamespace:
            return SimpleNamespace(pair_score=0.5)

    pairs = [LabelledPair("g", False, small, large, use) for use in (True, False)]
    predict_scores(pairs, [0, 1], {untrained: Watching()}, tmp_path / "cache")  # type: ignore[dict-item]
    assert seen == [(40, 48), (29, 48), (96, 160)]  # the small one is described once


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


def test_figures_by_hand() -> None:
    (figure,), (bins,) = score_separation("m", make_pairs([True, True, False, False]), [0.9, 0.4, 0.6, 0.1])
    assert (figure.matching, figure.others) == (2, 2)
    assert figure.auroc == 0.75
    assert figure.brier == pytest.approx((0.01 + 0.36 + 0.36 + 0.01) / 4)
    assert (figure.accepted, figure.wrongly_accepted) == (0.5, 0.5)
    assert figure.calibration_error == pytest.approx((0.1 + 0.6 + 0.6 + 0.1) / 4)
    assert (sum(bins.counts), bins.mean_scores[9], bins.shares[9]) == (4, 0.9, 1.0)
    two = [*make_pairs([True, False]), LabelledPair("h", True, Path("a"), Path("b"))]
    assert [f.group for f in score_separation("m", two, [0.5, 0.5, 0.5])[0]] == ["g", "h"]


@pytest.fixture
def untrained(tmp_path: Path) -> DenseMethod:
    path = tmp_path / "untrained.safetensors"
    save_weights(path, build_model(ModelConfig(dim=16)))
    matcher = Matcher.from_pretrained(path, config=MatchConfig(max_side=None), device="cpu")
    return DenseMethod(
        "untrained", "an untrained network", {"ucn": matcher.weights.sha256}, extractor=matcher
    )


def test_scores_are_kept(
    folder: Path, tmp_path: Path, untrained: DenseMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list_pairs(folder)
    chosen = choose_pairs(pairs, 2)
    matcher = untrained.extractor
    assert isinstance(matcher, Matcher)
    first = predict_scores(pairs, chosen, {untrained: matcher}, tmp_path / "cache")["untrained"]
    assert len(first) == 4
    assert all(0 <= score <= 1 for score in first)
    direct = [matcher.match(pair.image0, pair.image1).pair_score for pair in map(pairs.__getitem__, chosen)]
    assert first == pytest.approx(direct, abs=1e-6)

    with monkeypatch.context() as patch:
        patch.setattr(core_predictions, "share_work", share_with_copies)
        shared = predict_scores(pairs, chosen, {untrained: matcher}, tmp_path / "shared", jobs=2)["untrained"]
    assert shared == pytest.approx(first, abs=1e-6)

    class Asleep:
        """Would fail if it were asked."""

    again = predict_scores(pairs, chosen[:2], {untrained: Asleep()}, tmp_path / "cache")  # type: ignore[dict-item]
    assert again["untrained"] == first[:2]


def test_run(folder: Path, tmp_path: Path, untrained: DenseMethod) -> None:
    loaded = LoadedMethods([untrained, make_method()], {"xfeat": "not here"})
    settings = RunSettings(tmp_path / "cache", limit=2, command="ucn evaluate")
    report = run_pair_score(folder, loaded, settings)
    assert report.skipped == {"xfeat": "not here", "colour": "it has no pair score"}
    assert [method.name for method in report.methods] == ["untrained"]
    (table,) = report.tables
    assert table.title == f"{GROUP}, 2 and 2 pairs"
    assert np.isfinite(report.rows[0]["auroc"])
    assert "CUB" not in report.title
    assert not any(line.startswith(("CUB", "sizes")) for line in report.protocol)
    (note,) = report.notes
    assert note.startswith("CUB was not found")
    assert str(folder) in note
    assert sum(report.values["reliability"][0]["counts"]) == 4
    assert report.plots[0].png.startswith(b"\x89PNG")
    with pytest.raises(DataError, match="no method can be evaluated: colour: it has no pair score"):
        run_pair_score(folder, LoadedMethods([make_method()]), settings)
