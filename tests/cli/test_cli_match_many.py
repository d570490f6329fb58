"""`ucn match` for many pairs, and `ucn match --verify`."""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from support.pair_cases import write_tiny_images
from ucn.cli.app import app
from ucn.data.io import read_image
from ucn.data.match_files import read_matches
from ucn.files.arrays import read_npz

pytestmark = pytest.mark.usefixtures("shift_matchers")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_ok(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A folder with a list of two pairs of its images."""
    write_tiny_images(tmp_path / "scene", "1.png", "2.png", "below/3.png")
    (tmp_path / "scene" / "pairs.txt").write_text("1.png 2.png\n1.png below/3.png\n")
    return tmp_path / "scene"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with two images of one name each, and others."""
    write_tiny_images(tmp_path / "before", "1.png", "2.png", "only.png")
    write_tiny_images(tmp_path / "after", "1.jpg", "2.png", "x.png", "y.png")
    return tmp_path / "before", tmp_path / "after"


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestList:
    def test_a_file_a_pair_and_a_summary(self, scene: Path, out: Path, shift_matchers: list[Any]) -> None:
        text = run_ok("match", "--pairs", scene / "pairs.txt", "-o", out / "m")
        assert list_names(out / "m") == ["1__2.npz", "1__below-3.npz", "progress.jsonl", "summary.csv"]
        for words in (
            "pairs       2",
            "matches     80, 40 per pair",
            "2 of 2 pairs at least 0.5",
            "3 images encod",
        ):
            assert words in text
        assert read_matches(out / "m" / "1__2.npz")[1]["weights"]["name"] == "shift"
        assert len(shift_matchers) == 1
        assert len(shift_matchers[0].encoded) == 3

    def test_root(self, scene: Path, out: Path) -> None:
        (scene / "pairs.txt").rename(out / "list.txt")
        missing = run("match", "--pairs", out / "list.txt", "-o", out / "m")
        assert missing.exit_code == 1
        assert "give the folder that its names are relative to by --root" in missing.stderr
        assert list_names(out) == ["list.txt"]
        run_ok("match", "--pairs", out / "list.txt", "--root", scene, "-o", out / "m")
        assert "1__2.npz" in list_names(out / "m")

    def test_json(self, scene: Path, out: Path) -> None:
        options = ("--format", "csv", "--verify", "homography", "--threshold", "2.5", "--json")
        report = json.loads(run_ok("match", "--pairs", scene / "pairs.txt", "-o", out, *options))
        assert (report["command"], report["pairs"], report["failed"], report["resumed"]) == ("match", 2, 0, 0)
        assert (report["matches"], report["inliers"], report["encodings"]) == (80, 60, 3)
        assert report["verify"] == {"model": "homography", "threshold_px": 2.5, "seed": 0}
        assert report["list"] == str(scene / "pairs.txt")
        assert report["outputs"] == [str(out), str(out / "summary.csv")]
        first = report["rows"][0]
        assert (first["image0"], first["image1"], first["file"]) == ("1.png", "2.png", "1__2.csv")
        assert (first["matches"], first["inliers"], first["pair_score"]) == (40, 30, 0.75)
        assert first["error"] == ""
        rows = list(csv.DictReader((out / "1__2.csv").read_text().splitlines()))
        assert [row["is_inlier"] for row in rows] == ["1"] * 30 + ["0"] * 10

    def test_options_reach_the_matcher(self, scene: Path, out: Path, shift_matchers: list[Any]) -> None:
        options = ("--keypoints", "grid", "--min-score", "0.2", "--no-consensus", "--no-views")
        run_ok("match", "--pairs", scene / "pairs.txt", "-o", out, *options)
        config = shift_matchers[0].config
        assert (config.keypoints, config.min_score) == ("grid", 0.2)
        assert (config.consensus, config.use_views) == (False, False)

    def test_a_bad_image_does_not_stop_the_rest(self, scene: Path, out: Path) -> None:
        (scene / "2.png").write_bytes(b"x")
        result = run("match", "--pairs", scene / "pairs.txt", "-o", out)
        assert result.exit_code == 1
        assert "failed      1" in result.stdout
        assert "failed: 1.png 2.png: cannot read image 2.png: it is damaged" in result.stderr
        assert list_names(out) == ["1__below-3.npz", "progress.jsonl", "summary.csv"]
        assert "cannot read image 2.png" in (out / "summary.csv").read_text()
        write_tiny_images(scene, "2.png")
        assert "pairs       2, 1 of them by an earlier run" in run_ok(
            "match", "--pairs", scene / "pairs.txt", "-o", out
        )

    def test_many_failures_are_counted(self, scene: Path, out: Path) -> None:
        (scene / "pairs.txt").write_text("1.png 2.png\n" + "".join(f"1.png no{i}.png\n" for i in range(7)))
        result = run("match", "--pairs", scene / "pairs.txt", "-o", out)
        assert result.exit_code == 1
        assert result.stderr.count("failed: 1.png no") == 5
        assert "failed: 2 more (summary.csv and --json list all)" in result.stderr

    def test_other_settings_need_overwrite(self, scene: Path, out: Path) -> None:
        command = ("match", "--pairs", scene / "pairs.txt", "-o", out)
        run_ok(*command)
        refused = run(*command, "--ratio", "0.8")
        assert refused.exit_code == 1
        assert refused.stderr.count("\n") == 1
        assert "other settings (config.ratio 1.0, now 0.8)" in refused.stderr
        assert "--overwrite" in refused.stderr
        run_ok(*command, "--ratio", "0.8", "--overwrite")

    def test_foreign_files_are_kept(self, scene: Path, out: Path) -> None:
        (out / "1__2.npz").write_bytes(b"mine")
        result = run("match", "--pairs", scene / "pairs.txt", "-o", out)
        assert result.exit_code == 1
        assert "1__2.npz exists already and was kept; use --overwrite" in result.stderr
        assert (out / "1__2.npz").read_bytes() == b"mine"

    def test_wrong_folders(self, scene: Path, out: Path, shift_matchers: list[Any]) -> None:
        (out / "file").touch()
        result = run("match", "--pairs", scene / "pairs.txt", "-o", out / "file")
        assert result.exit_code == 1
        assert "it is a file; give a folder with -o" in result.stderr
        result = run("match", "--pairs", scene / "pairs.txt", "-o", out / "no" / "m")
        assert result.exit_code == 1
        assert "does not exist; create it first" in result.stderr
        assert list_names(out) == ["file"]
        assert not shift_matchers  # before weights are loaded


class TestFolders:
    def test_equal_names(self, folders: tuple[Path, Path], out: Path) -> None:
        result = run("match", *folders, "-o", out)
        assert result.exit_code == 0, result.output
        assert list_names(out) == ["1__1.npz", "2__2.npz", "progress.jsonl", "summary.csv"]
        assert "left out: 1 image of" in result.stderr
        assert "without a partner of the same name (only.png)" in result.stderr
        assert "(x.png, y.png)" in result.stderr

    def test_json_lists_images_without_a_partner(self, folders: tuple[Path, Path], out: Path) -> None:
        report = json.loads(run_ok("match", *folders, "-o", out, "--json"))
        assert report["unpaired"] == {str(folders[0]): ["only.png"], str(folders[1]): ["x.png", "y.png"]}
        assert (report["folder0"], report["folder1"]) == tuple(map(str, folders))

    def test_all_pairs(self, folders: tuple[Path, Path], out: Path, shift_matchers: list[Any]) -> None:
        run_ok("match", *folders, "--all-pairs", "-o", out)
        assert len([name for name in list_names(out) if name.endswith(".npz")]) == 12
        assert len(shift_matchers[0].encoded) == 7

    def test_no_name_agrees(self, folders: tuple[Path, Path], tmp_path: Path, out: Path) -> None:
        write_tiny_images(tmp_path / "other", "z.png")
        result = run("match", folders[0], tmp_path / "other", "-o", out / "m")
        assert result.exit_code == 1
        assert "has the name of one of" in result.stderr
        assert "pair all images by --all-pairs" in result.stderr
        assert list_names(out) == []

    @pytest.mark.slow
    def test_drawings(self, folders: tuple[Path, Path], out: Path) -> None:
        run_ok("match", *folders, "-o", out / "m", "--draw", out / "drawings", "--verify", "fundamental")
        assert list_names(out / "drawings") == ["1__1.jpg", "2__2.jpg"]
        assert read_image(out / "drawings" / "1__1.jpg").shape[2] == 1600

    def test_drawings_among_the_images_are_refused(self, folders: tuple[Path, Path], out: Path) -> None:
        result = run("match", *folders, "-o", out / "m", "--draw", folders[1] / "drawings")
        assert result.exit_code == 1
        assert "it lies in the folder of images" in result.stderr
        assert list_names(out) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give two images, two folders, or --pairs FILE"),
        (("A",), "give two images, two folders, or --pairs FILE"),
        (("A", "A", "--pairs", "L", "-o", "m"), "only one of them"),
        (("--pairs", "L", "--all-pairs", "-o", "m"), "only one of them"),
        (("A", "A", "--root", "F"), "--root is the folder of the images of --pairs"),
        (("A", "A", "--all-pairs"), "--all-pairs is for two folders"),
        (("A", "A", "--format", "csv"), "--format is for many pairs"),
        (("A", "A", "--threshold", "2"), "--threshold is for --verify"),
        (("--pairs", "L"), "give -o FOLDER"),
        (
            ("--pairs", "L", "-o", "m.csv"),
            "give -o FOLDER instead of m.csv, and choose the format by --format",
        ),
        (
            ("--pairs", "L", "-o", "m", "--points", "L"),
            "--points, --mask, --mask0 and --mask1 are for two images",
        ),
        (
            ("--pairs", "L", "-o", "m", "--mask1", "A"),
            "--points, --mask, --mask0 and --mask1 are for two images",
        ),
        (("A", "A", "--verify", "pose"), "'pose' is not one of"),
        (("--pairs", "L", "-o", "m", "--draw", "d.png"), "give --draw FOLDER instead of d.png"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...],
    message: str,
    scene: Path,
    shift_matchers: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(scene)
    paths = {"A": scene / "1.png", "F": scene, "L": scene / "pairs.txt"}
    result = run("match", *(paths.get(word, word) for word in arguments))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())  # typer folds it into a box
    assert not shift_matchers
    assert list_names(scene) == ["1.png", "2.png", "below", "pairs.txt"]


class TestVerify:
    def test_inliers_are_counted_and_written(self, pair: tuple[str, str], out: Path) -> None:
        text = run_ok("match", *pair, "--verify", "homography", "-o", out / "m.npz")
        assert "inliers      40" in text
        assert "verified by  homography, threshold 3 px, seed 0" in text
        assert read_npz(out / "m.npz")["is_inlier"].tolist() == [True] * 40
        verification = read_matches(out / "m.npz")[1]["verification"]
        assert np.array(verification["H_0to1"])[:2, 2] == pytest.approx([5, -2], abs=1e-3)
        run_ok("match", *pair, "--verify", "homography", "-o", out / "m.h5")
        with h5py.File(out / "m.h5") as file:
            assert file["a.png/b.png/is_inlier"][()].all()

    def test_inliers_are_drawn(
        self, pair: tuple[str, str], out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[Any] = []

        def draw(*images: Any, is_inlier: Any, **_: Any) -> Any:
            given.append(is_inlier)
            return np.zeros((4, 4, 3), np.uint8)

        monkeypatch.setattr("ucn.viz.draw_matches", draw)
        (out / "p.csv").write_text("10,20\n30,40\n")
        run_ok("match", *pair, "--verify", "homography", "--draw", out / "m.png")
        run_ok("match", *pair, "--verify", "homography", "--draw", out / "p.png", "--points", out / "p.csv")
        run_ok("match", *pair, "--draw", out / "n.png")
        assert [None if each is None else each.sum() for each in given] == [40, 0, None]

    def test_json(self, pair: tuple[str, str]) -> None:
        report = json.loads(run_ok("match", *pair, "--verify", "homography", "--seed", "7", "--json"))
        assert report["inliers"] == 40
        assert report["verification"]["is_inlier"] == [True] * 40
        assert (report["verification"]["seed"], report["verification"]["threshold_px"]) == (7, 3.0)

    def test_failure_is_a_result(self, pair: tuple[str, str], out: Path) -> None:
        (out / "p.csv").write_text("10,20\n30,40\n")
        options = ("--points", out / "p.csv", "--verify", "fundamental")
        report = json.loads(run_ok("match", *pair, *options, "--json"))
        assert report["inliers"] == 0
        assert report["verification"]["failure"] == "2 matches; at least 15 are needed"
        assert [row["is_inlier"] for row in report["points"]] == [False, False]
        rows = list(csv.DictReader(StringIO(run_ok("match", *pair, *options))))
        assert [row["is_inlier"] for row in rows] == ["0", "0"]

    def test_without_it_nothing_is_added(self, pair: tuple[str, str], out: Path) -> None:
        report = json.loads(run_ok("match", *pair, "--json", "-o", out / "m.npz"))
        assert "inliers" not in report and "verification" not in report
        assert "is_inlier" not in read_npz(out / "m.npz")

    def test_wrong_threshold(self, pair: tuple[str, str]) -> None:
        result = run("match", *pair, "--verify", "homography", "--threshold", "-1")
        assert result.exit_code == 1
        assert result.stderr == "error: --threshold must be above 0 pixels, got -1\n"
