import json
import re
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner

from support.bird_cases import write_birds
from support.dense_cases import write_flat_image, write_flo
from ucn.cli._report import print_columns
from ucn.cli.app import app
from ucn.data.catalogue import list_data

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Middlebury flow set of two pairs, 40 × 30 pixels, that move by (2, 1)."""
    root = tmp_path / "flow set"
    for scene in ("Door", "Wall"):
        for frame in ("frame10", "frame11"):
            write_flat_image(root / "other-data" / scene / f"{frame}.png", 40, 30)
        write_flo(root / "other-gt-flow" / scene / "flow10.flo", np.full((30, 40, 2), (2, 1)))
    return root


def run(*arguments: object) -> tuple[int, str]:
    result = runner.invoke(app, ["data", *map(str, arguments)])
    return result.exit_code, result.output


def test_list() -> None:
    code, output = run("list")
    assert code == 0
    lines = output.splitlines()
    assert len(lines) == len(list_data()) + 1  # one each, and a hint
    assert lines[0] == "kitti-flow         geometric  KITTI optical flow 2012 and 2015"
    assert lines[-1].startswith("`ucn data list NAME` shows layout, licence, source and options")
    code, output = run("list", "cub")
    assert code == 0
    assert "part_locs.txt" in output and "pairing=class" in output and "any two" in output
    code, output = run("list", "--json")
    listed = json.loads(output)["data"]
    assert {"name", "task", "ground_truth", "layout", "licence", "source", "options"} <= set(listed[0])
    code, output = run("list", "nothing")
    assert code == 1 and "no data set 'nothing'" in output


def test_check_of_good_data(folder: Path) -> None:
    code, output = run("check", "middlebury-flow", folder)
    assert code == 0, output
    assert "nothing wrong" in output
    code, output = run("check", "middlebury-flow", folder, "--json")
    report = json.loads(output)
    assert code == 0
    assert report["is_good"] and report["pairs"] == 2 and report["points"] == 2 * 38 * 29
    assert report["files"] == {"flow": 2, "image": 4}


def test_check_exits_1_and_names_what_is_wrong(folder: Path) -> None:
    bad = folder / "other-data" / "Door" / "frame11.png"
    bad.write_bytes(bad.read_bytes()[:60])
    code, output = run("check", "middlebury-flow", folder)
    assert code == 1
    assert "frame11.png" in output and "1 problem\n" in output
    code, output = run("check", "middlebury-flow", folder, "--json")
    report = json.loads(output)
    assert code == 1 and not report["is_good"]
    assert [Path(problem["file"]).name for problem in report["faults"]] == ["frame11.png"]
    assert report["pairs_read"] == 1


def test_check_of_many_problems_counts_the_rest(folder: Path) -> None:
    for number in range(30):
        write_flat_image(folder / "other-data" / f"Extra{number}" / "frame10.png", 4, 3)
        write_flo(folder / "other-gt-flow" / f"Extra{number}" / "flow10.flo", [[[0, 0]] * 4] * 3)
    code, output = run("check", "middlebury-flow", folder)
    assert code == 1
    assert "… and 10 more problems" in output and "30 problems" in output


def test_check_of_a_wrong_folder_is_one_line(folder: Path) -> None:
    code, output = run("check", "cub", folder)
    assert code == 1
    assert output.startswith("error: ") and "it looks like 'middlebury-flow'" in output


def test_show(folder: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    code, output = run("show", "middlebury-flow", folder, "-n", 4, "-o", sheet)
    assert code == 0, output
    assert "1,102 correspondences" in output
    with PIL.Image.open(sheet) as image:
        assert image.width == 1200 and image.height > 600
    code, output = run("show", "middlebury-flow", folder, "-o", sheet)
    assert code == 1 and "exists already" in output
    code, output = run("show", "middlebury-flow", folder, "-o", sheet, "--overwrite", "--json")
    assert code == 0 and json.loads(output)["pairs"] == {"Door": 1102, "Wall": 1102}
    code, output = run("show", "middlebury-flow", folder, "-o", tmp_path / "sheet.txt")
    assert code == 1 and "must end in" in output


def test_show_and_convert_say_what_was_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "other-data" / "Door" / "frame11.png").unlink()
    code, output = run("show", "middlebury-flow", folder, "-o", tmp_path / "sheet.png")
    assert code == 0 and "warning: 1 entries were left out" in output and "frame11.png" in output
    (folder / "other-data" / "Wall" / "frame11.png").unlink()
    for verb, made in (("show", tmp_path / "other.png"), ("convert", tmp_path / "own")):
        code, output = run(verb, "middlebury-flow", folder, "-o", made)
        assert code == 1 and "has no usable pair" in output and "frame11.png" in output
        assert not made.exists()


def test_list_of_one_prints_layout_licence_and_whole_addresses() -> None:
    output = run("list", "kitti-flow")[1]
    assert "CC BY-NC-SA" in output
    assert "https://www.cvlibs.net/datasets/kitti/eval_scene_flow.php?benchmark=flow" in output
    assert "training/flow_noc/NNNNNN_10.png" in output


def test_convert_then_check_as_own(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "own"
    code, output = run("convert", "middlebury-flow", folder, "-o", made, "--max-points", 50)
    assert code == 0, output
    assert "images   4, 4 of them copied unchanged\n" in output
    code, output = run("check", "own", made, "--json")
    report = json.loads(output)
    assert code == 0, output
    assert (report["pairs"], report["points"]) == (2, 100)
    code, output = run("convert", "middlebury-flow", folder, "-o", made)
    assert code == 1 and "exist" in output
    code, output = run(
        "convert", "middlebury-flow", folder, "-o", made, "--limit", 1, "--overwrite", "--json"
    )
    assert code == 0, output
    assert json.loads(output)["output"] == str(made)


def test_convert_of_annotated_images(tmp_path: Path) -> None:
    write_birds(tmp_path / "birds")
    arguments = ("convert", "cub", tmp_path / "birds", "--limit", 4, "--json")
    for layout, name in (((), "keypoints.csv"), (("--layout", "coco"), "keypoints.json")):
        made = tmp_path / name.replace(".", "-")
        code, output = run(*arguments, "-o", made, *layout)
        assert code == 0, output
        assert json.loads(output)["image_count"] == 4
        assert (made / name).is_file()
        code, output = run("check", "own", made, "--json")
        assert code == 0 and json.loads(output)["pairs"] == 2, output
    code, output = run(*arguments, "-o", tmp_path / "pairs", "--layout", "pairs", "--max-points", 2)
    assert code == 0 and (tmp_path / "pairs" / "pairs.csv").is_file(), output
    code, output = run(*arguments, "-o", tmp_path / "none", "--max-points", 2)
    assert code == 2 and "add --layout pairs" in " ".join(output.split())
    assert not (tmp_path / "none").exists()


def test_unknown_option_is_refused(folder: Path) -> None:
    code, output = run("check", "middlebury-flow", folder, "--option", "colour=red")
    assert code == 1 and "has no option 'colour'" in output


def test_a_narrow_terminal_cuts_lines_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("one", "1", "short"), ("three", "22", "a long title")]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "16")
    print_columns(rows)
    assert _plain(capsys.readouterr().out) == ["one    1   short", "three  22  a lo…"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    print_columns(rows)
    assert _plain(capsys.readouterr().out) == ["one    1   short", "three  22  a long title"]


def _plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[\d*m", "", text).splitlines()
