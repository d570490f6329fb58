"""Targets with their labelled images, and scores of votes worked out by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from support.evaluation_cases import make_method
from support.semantic_files import write_flat_image, write_mat
from ucn.config import Calibration, ModelConfig
from ucn.errors import DataError
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.label_transfer.predictions import digest_cases, list_cases
from ucn.evaluate.label_transfer.report import COUNTS, run_transfer, score_votes
from ucn.features.method import LoadedMethods
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.weights import LoadedWeights, WeightsInfo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of PF-WILLOW with three images each, two points on every image."""
    root = tmp_path / "data" / "pf_willow"
    for kind in ("car(S)", "duck(S)"):
        for number in range(3):
            write_flat_image(root / kind / f"{number}.png", 48, 40, grey=60 + 20 * number)
            points = np.array([[10.0, 30.0], [12.0 + number, 30.0]])
            write_mat(root / kind / f"{number}.mat", {"pts_coord": points})
    return tmp_path / "data"


def test_cases(folder: Path) -> None:
    cases = list_cases(folder, count=100, seed=0)
    related = [case for case in cases if not case.is_unrelated]
    assert len(related) == 6 and len(cases) == 8  # targets 0 and 5 also have an unrelated image
    for case in related:
        assert len(case.labelled) == 2
        assert case.target not in case.labelled
        assert {each.category for each in case.labelled} == {case.target.category}
    for case in cases:
        if case.is_unrelated:
            assert case.target.category != case.labelled[0].category
    assert digest_cases(cases) == digest_cases(list_cases(folder, 100, 0))
    assert len(list_cases(folder, 2, 0)) == 3
    with pytest.raises(DataError, match="none of cub, faces, pf-willow in"):
        list_cases(folder / "pf_willow" / "car(S)", 1, 0)


def make_record(places: list[list[tuple[float, float]]], labelled: list[list[bool]]) -> dict[str, np.ndarray]:
    """Two points on a target of 100 × 50, at (10, 10) and not visible; length 100."""
    return {
        "places": np.array(places),
        "scores": np.where(labelled, 0.5, 0.0),
        "labelled": np.array(labelled),
        "layouts": np.full((len(places), 2, 2), np.nan),
        "points": np.array([(10.0, 10.0), (np.nan, np.nan)]),
        "visible": np.array([True, False]),
        "length": np.array(100.0),
        "image_hw": np.array([50, 100]),
    }


def test_scores_by_hand() -> None:
    nan = (math.nan, math.nan)
    # Of three labelled images one is 7 px off, and one has the second point alone.
    record = make_record(
        [[(10, 11), nan], [(17, 10), nan], [nan, (40, 40)]], [[True, False]] * 2 + [[False, True]]
    )
    one = score_votes("m", "g", 1, [record])
    assert (one.points, one.pck_005, one.pck_010) == (2, 0.5, 1.0)
    assert (one.hidden, one.auroc, one.kept, one.rejected) == (1, 0.5, 1.0, 0.0)
    many = score_votes("m", "g", 3, [record])
    assert (many.points, many.pck_005) == (2, 1.0)  # the mean of both votes, 3.5 px off
    assert many.hidden == 3  # once for each image to begin with
    # Two agreeing votes of 0.5 make more than 0.5 / 3, but of three images less than 0.4.
    assert (many.auroc, many.kept, many.rejected) == (1.0, 0.0, 1.0)


def test_without_points_nothing_is_known() -> None:
    empty = make_record([[(math.nan, math.nan)] * 2], [[False, False]])
    result = score_votes("m", "g", 10, [empty])
    assert result.points == 0 and math.isnan(result.pck_005) and math.isnan(result.auroc)


def test_a_run_and_its_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(ModelConfig(dim=8, transformer="none"))
    info = WeightsInfo.of_file(Path("random"), "0" * 64, 0)
    matcher = Matcher(LoadedWeights(model, Calibration(), info, {}), device="cpu")
    birds, other = make_method("birds", matcher), make_method("other")
    network = make_method("network", matcher)
    seen: list[tuple[int, int]] = []
    settings = RunSettings(tmp_path / "cache", limit=2)
    loaded = LoadedMethods([network, birds, other])
    report = run_transfer(folder, loaded, settings, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]  # birds are not evaluated on other objects
    assert report.skipped == {"other": "its matches have no scores"}
    assert [row["labelled"] for row in report.rows] == list(COUNTS)
    assert report.tables[0].rows[0][:3] == ("pf-willow", "network", "1")
    monkeypatch.setattr(Matcher, "match_features", None)
    assert run_transfer(folder, loaded, settings).rows == report.rows
