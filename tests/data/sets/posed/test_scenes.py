"""A folder of reconstructed scenes: found by name, read as one set, balanced by scene and angle."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from support.colmap_cases import make_circle
from ucn.cli.app import app
from ucn.data.catalogue import guess_data, open_data
from ucn.data.checking import check_data
from ucn.data.descriptions import COLMAP, MULTIVIEW
from ucn.data.sets.posed import scenes
from ucn.data.sets.posed.scenes import find_scenes
from ucn.errors import DataError

COUNT = 31


def write_scene(
    folder: Path,
    degrees: tuple[int, ...] = (0, 5, 25),
    count: int = COUNT,
    inside: str = "sparse",
    form: str = "bin",
) -> None:
    model = make_circle(degrees, count, (64, 32))
    model.write(folder / inside, form)
    model.write_photographs(folder / "images")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_scene(tmp_path / "cup")
    write_scene(tmp_path / "can", (0, 50), inside="sparse/0", form="txt")
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.csv").write_text("scene\n")
    return tmp_path


def test_pairs_of_all_scenes(folder: Path) -> None:
    data = open_data("multiview", folder)
    names = [data.pair_name(index) for index in range(len(data))]
    assert names == ["can/0.png--1.png", "cup/0.png--1.png", "cup/0.png--2.png", "cup/1.png--2.png"]
    assert [data.pair_class(index) for index in range(4)] == ["can", "cup", "cup", "cup"]
    assert data.image_paths(3) == (folder / "cup/images/1.png", folder / "cup/images/2.png")
    assert data.pair_files(0)[2:] == tuple(folder / f"can/sparse/0/{n}.txt" for n in ("images", "points3D"))
    sample = data.read(2)
    # COLMAP's half pixel is subtracted, and image 2 moves by two pixels.
    torch.testing.assert_close(
        sample.points0, torch.stack([torch.arange(31) + 2.0, torch.full((31,), 10.0)], 1)
    )
    torch.testing.assert_close(sample.points1 - sample.points0, torch.tensor([2.0, 0]).expand(31, 2))
    assert [file.path.parent.parent.name for file in data.files()] == ["can"] * 2 + ["cup"] * 3
    for index in (-1, 4):
        with pytest.raises(IndexError, match=f"there is no pair {index}: the set has 4"):
            data.read(index)


def test_it_is_recognised_and_a_scene_alone_is_a_reconstruction(folder: Path) -> None:
    assert guess_data(folder) == ["multiview"]
    assert guess_data(folder / "cup") == ["colmap"]
    alone = open_data("multiview", folder / "cup")
    assert len(alone) == 3 and alone.pair_name(0) == "cup/0.png--1.png"


def test_scenes_by_name(folder: Path) -> None:
    assert [place.name for place in find_scenes(folder)] == ["can", "cup"]
    assert [place.name for place in find_scenes(folder, ["cup"])] == ["cup"]
    data = open_data("multiview", folder, options={"scenes": " cup, "})
    assert {data.pair_class(index) for index in range(len(data))} == {"cup"}
    with pytest.raises(
        DataError, match=r"no scene 'cap' in .*; did you mean 'c[au][np]'\? \(there are can, cup\)"
    ):
        open_data("multiview", folder, options={"scenes": "cup,cap"})
    with pytest.raises(DataError, match=r"no scene in it; expected folders with images/ and sparse/"):
        find_scenes(folder / "notes")


def test_options_reach_the_scenes(folder: Path) -> None:
    with pytest.raises(DataError, match="have 32 3D points in common; lower the option min_shared"):
        open_data("multiview", folder, options={"min_shared": COUNT + 1})
    with pytest.raises(DataError, match="max_error 0 or more, got 30 and -1"):
        open_data("multiview", folder, options={"max_error": -1})


def test_balanced_scenes_and_angles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "_BALANCED", 12)
    data = open_data("multiview", folder, options={"balanced": True})
    counts = Counter(data.pair_name(index) for index in range(len(data)))
    # Of cup, one pair of 5 degrees and two of 20 to 25; can has one pair alone.
    assert counts == {
        "can/0.png--1.png": 12,
        "cup/0.png--1.png": 6,
        "cup/0.png--2.png": 3,
        "cup/1.png--2.png": 3,
    }
    assert data.read(0).name == "can/0.png--1.png"
    training, held_out = data.split_off(0.34)
    ours = {path for index in range(len(training)) for path in training.image_paths(index)}
    theirs = {path for index in range(len(held_out)) for path in held_out.image_paths(index)}
    assert ours and theirs and ours.isdisjoint(theirs)


def test_many_pairs_of_an_angle_are_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "_BALANCED", 4)
    write_scene(tmp_path / "cup", tuple(range(8)))  # 28 pairs of at most 7 degrees
    data = open_data("multiview", tmp_path, options={"balanced": True})
    plain = open_data("multiview", tmp_path)
    names = [plain.pair_name(index) for index in range(28)]
    assert [names.index(data.pair_name(index)) for index in range(4)] == [0, 7, 14, 21]


def test_problems_of_scenes_are_reported_and_their_pairs_left_out(folder: Path) -> None:
    (folder / "cup/images/1.png").unlink()
    (folder / "can/images/0.png").write_bytes(b"no image")
    data = open_data("multiview", folder)
    report = check_data(data)
    assert sorted(problem.path.name for problem in report.problems) == ["0.png", "images.bin"]
    assert [data.pair_name(index) for index in range(len(data))] == ["can/0.png--1.png", "cup/0.png--2.png"]


def test_a_scene_without_pairs_has_none_when_balanced(folder: Path) -> None:
    for number in (1, 2):
        (folder / f"cup/images/{number}.png").unlink()
    data = open_data("multiview", folder, options={"balanced": True})
    assert {data.pair_class(index) for index in range(len(data))} == {"can"}
    assert len(data.problems) == 2
    shutil.rmtree(folder / "can")
    assert len(open_data("multiview", folder, options={"balanced": True})) == 0


def test_commands(folder: Path) -> None:
    listed = CliRunner().invoke(app, ["data", "list", "multiview"])
    assert listed.exit_code == 0 and "SCENE/images/" in listed.output and "balanced=False" in listed.output
    checked = CliRunner().invoke(app, ["data", "check", "multiview", str(folder)])
    assert checked.exit_code == 0 and "nothing wrong" in checked.output
    (folder / "cup/images/1.png").write_bytes(b"no image")
    assert CliRunner().invoke(app, ["data", "check", "multiview", str(folder)]).exit_code == 1


def test_markers_are_those_of_a_reconstruction() -> None:
    expected = {f"*/{inside}/{marker}" for inside in COLMAP.inside for marker in COLMAP.markers}
    assert set(MULTIVIEW.markers) == expected
