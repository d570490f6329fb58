import os
from pathlib import Path

import pytest

from support.dense_cases import write_flat_image, write_flo
from ucn.data.catalogue import (
    explain_options,
    find_info,
    guess_data,
    list_data,
    list_options,
    open_data,
    parse_options,
)
from ucn.data.checking import check_data
from ucn.errors import DataError

SAMPLES = {
    "kitti-flow": "kitti_flow_2015",
    "sintel": "sintel",
    "middlebury-flow": "middlebury_flow",
    "middlebury-stereo": "middlebury_stereo",
    "hpatches": "hpatches",
    "kitti-raw": "kitti_raw",
    "kitti-odometry": "kitti_odometry",
    "seven-scenes": "rgbd_7scenes",
    "strecha": "strecha",
    "cub": "cub",
    "faces": "helen_faces",
    "pf-willow": "pf_willow",
    "flowweb": "flowweb_toy",
    "colmap": "multiview/plush",
    "multiview": "multiview",
}


@pytest.fixture
def flow_folder(tmp_path: Path) -> Path:
    """A Middlebury flow set of one pair, in a folder whose name is hard."""
    root = tmp_path / "mes données ß"
    for frame in ("frame10", "frame11"):
        write_flat_image(root / "other-data" / "Wall" / f"{frame}.png", 4, 3)
    write_flo(root / "other-gt-flow" / "Wall" / "flow10.flo", [[[1, 0]] * 4] * 3)
    return root


def test_every_set_has_complete_metadata() -> None:
    infos = list_data()
    names = [info.name for info in infos]
    assert len(set(names)) == len(names) >= 19
    for info in infos:
        for value in (info.title, info.ground_truth, info.layout, info.splits, info.licence, info.markers):
            assert value, f"{info.name} leaves something empty"
        assert info.source.startswith("http") or info.name in (
            "synthetic",
            "own",
            "colmap",
            "multiview",
            "video",
        )
        assert find_info(info.name) is info


def test_every_option_has_a_plain_default() -> None:
    for info in list_data():
        for key, default in list_options(info.name).items():
            assert isinstance(default, (str, int, float, bool)), f"{info.name}: {key}"


def test_every_option_is_explained() -> None:
    for info in list_data():
        silent = [key for key, meaning in explain_options(info.name).items() if not meaning]
        assert not silent, f"open_folder of {info.name} does not say what {', '.join(silent)} means"


def test_unknown_names_are_refused_with_the_closest() -> None:
    with pytest.raises(DataError, match=r"no data set 'sintl'; did you mean 'sintel'\? \(there are"):
        find_info("sintl")


def test_unknown_split_and_options_are_refused(flow_folder: Path) -> None:
    with pytest.raises(DataError, match="middlebury-flow has no split 'night' \\(there are"):
        open_data("middlebury-flow", flow_folder, "night")
    with pytest.raises(DataError, match="sintel has no option 'pass' \\(there are: render_pass"):
        open_data("sintel", flow_folder, options={"pass": "final"})
    with pytest.raises(DataError, match="option keep_occluded of sintel must be bool, got 'maybe'"):
        open_data("sintel", flow_folder, options={"keep_occluded": "maybe"})


def test_options_are_converted() -> None:
    assert parse_options(["a=1", " b = x=y "]) == {"a": "1", "b": "x=y"}
    with pytest.raises(DataError, match="an option must be key=value, got 'a'"):
        parse_options(["a"])


def test_a_folder_with_a_hard_name_is_opened(flow_folder: Path) -> None:
    data = open_data("middlebury-flow", str(flow_folder))
    assert len(data) == 1
    assert len(data.read(0)) == 9  # of 12 vectors three lead out of the image


def test_the_folder_of_another_set_is_named(flow_folder: Path) -> None:
    assert guess_data(flow_folder) == ["middlebury-flow"]
    with pytest.raises(DataError, match="it looks like 'middlebury-flow'"):
        open_data("cub", flow_folder)
    assert guess_data(flow_folder / "missing") == []


@pytest.mark.parametrize("name", [info.name for info in list_data() if info.name != "video"])
@pytest.mark.parametrize("content", ["missing", "empty", "file", "zip"])
def test_what_is_no_folder_of_data_is_said(name: str, content: str, tmp_path: Path) -> None:
    place = tmp_path / "data"
    if content == "empty":
        place.mkdir()
    elif content == "file":
        place.write_text("hello")
    elif content == "zip":
        place = tmp_path / "data.zip"
        place.write_bytes(b"PK\x05\x06" + bytes(18))
    words = {
        "missing": "no folder",
        "empty": "does not have the expected layout",
        "file": "is a file; expected the folder",
        "zip": "is an archive; unpack it",
    }
    with pytest.raises(DataError, match=words[content]):
        open_data(name, place)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_check_passes_on_real_samples(name: str, data_folder: Path) -> None:
    folder = data_folder / SAMPLES[name]
    assert name in guess_data(folder)
    data = open_data(name, folder)
    report = check_data(data, max_pairs=6)
    assert report.is_good, [str(problem) for problem in report.problems[:5]]
    assert report.read_count > 0 and report.point_count > 0


def test_every_sample_with_a_reader_is_checked(data_folder: Path) -> None:
    # Images and weights alone: there is no correspondence to read.
    without_truth = {"photos", "examples", "googlenet", "peers", "caltech101", "pets", "voc_objects"}
    folders = {entry.name for entry in os.scandir(data_folder) if entry.is_dir()}
    assert folders - without_truth <= {Path(name).parts[0] for name in SAMPLES.values()}
