from pathlib import Path

import pytest
import torch

from support.dense_cases import write_flat_image
from support.photo_cases import write_photos
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data, spread
from ucn.data.sets.synthetic import KINDS
from ucn.errors import ConfigError, DataError
from ucn.geometry.coords import is_inside
from ucn.geometry.warp import homography_from_points, warp_points


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "fotos è"
    place.mkdir()
    write_photos(place, [(90, 120), (120, 90), (100, 100), (64, 150), (130, 110)])
    return place


def test_a_pair_for_each_image_the_same_each_time(folder: Path) -> None:
    data = open_data("synthetic", folder, options={"side": 96, "points": 50})
    assert len(data) == 5
    assert [data.pair_name(i).split("(")[1] for i in range(5)] == [f"{k})" for k in (*KINDS, KINDS[0])]
    for index in range(5):
        first, again = data.read(index), data.read(index)
        assert torch.equal(first.image1, again.image1) and torch.equal(first.points1, again.points1)
        assert first.image0.shape == (3, 96, 96)
        assert 0 < len(first) <= 50
        assert is_inside(first.points0, (96, 96)).all() and is_inside(first.points1, (96, 96)).all()
    other = open_data("synthetic", folder, options={"side": 96, "points": 50, "seed": 1})
    assert not torch.equal(other.read(0).image1, data.read(0).image1)


def test_the_ground_truth_of_a_homography_is_one(folder: Path) -> None:
    sample = open_data("synthetic", folder, options={"side": 96, "kind": "homography"}).read(2)
    H_0to1 = homography_from_points(sample.points0.double(), sample.points1.double())
    moved = warp_points(sample.points0[None].double(), H_0to1[None])[0]
    torch.testing.assert_close(moved, sample.points1.double(), atol=2e-3, rtol=0)


def test_a_damaged_image_spoils_its_own_pairs(folder: Path) -> None:
    first = sorted(folder.iterdir())[0]
    first.write_bytes(b"no image")
    report = check_data(open_data("synthetic", folder, options={"side": 64, "points": 9}))
    assert [problem.path for problem in report.problems] == [first]
    assert report.read_count == 3  # of five pairs, one shows it, and the scene of number 3 (3, 4, 0) needs it


def test_wrong_options(folder: Path) -> None:
    with pytest.raises(DataError, match="option kind of synthetic must be one of mixed, homography"):
        open_data("synthetic", folder, options={"kind": "twist"})
    with pytest.raises(ConfigError, match="side must be a multiple of 32"):
        open_data("synthetic", folder, options={"side": 100})
    with pytest.raises(DataError, match="seed of synthetic must be at least 0"):
        open_data("synthetic", folder, options={"seed": -1})


def test_one_small_image_is_enough(tmp_path: Path) -> None:
    write_flat_image(tmp_path / "only.png", 5, 3)
    data = open_data("synthetic", tmp_path, options={"kind": "parallax", "side": 64})
    assert data.read(0).image1.shape == (3, 64, 64)


@pytest.mark.parametrize("count", [4, 5, 7, 12, 30, 32, 304])
def test_an_even_choice_shows_every_kind(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"{number:03d}.png").touch()
    data = open_data("synthetic", tmp_path)
    kinds = [data.pair_name(index).split("(")[1][:-1] for index in range(count)]
    for shown in (4, 8, 12):
        assert {kinds[index] for index in spread(count, shown)} == set(KINDS)
    shares = [kinds.count(kind) for kind in KINDS]
    assert max(shares) - min(shares) <= 4
    if count >= 16:  # neighbours differ, so that a part held out has every kind as well
        assert set(kinds[-4:]) == set(KINDS)


def test_few_images_are_shown_in_the_order_of_kinds(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").touch()
        data = open_data("synthetic", tmp_path)
        kinds = [data.pair_name(index).split("(")[1][:-1] for index in range(number + 1)]
        assert kinds == list(KINDS[: number + 1])
