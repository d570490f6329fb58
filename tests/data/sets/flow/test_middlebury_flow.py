from pathlib import Path

import numpy as np
import pytest

from support.dense_cases import correspondences, problem_texts, write_flat_image, write_flo
from support.photometric_rule import assert_centred, assert_photometric_rule
from ucn.data.catalogue import open_data
from ucn.data.sets.flow.middlebury_flow import open_folder
from ucn.errors import DataError


def add_scene(root: Path, scene: str, images: str = "other-data") -> Path:
    """Two frames of 3 × 2 pixels whose first row goes one to the left; returns the flow's path."""
    for frame in ("frame10", "frame11"):
        write_flat_image(root / images / scene / f"{frame}.png", 3, 2)
    flow = np.full((2, 3, 2), 1e10)
    flow[0] = (-1, 0.25)
    return write_flo(root / "other-gt-flow" / scene / "flow10.flo", flow)


def test_every_known_pixel_by_hand(tmp_path: Path) -> None:
    add_scene(tmp_path, "Grove2")
    data = open_folder(tmp_path, "all")
    assert correspondences(data.read(0)) == {(1, 0): (0, 0.25), (2, 0): (1, 0.25)}  # (0, 0) leaves the image
    assert (data.pair_name(0), data.problems, data.notes) == ("Grove2", [], [])
    assert [path.name for path in data.pair_files(0)] == ["frame10.png", "frame11.png", "flow10.flo"]
    for file in data.files():
        file.check()


def test_scenes_without_public_flow_are_noted(tmp_path: Path) -> None:
    add_scene(tmp_path, "Urban2")
    write_flat_image(tmp_path / "other-data" / "Walking" / "frame10.png", 3, 2)
    data = open_folder(tmp_path, "all")
    assert (len(data), data.problems) == (1, [])
    assert data.notes == ["excluded, since their flow is missing: Walking"]


def test_grey_images_serve_too(tmp_path: Path) -> None:
    add_scene(tmp_path, "Urban2", "other-data-gray")
    assert len(open_folder(tmp_path, "all").read(0)) == 2


def test_missing_partners_are_problems(tmp_path: Path) -> None:
    for scene in ("Grove2", "Grove3", "Urban2"):
        add_scene(tmp_path, scene)
    (tmp_path / "other-data" / "Grove2" / "frame11.png").unlink()
    (tmp_path / "other-gt-flow" / "Grove3" / "flow10.flo").unlink()
    data = open_folder(tmp_path, "all")
    assert problem_texts(data) == [
        "other-data/Grove2/frame11.png: no such file, though Grove2 has others; unpack it again",
        "other-gt-flow/Grove3/flow10.flo: no such file, though Grove3 has others; unpack it again",
    ]
    assert [data.pair_name(index) for index in range(len(data))] == ["Urban2"]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no other-gt-flow in it"):
        open_folder(tmp_path, "all")
    (tmp_path / "other-gt-flow").mkdir()
    with pytest.raises(DataError, match="has no images: expected the folder other-data or other-data-gray"):
        open_folder(tmp_path, "all")
    (tmp_path / "other-data").mkdir()
    with pytest.raises(DataError, match=r"split 'all' is empty: no other-gt-flow/SCENE/flow10\.flo"):
        open_folder(tmp_path, "all")


def test_real_pairs(data_folder: Path) -> None:
    data = open_data("middlebury-flow", data_folder / "middlebury_flow")
    assert (len(data), data.problems) == (2, [])
    for file in data.files():
        file.check()
    samples = [data.read(index) for index in range(len(data))]
    for sample in samples:
        assert len(sample) > 0.9 * sample.image0[0].numel()
        assert_photometric_rule(sample, 0.3)
    assert_centred(samples)
