from pathlib import Path

import pytest
import torch

from support.dense_cases import correspondences, file_named, problem_texts, write_flat_image
from support.photometric_rule import assert_centred, photometric_error
from support.remedy_rule import refused
from ucn.data.catalogue import open_data
from ucn.data.sets.hpatches import open_folder, read_homography
from ucn.errors import DataError

SHIFT = "1 0 1\n0 1 -1\n0 0 1\n"


def add_sequence(root: Path, name: str, suffix: str = ".ppm", matrix: str = SHIFT) -> Path:
    """Six images, the first of 3 × 2 pixels and the others of 4 × 2, and their homographies."""
    for number in range(1, 7):
        write_flat_image(root / name / f"{number}{suffix}", 3 if number == 1 else 4, 2)
        if number > 1:
            (root / name / f"H_1_{number}").write_text(matrix)
    return root / name


def test_every_pixel_by_hand(tmp_path: Path) -> None:
    add_sequence(tmp_path, "v_wall")
    data = open_folder(tmp_path, "all")
    sample = data.read(0)
    # One to the right and one up: the lower row lands on the upper, and 3 is within the wider image 1.
    assert correspondences(sample) == {(0, 1): (1, 0), (1, 1): (2, 0), (2, 1): (3, 0)}
    assert sample.points1.dtype == torch.float32
    assert [data.pair_name(index) for index in range(len(data))] == [f"v_wall/1-{k}" for k in range(2, 7)]
    assert [path.name for path in data.pair_files(4)] == ["1.ppm", "6.ppm", "H_1_6"]
    kinds = [file.kind for file in data.files()]
    assert (kinds.count("image"), kinds.count("homography")) == (6, 5)
    for file in data.files():
        file.check()


@pytest.mark.parametrize("sign", [1, -1])
def test_perspective_by_hand_whatever_the_sign(tmp_path: Path, sign: int) -> None:
    # Depth 1 + x, so (0, y) stays and (1, y) goes to (0.5, y / 2): the sign of the matrix means nothing.
    add_sequence(tmp_path, "v_wall", matrix=f"{sign} 0 0 0 {sign} 0 {sign} 0 {sign}")
    found = correspondences(open_folder(tmp_path, "all").read(0))
    assert found[0, 1] == (0, 1)
    assert found[1, 1] == (0.5, 0.5)
    assert found[2, 0] == pytest.approx((2 / 3, 0))
    assert len(found) == 6


def test_pixels_behind_the_horizon_are_dropped(tmp_path: Path) -> None:
    # Depth 1 - x: pixel 1 lies on the horizon, pixel 2 behind it, where division would give x = -2.
    add_sequence(tmp_path, "v_wall", matrix="1 0 0\n0 1 0\n-1 0 1")
    assert set(correspondences(open_folder(tmp_path, "all").read(0))) == {(0, 0), (0, 1)}


def test_splits_are_by_prefix(tmp_path: Path) -> None:
    for name in ("v_wall", "i_dome", "notes"):
        add_sequence(tmp_path, name)
    names = {}
    for split in ("all", "viewpoint", "illumination"):
        data = open_folder(tmp_path, split)
        names[split] = {data.pair_name(index).split("/")[0] for index in range(len(data))}
        assert len(data) == 5 * len(names[split])
    assert names == {"all": {"i_dome", "v_wall"}, "viewpoint": {"v_wall"}, "illumination": {"i_dome"}}


def test_empty_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(tmp_path, "all")
    add_sequence(tmp_path, "v_wall")
    with pytest.raises(DataError, match=r"split 'illumination' is empty: no i_NAME/1\.ppm"):
        open_folder(tmp_path, "illumination")


def test_missing_files_are_problems(tmp_path: Path) -> None:
    add_sequence(tmp_path, "i_a")
    sequence = add_sequence(tmp_path, "v_b", ".png")
    (tmp_path / "i_a" / "1.ppm").unlink()
    (sequence / "3.png").unlink()
    (sequence / "H_1_5").unlink()
    data = open_folder(tmp_path, "all")
    assert [data.pair_name(index) for index in range(len(data))] == ["v_b/1-2", "v_b/1-4", "v_b/1-6"]
    assert problem_texts(data) == [
        "i_a/1.ppm: no such file, so the sequence has no pairs; unpack the sequence again",
        "v_b/3.ppm: no such file, though sequence v_b has others; unpack it again",
        "v_b/H_1_5: no such file, though sequence v_b has others; unpack it again",
    ]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "expected nine numbers in all, got 0"),
        ("1 0 0\n0 1 0\n0 0", "expected nine numbers in all, got 8"),
        ("1 0 0\n0 1 0\n0 0 1\n\n7", r"H_1_2:5: expected nine numbers in all, got at least 10"),
        ("1 0 0\n0 one 0\n0 0 1", r"H_1_2:2: expected a number, got 'one'"),
        ("1 0 nan\n0 1 0\n0 0 1", r"H_1_2:1: expected a finite number, got 'nan'"),
        ("1 2 3\n2 4 6\n0 0 1", "expected a homography that can be inverted, got a singular matrix"),
        ("0 0 0\n0 0 0\n0 0 0", "got a singular matrix"),
    ],
)
def test_bad_homography_is_refused(tmp_path: Path, text: str, match: str) -> None:
    (add_sequence(tmp_path, "v_wall") / "H_1_2").write_text(text)
    data = open_folder(tmp_path, "all")
    for action in (file_named(data, "v_wall/H_1_2").check, lambda: data.read(0)):
        with refused(match) as caught:
            action()
        assert "v_wall/H_1_2" in str(caught.value)


def test_homography_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "H_1_2"
    path.write_bytes(b"\xff\xfe\0")
    with pytest.raises(DataError, match="it is not UTF-8 text"):
        read_homography(path)
    with pytest.raises(DataError, match="no such file"):
        read_homography(tmp_path / "H_1_3")


def test_strong_perspective_and_large_shifts_are_no_singular_matrices(tmp_path: Path) -> None:
    path = tmp_path / "H_1_2"
    path.write_text("1e-3 0 2000\n0 1e-3 3000\n1e-8 0 1e-3")
    assert read_homography(path).shape == (3, 3)


def test_folder_with_spaces_and_other_letters(tmp_path: Path) -> None:
    add_sequence(tmp_path / "Wände und Böden" / "hpatches-sequences-release", "v_wall")
    assert len(open_data("hpatches", tmp_path / "Wände und Böden").read(0)) == 3


@pytest.mark.slow
def test_real_sequences(data_folder: Path) -> None:
    counts = {}
    for split in ("all", "viewpoint", "illumination"):
        data = open_data("hpatches", data_folder / "hpatches", split)
        counts[split] = len(data)
        assert data.problems == []
    assert counts == {"all": 245, "viewpoint": 120, "illumination": 125}
    data = open_data("hpatches", data_folder / "hpatches", "viewpoint")
    samples = [data.read(index) for index in range(0, len(data), 8)]
    assert all(len(sample) > 0.6 * sample.image0[0].numel() for sample in samples)
    ratios = [matched / unmoved for matched, unmoved in map(photometric_error, samples)]
    # Exposure differs between some photographs, so that they differ where they fit, too.
    assert sorted(ratios)[len(ratios) // 2] < 0.4
    assert max(ratios) < 0.9
    assert_centred(samples)
    for file in data.files()[:11]:
        file.check()
