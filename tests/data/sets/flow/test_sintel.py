import math
from pathlib import Path

import numpy as np
import pytest
import torch

from support.dense_cases import (
    correspondences,
    file_named,
    problem_texts,
    write_flat_image,
    write_flo,
    write_grey,
)
from support.photometric_rule import assert_centred, assert_photometric_rule
from ucn.data.catalogue import open_data
from ucn.data.sets.flow.sintel import VALIDATION_SCENES, open_folder
from ucn.errors import DataError, UcnError

COUNTS = {"alley": "12", "ambush": "24567", "bamboo": "12", "bandage": "12", "cave": "24", "market": "256"}
COUNTS |= {"mountain": "1", "shaman": "23", "sleeping": "12", "temple": "23"}
SCENES = [f"{place}_{number}" for place, numbers in COUNTS.items() for number in numbers]


def add_scene(root: Path, scene: str = "alley_1", frames: int = 3) -> Path:
    """Frames of 4 × 2 pixels that all stay where they are; returns the folder training."""
    training = root / "training"
    for number in range(1, frames + 1):
        for render_pass in ("clean", "final"):
            write_flat_image(training / render_pass / scene / f"frame_{number:04}.png", 4, 2)
        if number < frames:
            write_flo(training / "flow" / scene / f"frame_{number:04}.flo", np.zeros((2, 4, 2)))
            for mask in ("occlusions", "invalid"):
                write_grey(training / mask / scene / f"frame_{number:04}.png", np.zeros((2, 4)))
    return training


def names_of(root: Path, split: str) -> list[str]:
    data = open_folder(root, split)
    return [data.pair_name(index) for index in range(len(data))]


def test_every_visible_pixel_by_hand(tmp_path: Path) -> None:
    training = add_scene(tmp_path, frames=2)
    flow = np.full((2, 4, 2), 1e10)
    flow[0, 0], flow[0, 1], flow[0, 2], flow[1, 3], flow[1, 0] = (
        (1.5, 1),
        (0, 0.25),
        (1, 0),
        (-1, 0.5),
        (0, 1),
    )
    write_flo(training / "flow" / "alley_1" / "frame_0001.flo", flow)
    write_grey(training / "occlusions" / "alley_1" / "frame_0001.png", [[0, 255, 0, 0], [0, 0, 0, 0]])
    write_grey(training / "invalid" / "alley_1" / "frame_0001.png", [[0, 0, 255, 0], [0, 0, 0, 0]])
    data = open_folder(tmp_path, "training")
    sample = data.read(0)
    # (1, 0) is hidden, (2, 0) invalid, (0, 1) leaves the image, the rest unknown.
    assert correspondences(sample) == {(0, 0): (1.5, 1), (3, 1): (2, 1.5)}
    assert (sample.name, sample.points1.dtype) == ("clean/alley_1/frame_0001", torch.float32)
    kept = open_folder(tmp_path, "training", keep_occluded=True).read(0)
    assert correspondences(kept) == {(0, 0): (1.5, 1), (1, 0): (1, 0.25), (3, 1): (2, 1.5)}
    assert [path.parent.parent.name for path in data.pair_files(0)] == [
        "clean",
        "clean",
        "invalid",
        "occlusions",
        "flow",
    ]


def test_each_frame_goes_with_the_next(tmp_path: Path) -> None:
    add_scene(tmp_path, frames=3)
    data = open_folder(tmp_path, "training", render_pass="final")
    assert [data.pair_name(index) for index in range(len(data))] == [
        "final/alley_1/frame_0001",
        "final/alley_1/frame_0002",
    ]
    assert [[path.name for path in data.image_paths(index)] for index in range(2)] == [
        ["frame_0001.png", "frame_0002.png"],
        ["frame_0002.png", "frame_0003.png"],
    ]
    assert data.image_paths(0)[0].parent.parent.name == "final"
    kinds = [file.kind for file in data.files()]
    assert (kinds.count("image"), kinds.count("flow"), kinds.count("mask")) == (3, 2, 4)
    for file in data.files():
        file.check()


def test_splits_part_scenes(tmp_path: Path) -> None:
    for scene in SCENES:
        add_scene(tmp_path, scene, frames=2)
    assert len(SCENES) == 23
    train, val = names_of(tmp_path, "train"), names_of(tmp_path, "val")
    assert sorted(train + val) == names_of(tmp_path, "training") == [f"clean/{s}/frame_0001" for s in SCENES]
    assert [name.split("/")[1] for name in val] == list(VALIDATION_SCENES)
    places = {name.split("/")[1].split("_")[0] for name in train}
    assert places.isdisjoint(scene.split("_")[0] for scene in VALIDATION_SCENES)


def test_missing_partners_are_problems(tmp_path: Path) -> None:
    training = add_scene(tmp_path, "a", 3)
    for scene in "bcd":
        add_scene(tmp_path, scene, 2)
    (training / "clean" / "a" / "frame_0002.png").unlink()
    (training / "flow" / "b" / "frame_0001.flo").unlink()
    (training / "occlusions" / "c" / "frame_0001.png").unlink()
    data = open_folder(tmp_path, "training")
    assert [data.pair_name(index) for index in range(len(data))] == ["clean/d/frame_0001"]
    assert [text.split(":")[0] for text in problem_texts(data)] == [
        "training/clean/a/frame_0002.png",
        "training/clean/a/frame_0002.png",
        "training/flow/b/frame_0001.flo",
        "training/occlusions/c/frame_0001.png",
    ]
    assert all("no such file, though frame_000" in text for text in problem_texts(data))


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "test" / "clean").mkdir(parents=True)
    with pytest.raises(DataError, match="holds only Sintel's test frames, whose ground truth is not public"):
        open_folder(tmp_path, "training")
    training = add_scene(tmp_path)
    with pytest.raises(DataError, match="split 'val' is empty: no training/flow/SCENE"):
        open_folder(tmp_path, "val")
    with pytest.raises(DataError, match="option render_pass of sintel must be one of clean, final, got 'x'"):
        open_folder(tmp_path, "training", render_pass="x")
    (training / "occlusions").rename(training / "elsewhere")
    with pytest.raises(DataError, match=r"no folder .*occlusions: unpack Sintel's complete training archive"):
        open_folder(tmp_path, "training")
    assert len(open_folder(tmp_path, "training", keep_occluded=True)) == 2
    (training / "final").rename(training / "elsewhere_too")
    with pytest.raises(DataError, match=r"no folder .*final"):
        open_folder(tmp_path, "training", render_pass="final", keep_occluded=True)


GOOD = b"PIEH" + np.array([4, 2], "<i4").tobytes() + bytes(64)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is not a .flo file"),
        (b"PIEX" + GOOD[4:], "expected it to begin with 'PIEH', got b'PIEX'"),
        (GOOD[:11], "is not a .flo file"),
        (GOOD[:-1], "expected 12 header bytes and 8 for each of 4 × 2 vectors, got 75 in all"),
        (GOOD + b"\0", "got 77 in all"),
        (b"PIEH" + np.array([-4, -2], "<i4").tobytes() + bytes(64), "got 76 in all"),
        (
            b"PIEH" + np.array([2, 4], "<i4").tobytes() + bytes(64),
            r"expected 4 × 2 .* as image .*, got 2 × 4",
        ),
    ],
)
def test_bad_flow_is_refused(tmp_path: Path, content: bytes, match: str) -> None:
    training = add_scene(tmp_path, frames=2)
    (training / "flow" / "alley_1" / "frame_0001.flo").write_bytes(content)
    data = open_folder(tmp_path, "training")
    for action in (file_named(data, "frame_0001.flo").check, lambda: data.read(0)):
        with pytest.raises(DataError, match=match) as caught:
            action()
        assert "flow/alley_1/frame_0001.flo" in str(caught.value)


def test_vectors_that_are_no_numbers_are_unknown(tmp_path: Path) -> None:
    training = add_scene(tmp_path, frames=2)
    flow = np.zeros((2, 4, 2))
    flow[0, 0, 0], flow[1, 1, 1], flow[0, 3] = math.nan, math.inf, -1e12
    write_flo(training / "flow" / "alley_1" / "frame_0001.flo", flow)
    found = correspondences(open_folder(tmp_path, "training").read(0))
    assert set(found) == {(1, 0), (2, 0), (0, 1), (2, 1), (3, 1)}


def test_bad_masks_are_refused(tmp_path: Path) -> None:
    training = add_scene(tmp_path, frames=2)
    mask = write_grey(training / "invalid" / "alley_1" / "frame_0001.png", np.zeros((3, 4)))
    data = open_folder(tmp_path, "training")
    for content, match in (
        (mask.read_bytes(), "must be as large as its image, 4 × 2, got 4 × 3"),
        (mask.read_bytes()[:40], "cannot read mask"),
    ):
        mask.write_bytes(content)
        for action in (file_named(data, "invalid/alley_1/frame_0001.png").check, lambda: data.read(0)):
            with pytest.raises(UcnError, match=match):
                action()


def test_folder_with_spaces_and_other_letters(tmp_path: Path) -> None:
    add_scene(tmp_path / "Kino für alle" / "MPI-Sintel-complete")
    data = open_data("sintel", tmp_path / "Kino für alle", options={"keep_occluded": "true"})
    assert len(data.read(1)) == 8


@pytest.mark.parametrize("render_pass", ["clean", "final"])
def test_real_pair(data_folder: Path, render_pass: str) -> None:
    data = open_data("sintel", data_folder / "sintel", options={"render_pass": render_pass})
    assert (len(data), data.problems) == (1, [])
    for file in data.files():
        file.check()
    sample = data.read(0)
    assert len(sample) > 400_000
    assert_photometric_rule(sample, 0.3)
    assert_centred([sample])
    kept = open_folder(data_folder / "sintel", "training", render_pass=render_pass, keep_occluded=True)
    assert len(kept.read(0)) > len(sample)
