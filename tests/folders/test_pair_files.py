"""Many pairs into one file each: results, failures, resumed runs and encoded images."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.batch_cases import make_texture
from support.pair_cases import SHIFT, FeatureShiftMatcher, write_tiny_images
from ucn import MatchConfig, Matcher
from ucn.data.io import read_image, write_image
from ucn.data.match_files import read_matches
from ucn.errors import ConfigError, DataError, OutputError
from ucn.files.arrays import read_npz
from ucn.folders.image_pairs import ImagePair
from ucn.folders.pair_files import SUMMARY_COLUMNS, PairFileSettings, PairFilesResult, match_pair_files
from ucn.geometry.verification import VerifySettings
from ucn.types import Features, Matches

NAMES = ("a.png", "b.png", "c.png")


def make_pairs(folder: Path, names: Sequence[tuple[str, str]]) -> list[ImagePair]:
    return [ImagePair(pair, (folder / pair[0], folder / pair[1])) for pair in names]


@pytest.fixture
def pairs(tmp_path: Path) -> list[ImagePair]:
    """Three images, each with each."""
    write_tiny_images(tmp_path / "in", *NAMES)
    return make_pairs(tmp_path / "in", [("a.png", "b.png"), ("a.png", "c.png"), ("b.png", "c.png")])


def run(pairs: list[ImagePair], folder: Path, matcher: Any = None, **options: Any) -> PairFilesResult:
    stand_in: Any = matcher or FeatureShiftMatcher()
    return match_pair_files(pairs, folder, stand_in, **options)


def read_summary(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_file_a_pair_and_a_summary(pairs: list[ImagePair], tmp_path: Path) -> None:
    matcher, steps = FeatureShiftMatcher(), []
    result = run(
        pairs,
        tmp_path / "out",
        matcher,
        meta={"note": 1},
        progress=lambda done, total: steps.append((done, total)),
    )
    assert matcher.encoded == [pair.paths[0] for pair in pairs[:1]] + [
        pairs[0].paths[1],
        pairs[1].paths[1],
    ]
    assert (result.encodings, result.resumed, result.failures) == (3, 0, [])
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    names = ["a__b.npz", "a__c.npz", "b__c.npz"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *names,
        "progress.jsonl",
        "summary.csv",
    ]
    matches, meta = read_matches(tmp_path / "out" / "a__c.npz")
    np.testing.assert_allclose((matches.points1 - matches.points0)[:30], np.tile(SHIFT, (30, 1)), atol=1e-4)
    assert meta["note"] == 1
    assert meta["image1"] == str(pairs[1].paths[1])
    rows = read_summary(tmp_path / "out")
    assert list(rows[0]) == list(SUMMARY_COLUMNS)
    assert [row["file"] for row in rows] == names
    assert rows[0]["image0"] == "a.png" and rows[0]["image1"] == "b.png"
    assert (rows[0]["matches"], rows[0]["inliers"], rows[0]["pair_score"]) == ("40", "", "0.7500")
    assert rows[0]["error"] == "" and float(rows[0]["seconds"]) >= 0


def test_no_pairs(tmp_path: Path) -> None:
    assert run([], tmp_path / "out").records == ()
    assert read_summary(tmp_path / "out") == []


def test_a_second_run_has_nothing_to_do(pairs: list[ImagePair], tmp_path: Path) -> None:
    first = run(pairs, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    matcher = FeatureShiftMatcher()
    again = run(pairs, tmp_path / "out", matcher)
    assert matcher.encoded == []
    assert (again.resumed, again.encodings) == (3, 0)
    assert again.records == first.records
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


class StoppingMatcher(FeatureShiftMatcher):
    def match_features(self, features0: Features, features1: Features) -> Matches:
        if self.matched == 1:
            raise KeyboardInterrupt
        return super().match_features(features0, features1)


def test_a_stopped_run_resumes(pairs: list[ImagePair], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("foreign")
    with pytest.raises(KeyboardInterrupt):
        run(pairs, tmp_path / "out", StoppingMatcher())
    matcher = FeatureShiftMatcher()
    result = run(pairs, tmp_path / "out", matcher)
    assert (result.resumed, matcher.matched) == (1, 2)
    assert [row["matches"] for row in read_summary(tmp_path / "out")] == ["40"] * 3
    assert (tmp_path / "out" / "mine.txt").read_text() == "foreign"


def test_what_changed_is_matched_again(pairs: list[ImagePair], tmp_path: Path) -> None:
    run(pairs, tmp_path / "out")
    (tmp_path / "out" / "a__b.npz").unlink()
    write_image(tmp_path / "in" / "c.png", np.zeros((70, 90, 3), np.uint8), overwrite=True)
    matcher = FeatureShiftMatcher()
    assert run(pairs[:2], tmp_path / "out", matcher).resumed == 0
    assert matcher.matched == 2
    assert read_matches(tmp_path / "out" / "a__c.npz")[0].image1_hw == (70, 90)
    longer = [*pairs, *make_pairs(tmp_path / "in", [("c.png", "a.png")])]
    assert run(longer, tmp_path / "out").resumed == 2  # of the list before; the third is forgotten


def test_overwrite_matches_all_anew(pairs: list[ImagePair], tmp_path: Path) -> None:
    run(pairs, tmp_path / "out")
    other = FeatureShiftMatcher(MatchConfig(ratio=0.8))
    with pytest.raises(DataError, match=r"other settings \(config.ratio 1.0, now 0.8\)"):
        run(pairs, tmp_path / "out", other)
    with pytest.raises(DataError, match=r"suffix '.npz', now '.csv'"):
        run(pairs, tmp_path / "out", settings=PairFileSettings(".csv"))
    with pytest.raises(DataError, match=r"verify.model None, now 'homography'"):
        run(pairs, tmp_path / "out", settings=PairFileSettings(verify=VerifySettings()))
    assert other.encoded == []
    assert run(pairs, tmp_path / "out", other, overwrite=True).resumed == 0
    assert run(pairs, tmp_path / "out", other).resumed == 3


def test_existing_files_are_kept(pairs: list[ImagePair], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b__c.npz").write_text("mine")
    matcher = FeatureShiftMatcher()
    with pytest.raises(OutputError, match=r"b__c.npz exists already and was kept"):
        run(pairs, tmp_path / "out", matcher)
    assert matcher.encoded == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b__c.npz"]


def test_a_bad_image_does_not_stop_the_others(pairs: list[ImagePair], tmp_path: Path) -> None:
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    matcher = FeatureShiftMatcher()
    result = run(pairs, tmp_path / "out", matcher)
    assert [record.matches for record in result.records] == [None, 40, None]
    assert result.records[0].error.startswith("cannot read image b.png: it is damaged or not an image")
    assert len([path for path in matcher.encoded if path == tmp_path / "in" / "b.png"]) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "a__c.npz",
        "progress.jsonl",
        "summary.csv",
    ]
    row = read_summary(tmp_path / "out")[2]
    assert row["file"] == row["matches"] == row["pair_score"] == ""
    assert "cannot read image b.png" in row["error"]

    write_tiny_images(tmp_path / "in", "b.png")
    again = run(pairs, tmp_path / "out")
    assert (again.resumed, again.failures) == (1, [])


def test_a_missing_image_and_no_memory_are_rows_too(pairs: list[ImagePair], tmp_path: Path) -> None:
    class FullMatcher(FeatureShiftMatcher):
        def match_features(self, features0: Features, features1: Features) -> Matches:
            raise torch.OutOfMemoryError("CUDA out of memory")

    (tmp_path / "in" / "c.png").unlink()
    errors = [record.error for record in run(pairs, tmp_path / "out", FullMatcher()).records]
    assert errors[0] == "not enough memory for a.png and b.png; reduce max_side"
    assert errors[1].startswith("cannot read image c.png: no such file")


def test_a_full_disk_stops_the_run(
    pairs: list[ImagePair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OutputError("cannot write: no space left on device")

    monkeypatch.setattr("ucn.folders.pair_files.write_matches", fail)
    with pytest.raises(OutputError, match="no space left"):
        run(pairs, tmp_path / "out")


def test_memory_bounds_what_is_kept(pairs: list[ImagePair], tmp_path: Path) -> None:
    matcher = FeatureShiftMatcher()
    order = [pairs[0], pairs[2], pairs[1]]  # a b, b c, a c
    result = run(order, tmp_path / "out", matcher, settings=PairFileSettings(cache_bytes=0))
    assert result.encodings == 4  # two images are always kept


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".h5"])
def test_inliers_are_written(pairs: list[ImagePair], tmp_path: Path, suffix: str) -> None:
    settings = PairFileSettings(suffix, VerifySettings("homography"))
    result = run(pairs[:1], tmp_path / "out", settings=settings)
    assert result.records[0].inliers == 30
    assert read_summary(tmp_path / "out")[0]["inliers"] == "30"
    path = tmp_path / "out" / f"a__b{suffix}"
    if suffix == ".csv":
        found = [row["is_inlier"] for row in csv.DictReader(path.read_text().splitlines())]
        assert found == ["1"] * 30 + ["0"] * 10
    else:
        assert len(read_matches(path)[0]) == 40
        verification = read_matches(path)[1]["verification"]
        assert verification["H_0to1"][0][2] == pytest.approx(SHIFT[0], abs=1e-3)
        assert (verification["model"], verification["inliers"]) == ("homography", 30)
    if suffix == ".npz":
        assert read_npz(path)["is_inlier"].tolist() == [True] * 30 + [False] * 10
    record = json.loads((tmp_path / "out" / "progress.jsonl").read_text().splitlines()[2])
    assert record["inliers"] == 30


def test_drawings(pairs: list[ImagePair], tmp_path: Path) -> None:
    run(pairs[:1], tmp_path / "out")
    settings = PairFileSettings(drawings=tmp_path / "drawings")
    result = run(pairs[:1], tmp_path / "out", settings=settings)
    assert result.resumed == 0  # since the drawing was missing
    assert read_image(tmp_path / "drawings" / "a__b.jpg").shape[2] == 1600
    assert run(pairs[:1], tmp_path / "out", settings=settings).resumed == 1


def test_a_drawing_replaces_no_foreign_file(pairs: list[ImagePair], tmp_path: Path) -> None:
    run(pairs[:1], tmp_path / "out")
    (tmp_path / "a__b.jpg").write_text("mine")
    settings = PairFileSettings(drawings=tmp_path)
    with pytest.raises(OutputError, match=r"a__b\.jpg exists already"):
        run(pairs[:1], tmp_path / "out", settings=settings)
    assert (tmp_path / "a__b.jpg").read_text() == "mine"


def test_a_drawing_replaces_no_image(tmp_path: Path) -> None:
    write_tiny_images(tmp_path, "a.png", "a__a__b.jpg", "a__b.jpg")
    pairs = make_pairs(tmp_path, [("a.png", "a__b.jpg")])
    assert run(pairs, tmp_path / "out").records[0].file == "a__a__b.npz"
    pairs += make_pairs(tmp_path, [("a.png", "a__a__b.jpg")])
    settings = PairFileSettings(drawings=tmp_path)
    with pytest.raises(OutputError, match=r"a__a__b.jpg: it is one of the images"):
        run(pairs, tmp_path / "out", settings=settings, overwrite=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"suffix": ".txt"}, "suffix must be one of"), ({"cache_bytes": -1}, "cache_bytes")],
)
def test_wrong_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PairFileSettings(**options)


@pytest.mark.slow
def test_results_are_those_of_single_pairs(tmp_path: Path) -> None:
    texture = make_texture((96, 128), 0)
    for number, shift in enumerate((0, 4, 8)):
        write_image(tmp_path / f"{number}.png", np.ascontiguousarray(texture[:, shift : shift + 112]))
    pairs = make_pairs(tmp_path, [("0.png", "1.png"), ("1.png", "2.png"), ("0.png", "2.png")])
    matcher = Matcher.from_pretrained("geometric-lite", device="cpu")
    result = match_pair_files(pairs, tmp_path / "out", matcher)
    assert result.encodings == 3
    for pair, record in zip(pairs, result.records, strict=True):
        found = read_matches(tmp_path / "out" / record.file)[0]
        expected = matcher.match(*pair.paths)
        assert len(found) == record.matches
        assert len(found) > 20
        np.testing.assert_array_equal(found.points0, expected.points0)
        np.testing.assert_array_equal(found.points1, expected.points1)
