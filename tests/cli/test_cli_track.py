"""`ucn track`: outputs, refusals and wrong usage, with a matcher that shifts every point."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
from torch import Tensor
from typer.testing import CliRunner, Result

from support.point_cases import coco_values, write_json
from ucn.cli import _command
from ucn.cli.app import app
from ucn.config import MatchConfig
from ucn.errors import OutputError
from ucn.types import FloatArray, Matches


class NextMatcher:
    """Every point moves by one pixel to the right from frame to frame; the level of a frame is its number."""

    def __init__(self) -> None:
        self.config = MatchConfig()
        self.weights = SimpleNamespace(name="next", sha256="ab" * 32)

    def extract(self, image: Tensor) -> Any:
        number = round(float(image.mean()) * 255 / 8)
        return SimpleNamespace(number=number, image_hw=(int(image.shape[1]), int(image.shape[2])))

    def match_features(self, features0: Any, features1: Any, *, points: FloatArray) -> Matches:
        moved = points + np.array([features1.number - features0.number, 0], np.float32)
        ones = np.ones(len(points), np.float32)
        is_mutual = moved[:, 0] < 70
        return Matches(points, moved, ones, is_mutual, 0.5, features0.image_hw, features1.image_hw)


@pytest.fixture(autouse=True)
def _matcher_of_shifts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_command, "load_matcher", lambda *_: NextMatcher())


def test_consensus_reaches_the_matcher(
    frames: Path, points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[MatchConfig | None] = []

    def load(weights: str, config: MatchConfig | None, device: str | None) -> NextMatcher:
        configs.append(config)
        return NextMatcher()

    monkeypatch.setattr(_command, "load_matcher", load)
    for number, options in enumerate(((), ("--no-consensus",))):
        folder = tmp_path / f"tracks{number}"
        result = run(frames, "-o", folder, "--points", points, "--no-video", *options)
        assert result.exit_code == 0, result.output
    assert configs == [MatchConfig(use_views=False), MatchConfig(use_views=False, consensus=False)]


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(6):
        PIL.Image.new("RGB", (80, 64), (8 * number,) * 3).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "p.csv"
    path.write_text("x,y\n10,20\n66.5,30\n")
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["track", *map(str, arguments)])


def test_table_and_video(frames: Path, points: Path, out: Path) -> None:
    result = run(frames, "--points", points, "-o", out / "new", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["frames"], report["points"], report["seen_at_end"]) == (6, 2, 1)
    assert report["seen_share"] == pytest.approx(10 / 12)
    assert report["weights"]["name"] == "next"
    lines = (out / "new" / "tracks.csv").read_text().splitlines()
    assert lines[0] == "frame,point,x,y,score,is_lost"
    assert lines[1:5] == [
        "0,0,10.000,20.000,1.0000,0",
        "0,1,66.500,30.000,1.0000,0",
        "1,0,11.000,20.000,1.0000,0",
        "1,1,67.500,30.000,1.0000,0",
    ]
    assert lines[-1] == "5,1,nan,nan,0.0000,1"
    capture = cv2.VideoCapture(str(out / "new" / "tracks.mp4"))
    assert capture.get(cv2.CAP_PROP_FPS) == 25
    count = 0
    while capture.grab():
        count += 1
    capture.release()
    assert count == 6


def test_columns_of_the_points_are_kept(frames: Path, tmp_path: Path, out: Path) -> None:
    (tmp_path / "p.txt").write_text("name u v\n'eye' 10 20\nbeak 12 30\n")
    result = run(frames, "--points", tmp_path / "p.txt", "-o", out / "new", "--no-video")
    assert result.exit_code == 0, result.output
    lines = (out / "new" / "tracks.csv").read_text().splitlines()
    assert lines[0] == "frame,point,x,y,score,is_lost,name"
    assert lines[-1] == "5,1,17.000,30.000,1.0000,0,beak"
    path = write_json(tmp_path / "p.json", coco_values())
    result = run(frames, "--points", path, "-o", out / "other", "--no-video")
    assert result.exit_code == 1
    assert "the points are of 2 images, and none is '0.png'" in " ".join(result.output.split())


def test_clip_grid_and_limits(tmp_path: Path, out: Path) -> None:
    writer = cv2.VideoWriter(str(tmp_path / "c.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 10, (80, 64))
    for number in range(5):
        writer.write(np.full((64, 80, 3), 8 * number, np.uint8))
    writer.release()
    options = ("--grid", "30", "--max-frames", "3", "--no-video")
    result = run(tmp_path / "c.avi", *options, "-o", out)
    assert result.exit_code == 0, result.output
    assert "frames      3, there are more: see --max-frames" in result.stdout
    assert [path.name for path in out.iterdir()] == ["tracks.csv"]
    rows = np.loadtxt(out / "tracks.csv", delimiter=",", skiprows=1)
    assert len(rows) == 3 * len(rows[rows[:, 0] == 0])
    fast = run(tmp_path / "c.avi", "--grid", "30", "-o", out / "v", "--max-frames", "3")
    assert fast.exit_code == 0
    capture = cv2.VideoCapture(str(out / "v" / "tracks.mp4"))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(10)
    capture.release()


@pytest.mark.parametrize(("limit", "is_cut"), [("5", True), ("6", False), ("7", False)])
def test_truncated_videos(frames: Path, out: Path, limit: str, is_cut: bool) -> None:
    result = run(frames, "--grid", "30", "--max-frames", limit, "--no-video", "-o", out, "--json")
    assert json.loads(result.stdout)["is_cut"] is is_cut


def test_inputs_are_not_replaced(frames: Path, points: Path, out: Path) -> None:
    (out / "tracks.mp4").write_bytes(b"a video")
    (out / "tracks.csv").write_text("x,y\n1,2\n")
    for arguments in (
        (out / "tracks.mp4", "--points", points),
        (frames, "--points", out / "tracks.csv"),
    ):
        result = run(*arguments, "-o", out, "--overwrite")
        assert result.exit_code == 1
        assert "it is an input; give another name" in result.stderr
    assert (out / "tracks.mp4").read_bytes() == b"a video"
    assert (out / "tracks.csv").read_text() == "x,y\n1,2\n"


def test_existing_outputs_are_kept(frames: Path, points: Path, out: Path) -> None:
    (out / "tracks.mp4").write_bytes(b"mine")
    result = run(frames, "--points", points, "-o", out)
    assert result.exit_code == 1
    assert "exists already" in result.stderr
    assert [path.read_bytes() for path in out.iterdir()] == [b"mine"]
    assert run(frames, "--points", points, "-o", out, "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    "options", [(), ("--points", "p.csv", "--grid", "5"), ("--grid", "0"), ("--grid", "9", "--fps", "0")]
)
def test_wrong_usage(frames: Path, out: Path, options: tuple[str, ...]) -> None:
    assert run(frames, *options, "-o", out).exit_code == 2
    assert list(out.iterdir()) == []


def test_refusals(frames: Path, tmp_path: Path, out: Path) -> None:
    (tmp_path / "far.csv").write_text("x,y\n200,3\n")
    (tmp_path / "file").touch()
    for arguments, words in (
        ((tmp_path / "absent.mp4", "--grid", "9", "-o", out / "n"), "no such file"),
        ((frames, "--points", tmp_path / "far.csv", "-o", out / "n"), "lies outside the image"),
        ((frames, "--points", tmp_path / "no.csv", "-o", out / "n"), "no such file"),
        ((frames, "--grid", "9", "-o", tmp_path / "file"), "it is a file; give a folder"),
        ((frames, "--grid", "9", "-o", out / "no" / "n"), "does not exist; create it first"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert words in result.stderr
        assert list(out.iterdir()) == []


@pytest.mark.parametrize("has_folder", [False, True])
def test_no_video_without_its_table(
    frames: Path, out: Path, monkeypatch: pytest.MonkeyPatch, has_folder: bool
) -> None:
    """The table is written last; where that fails, the video that is whole by then does not stay either."""

    def fail(*_: object, **__: object) -> None:
        raise OutputError("cannot write tracks.csv: no space left on device")

    folder = out / "n"
    if has_folder:
        folder.mkdir()
        (folder / "tracks.mp4").write_bytes(b"before")
    monkeypatch.setattr("ucn.matching.tracking.write_tracks", fail)
    result = run(frames, "--grid", "30", "-o", folder, "--overwrite")
    assert result.exit_code == 1
    assert "no space left" in result.stderr
    found = {path.name: path.read_bytes() for path in folder.glob("*")}
    assert found == ({"tracks.mp4": b"before"} if has_folder else {})
    assert folder.exists() is has_folder


@pytest.mark.slow
def test_nothing_is_left_where_a_frame_is_damaged(frames: Path, out: Path) -> None:
    (frames / "7.png").write_text("no image")
    result = run(frames, "--grid", "30", "-o", out / "n")
    assert result.exit_code == 1
    assert "7.png: it is damaged" in result.stderr
    assert list(out.iterdir()) == []
    assert run(frames, "--grid", "30", "-o", out).exit_code == 1
    assert list(out.iterdir()) == []


def test_frames_of_several_sizes(frames: Path, points: Path, out: Path) -> None:
    PIL.Image.new("RGB", (160, 100), (48,) * 3).save(frames / "10.png")
    result = run(frames, "--points", points, "-o", out / "n")
    assert result.exit_code == 0, result.output
    assert "frames      7" in result.stdout
    assert len((out / "n" / "tracks.csv").read_text().splitlines()) == 1 + 7 * 2
    capture = cv2.VideoCapture(str(out / "n" / "tracks.mp4"))
    sizes = {capture.read()[1].shape for _ in range(7)}
    capture.release()
    assert sizes == {(64, 80, 3)}
