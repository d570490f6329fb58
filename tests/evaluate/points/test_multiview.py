"""Pairs of reconstructed scenes, grouped by the angle between the views."""

from collections import Counter
from pathlib import Path

import pytest

from support.colmap_cases import make_circle
from support.evaluation_cases import make_method, write_ramp
from ucn.errors import ConfigError, DataError
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.points import multiview
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.multiview import open_multiview
from ucn.evaluate.points.report import run_benchmark
from ucn.features.method import LoadedMethods

DEGREES = (0, 10, 35, 110)
COUNT = 40


def write_scene(folder: Path, degrees: tuple[int, ...] = DEGREES, count: int = COUNT) -> None:
    for number in range(len(degrees)):
        write_ramp(folder / "images" / f"{number}.png", (number, 0))
    make_circle(degrees, count, (64, 48)).write(folder / "sparse", "bin")


def test_groups_by_angle(tmp_path: Path) -> None:
    write_scene(tmp_path / "one")
    write_scene(tmp_path / "few", count=29)
    (tmp_path / "notes").mkdir()
    pairs = open_multiview(tmp_path)
    assert [(pair.group, pair.name) for pair in pairs] == [
        ("0-15°", "one/0.png--1.png"),
        ("15-30°", "one/1.png--2.png"),
        ("30-60°", "one/0.png--2.png"),
        ("over 60°", "one/0.png--3.png"),
        ("over 60°", "one/1.png--3.png"),
        ("over 60°", "one/2.png--3.png"),
    ]
    assert {pair.category for pair in pairs} == {"one"}
    assert [pair.name for pair in open_multiview(tmp_path / "one")] == [pair.name for pair in pairs]
    with pytest.raises(DataError, match="no two images share 30 3D points"):
        open_multiview(tmp_path, ["few"])


def test_pairs_are_spread_over_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scene(tmp_path / "large", tuple(range(10)))  # 45 pairs of at most 9 degrees
    write_scene(tmp_path / "small", (0, 1, 2))
    monkeypatch.setattr(multiview, "MAX_PAIRS", 10)
    pairs = open_multiview(tmp_path)
    assert Counter(pair.category for pair in pairs) == {"large": 7, "small": 3}
    assert [pair.name for pair in open_multiview(tmp_path)] == [pair.name for pair in pairs]
    assert [pair.name for pair in open_multiview(tmp_path, seed=1)] != [pair.name for pair in pairs]
    own = [pair.name for pair in open_multiview(tmp_path, ["large"]) if pair.name.startswith("large")]
    assert {pair.name for pair in pairs if pair.category == "large"} <= set(own)
    assert len(own) == 10


def test_scenes_are_chosen_by_name(tmp_path: Path) -> None:
    for name in ("cup", "can"):
        write_scene(tmp_path / name)
    benchmark = find_benchmark("multiview").select(["cup"])
    assert benchmark.title.endswith("; only the scenes cup")
    assert {pair.category for pair in benchmark.open(tmp_path)} == {"cup"}
    with pytest.raises(
        DataError, match=r"no scene 'cap' in .*; did you mean 'c[au][np]'\? \(there are can, cup"
    ):
        open_multiview(tmp_path, ["cap"])
    with pytest.raises(ConfigError, match="hpatches has no scenes to choose from"):
        find_benchmark("hpatches").select(["cup"])
    with pytest.raises(DataError, match=r"no scene in it; expected folders with images/ and sparse/"):
        open_multiview(tmp_path / "cup" / "images")
    with pytest.raises(DataError, match="no folder"):
        open_multiview(tmp_path / "missing")


def test_points_are_found(tmp_path: Path) -> None:
    write_scene(tmp_path / "data" / "one")
    settings = RunSettings(tmp_path / "cache", refinements=(True,))
    loaded = LoadedMethods([make_method()])
    run = run_benchmark(find_benchmark("multiview"), tmp_path / "data", loaded, settings)
    assert run.point_count == 6 * COUNT
    last = [score for score in run.results.scores if score.group == "all"]
    assert [score.limit for score in last] == [3, 5, 10]
    assert last[-1].per_point == 1
    groups = list(dict.fromkeys(score.group for score in run.results.scores))
    assert groups == [*multiview.GROUPS, "all"]
