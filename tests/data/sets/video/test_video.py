"""Videos: a texture that moves by a known shift is tracked to it, whichever frame a decoder seeks to."""

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray

from support.photometric_rule import assert_photometric_rule
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data, skip_bad
from ucn.data.sets.video import frames as video_frames
from ucn.data.sets.video.frames import FrameFolder, Video
from ucn.data.sets.video.tracking import VideoData, open_folder, track_corners
from ucn.errors import DataError
from ucn.types import PairSample

SPEED = (1.25, -0.5)  # pixels by which the texture moves from frame to frame; warpAffine has steps of 1/32
SIZE = (160, 120)


def make_texture() -> NDArray[np.float32]:
    noise = np.random.default_rng(0).uniform(0, 1, (260, 300, 3)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 2.5)
    texture: NDArray[np.float32] = (smooth - smooth.min()) / (smooth.max() - smooth.min()) * 255
    return texture


def make_frame(texture: NDArray[np.float32], time: int) -> NDArray[np.uint8]:
    """BGR; what lies at p in frame 0 lies at p + time * SPEED here."""
    shift = np.array([[1, 0, SPEED[0] * time - 70], [0, 1, SPEED[1] * time - 50]], np.float32)
    moved = cv2.warpAffine(texture, shift, SIZE, flags=cv2.INTER_CUBIC)
    return np.clip(moved, 0, 255).astype(np.uint8)


def write_clip(path: Path, count: int = 24, fourcc: str = "MJPG", size: tuple[int, int] = SIZE) -> None:
    texture = make_texture()
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*fourcc), 25, size)
    assert writer.isOpened()
    for time in range(count):
        frame = make_frame(texture, time)
        writer.write(frame if size == SIZE else np.ascontiguousarray(cv2.resize(frame, size)))
    writer.release()


def write_frames(folder: Path, times: Sequence[int], pattern: str = "frame{}.png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texture = make_texture()
    for time in times:
        PIL.Image.fromarray(make_frame(texture, time)[..., ::-1]).save(folder / pattern.format(time))


def assert_moved(sample: PairSample, gap: int, tolerance: float = 0.2) -> None:
    assert len(sample) > 30
    wrong = sample.points1 - sample.points0 - gap * torch.tensor(SPEED)
    distance = wrong.norm(dim=-1)
    assert distance.median() < tolerance / 2
    assert distance.quantile(0.95) < tolerance


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "meine Clips ü"
    root.mkdir()
    write_clip(root / "clip é.avi")
    return root


class TestVideos:
    def test_pairs_of_a_video(self, folder: Path) -> None:
        data = open_data("video", folder)
        assert len(data) == 4  # 0-5, 5-10, 10-15, 15-20 of 24 frames
        assert data.problems == []
        assert data.notes == []
        assert data.pair_name(2) == "clip é.avi/000010--000015"
        clip = folder / "clip é.avi"
        assert data.image_paths(2) == (clip / "000010", clip / "000015")
        assert data.pair_files(2)[-1] == clip
        sample = data.read(2)
        assert sample.image0.shape == sample.image1.shape == (3, 120, 160)
        assert sample.points0.dtype == torch.float32
        assert sample.name == data.pair_name(2)

    @pytest.mark.parametrize(("gap", "step"), [(1, 1), (3, 4), (5, 5)])
    def test_points_move_as_the_texture_does_in_any_order(self, folder: Path, gap: int, step: int) -> None:
        data = open_folder(folder, "all", gap=gap, step=step)
        assert len(data) == len(range(0, 24 - gap, step))
        for index in np.random.default_rng(0).permutation(len(data)).tolist():
            assert_moved(data.read(index), gap)

    def test_colours_are_rgb_and_frames_the_right_ones(self, folder: Path) -> None:
        data = open_folder(folder, "all")
        expected = torch.from_numpy(make_frame(make_texture(), 15)[..., ::-1].copy()).permute(2, 0, 1) / 255
        for sample_image in (data.read(3).image0, data.read(2).image1):
            assert (sample_image - expected).abs().mean() < 0.02
            assert (sample_image.flip(0) - expected).abs().mean() > 0.05

    def test_photometric_rule(self, folder: Path) -> None:
        assert_photometric_rule(open_folder(folder, "all").read(0))

    @pytest.mark.parametrize(("name", "fourcc"), [("c.mp4", "mp4v"), ("c.avi", "XVID"), ("c.MP4", "mp4v")])
    def test_other_codecs_have_the_same_frames(self, tmp_path: Path, name: str, fourcc: str) -> None:
        write_clip(tmp_path / name, 40, fourcc)
        data = open_folder(tmp_path, "all", step=1)
        assert len(data) == 35
        for index in (30, 3, 17, 18, 0, 34):
            assert_moved(data.read(index), 5, tolerance=0.5)

    def test_a_video_itself(self, folder: Path) -> None:
        data = open_data("video", folder / "clip é.avi")
        assert data.root == folder
        assert len(data) == 4
        assert data.pair_name(0) == "clip é.avi/000000--000005"

    def test_several_videos(self, folder: Path) -> None:
        write_clip(folder / "a.avi", 12)
        write_clip(folder / "z short.avi", 3)
        PIL.Image.new("RGB", SIZE).save(folder / "thumbnail.png")
        data = open_folder(folder, "all")
        assert [data.pair_name(i) for i in range(3)] == [
            "a.avi/000000--000005",
            "a.avi/000005--000010",
            "clip é.avi/000000--000005",
        ]
        assert len(data) == 6
        assert len(data.notes) == 2
        assert "its 1 images are not used" in data.notes[0]
        assert "z short.avi has 3 frames, a pair needs 6 (option gap=5)" in data.notes[1]

    def test_files_are_really_read(self, folder: Path) -> None:
        data = open_folder(folder, "all")
        report = check_data(data)
        assert report.is_good
        assert report.file_counts == {"video": 1}
        content = (folder / "clip é.avi").read_bytes()
        (folder / "clip é.avi").write_bytes(content[: len(content) // 2])
        report = check_data(data)
        assert [problem.path.name for problem in report.problems] == ["clip é.avi"]
        assert "could be decoded only once" in report.problems[0].message
        assert len(skip_bad(data, report)) == 0

    def test_too_many_frames(self, folder: Path) -> None:
        data = open_folder(folder, "all", max_frames=12)
        assert len(data) == 2
        assert ["frames beyond 12 are not used" in note for note in data.notes] == [True]

    def test_validation_is_the_end_of_the_video(self, folder: Path) -> None:
        training, validation = open_folder(folder, "all", gap=1, step=1).split_off(0.25)
        assert validation.pair_name(0) == "clip é.avi/000018--000019"
        assert training.pair_name(len(training) - 1) == "clip é.avi/000016--000017"


class TestFrames:
    def test_numbers_in_names_count_by_value(self, tmp_path: Path) -> None:
        write_frames(tmp_path / "Bilder ä", [0, 2, 10, 1, 3, 11])
        data = open_folder(tmp_path / "Bilder ä", "all", gap=1, step=1)
        names = [data.pair_name(index) for index in range(5)]
        assert names[1:4] == ["frame1.png--frame2.png", "frame2.png--frame3.png", "frame3.png--frame10.png"]
        assert_moved(data.read(0), 1)
        assert_moved(data.read(3), 7)

    def test_a_pair_needs_every_frame_between(self, tmp_path: Path) -> None:
        write_frames(tmp_path, range(8), "{:03d}.png")
        data = open_folder(tmp_path, "all", gap=3, step=1)
        assert [path.name for path in data.pair_files(1)] == ["001.png", "002.png", "003.png", "004.png"]
        assert_moved(data.read(1), 3)
        (tmp_path / "002.png").write_bytes(b"no image")
        report = check_data(data)
        assert [problem.path.name for problem in report.problems] == ["002.png"]
        assert [skip_bad(data, report).pair_name(i) for i in range(2)] == [
            "003.png--006.png",
            "004.png--007.png",
        ]

    def test_folders_of_frames(self, tmp_path: Path) -> None:
        write_frames(tmp_path / "b", range(7))
        write_frames(tmp_path / "a", range(6))
        (tmp_path / "empty").mkdir()
        data = open_folder(tmp_path, "all", gap=5, step=1)
        assert [data.pair_name(i) for i in range(3)] == [
            "a/frame0.png--frame5.png",
            "b/frame0.png--frame5.png",
            "b/frame1.png--frame6.png",
        ]

    def test_frames_of_different_size(self, tmp_path: Path) -> None:
        write_frames(tmp_path, range(3), "{}.png")
        PIL.Image.new("RGB", (64, 48)).save(tmp_path / "1.png")
        data = open_folder(tmp_path, "all", gap=2)
        message = r"1.png has 64 × 48 pixels; expected 160 × 120 as the frames before it"
        with pytest.raises(DataError, match=message):
            data.read(0)

    def test_real_frames(self, data_folder: Path) -> None:
        data = open_folder(data_folder / "kitti_odometry" / "sequences" / "05" / "image_0", "all", gap=1)
        sample = data.read(1)
        assert len(sample) > 100
        assert_photometric_rule(sample)


class TestTracking:
    def test_one_colour_has_no_points(self) -> None:
        grey = np.full((40, 50), 100, np.uint8)
        points0, points1 = track_corners([grey, grey], 100, 1.0)
        assert points0.shape == points1.shape == (0, 2)

    def test_still_frames(self) -> None:
        grey = cv2.cvtColor(make_frame(make_texture(), 0), cv2.COLOR_BGR2GRAY).astype(np.uint8)
        points0, points1 = track_corners([grey] * 3, 60, 1.0)
        assert 30 < len(points0) <= 60
        np.testing.assert_allclose(points1, points0, atol=0.01)

    def test_another_scene_keeps_almost_nothing(self) -> None:
        texture = make_texture()
        frames = [make_frame(texture, 0), make_frame(texture[::-1, ::-1].copy(), 0)]
        greys = [cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY).astype(np.uint8) for frame in frames]
        whole, _ = track_corners([greys[0], greys[0]], 200, 1.0)
        kept, _ = track_corners(greys, 200, 1.0)
        assert len(kept) < 0.2 * len(whole)

    def test_points_that_leave_the_image_are_dropped(self) -> None:
        texture = make_texture()
        greys = [
            cv2.cvtColor(make_frame(texture, time), cv2.COLOR_BGR2GRAY).astype(np.uint8) for time in range(30)
        ]
        points0, points1 = track_corners(greys, 500, 1.0)
        assert points1[:, 0].max() <= 149
        assert points1[:, 1].min() >= 10
        assert points0[:, 1].min() > 24, "14.5 pixels up, and 10 from the border"


class _LyingCapture:
    """A clip of 300 frames whose jumps land up to 20 frames from where they were sent."""

    opened = 0
    jumps = 0
    is_lossy = False

    def __init__(self, _path: str, _backend: int) -> None:
        type(self).opened += 1
        self.place = -1

    def isOpened(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def get(self, what: int) -> float:
        sizes = {
            cv2.CAP_PROP_FRAME_WIDTH: 64.0,
            cv2.CAP_PROP_FRAME_HEIGHT: 48.0,
            cv2.CAP_PROP_FRAME_COUNT: 300.0,
        }
        return sizes.get(what, self.place * 40.0 + (self.place % 3))

    def set(self, _what: int, value: float) -> bool:
        type(self).jumps += 1
        self.place = max(-1, int(value) - 1 + (-20, 7, 20)[int(value) % 3])
        return True

    def grab(self) -> bool:
        self.place += 2 if self.is_lossy and self.place == 150 else 1
        return self.place < 300

    def retrieve(self) -> tuple[bool, NDArray[np.uint8]]:
        return True, np.full((48, 64, 3), self.place % 256, np.uint8)


class TestSeeking:
    @pytest.fixture
    def clip(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Video:
        (tmp_path / "clip.mp4").write_bytes(b"\0" * 100)
        monkeypatch.setattr(_LyingCapture, "opened", 0)
        monkeypatch.setattr(_LyingCapture, "jumps", 0)
        monkeypatch.setattr(cv2, "VideoCapture", _LyingCapture)
        return Video(tmp_path / "clip.mp4", 1000)

    def test_the_frame_that_was_requested_comes(self, clip: Video) -> None:
        assert len(clip) == 300
        for number in np.random.default_rng(0).integers(0, 300, 60).tolist():
            assert clip.read_grey(number)[0, 0] == number % 256
        assert _LyingCapture.jumps > 10

    def test_without_times_it_counts_from_the_front(self, clip: Video) -> None:
        clip._times = np.zeros(300)
        for number in (200, 250, 20, 299):
            assert clip.read_grey(number)[0, 0] == number % 256
        assert _LyingCapture.jumps == 0

    def test_a_frame_lost_on_the_way_is_noticed(self, clip: Video, monkeypatch: pytest.MonkeyPatch) -> None:
        assert clip.read_grey(100)[0, 0] == 100
        monkeypatch.setattr(_LyingCapture, "is_lossy", True)
        with pytest.raises(DataError, match="frame 160 differs from the first decoding"):
            clip.read_grey(160)

    def test_frames_are_kept_for_a_while(self, clip: Video) -> None:
        for number in (5, 6, 5, 6, 5):
            clip.read_grey(number)
        assert _LyingCapture.opened == 2, "one to count, one to read"
        assert len(clip._cache) == 2
        for number in range(100):
            clip.read_grey(number)
        assert len(clip._cache) == 64

    def test_a_forked_process_opens_its_own(self, clip: Video, monkeypatch: pytest.MonkeyPatch) -> None:
        clip.read_grey(5)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert clip.read_grey(50)[0, 0] == 50
        assert _LyingCapture.opened == 3

    def test_it_travels_to_other_processes(self, folder: Path) -> None:
        data = open_folder(folder, "all")
        expected = data.read(1)
        copy: VideoData = pickle.loads(pickle.dumps(data))
        assert torch.equal(copy.read(1).points1, expected.points1)
        assert torch.equal(copy.read(1).image0, expected.image0)


class TestWrong:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"gap": 0}, "option gap of video must be 1 or more, got 0"),
            ({"step": -1}, "option step of video must be 1 or more"),
            ({"max_points": 0}, "option max_points"),
            ({"max_error": 0.0}, "option max_error of video must be above 0"),
            ({"max_error": float("nan")}, "option max_error of video must be above 0"),
        ],
    )
    def test_options(self, folder: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            open_folder(folder, "all", **options)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is not a video: it is empty or text"),
            (b"#EXTM3U\n#EXTINF:5,\n/etc/passwd\n", "is not a video: it is empty or text"),
            (b"\0\0\0\x18ftypmp42" + b"\0\xff" * 500, "cannot be opened as a video"),
        ],
    )
    def test_a_video_among_others(self, folder: Path, content: bytes, message: str) -> None:
        (folder / "bad.mp4").write_bytes(content)
        data = open_folder(folder, "all")
        assert len(data) == 4
        assert [message in str(problem) for problem in data.problems] == [True]
        with pytest.raises(DataError, match=message):
            open_folder(folder / "bad.mp4", "all")

    def test_tiny_frames(self, tmp_path: Path) -> None:
        write_clip(tmp_path / "tiny.avi", 8, size=(16, 16))
        with pytest.raises(DataError, match="has 16 × 16 pixels; expected sides of at least 32"):
            Video(tmp_path / "tiny.avi", 100)

    def test_huge_frames(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(video_frames, "MAX_PIXELS", 10_000)
        with pytest.raises(DataError, match="at most 10,000 pixels in total"):
            Video(folder / "clip é.avi", 100)

    def test_nothing_there(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
        with pytest.raises(
            DataError, match=r"has no videos .* and no frames .*, also not in its sub-folders"
        ):
            open_folder(tmp_path, "all")
        with pytest.raises(DataError, match="no folder"):
            open_folder(tmp_path / "missing", "all")
        with pytest.raises(DataError, match="is a file; expected the folder"):
            open_folder(tmp_path / "notes.txt", "all")

    def test_a_video_too_short(self, tmp_path: Path) -> None:
        write_clip(tmp_path / "short.avi", 3)
        with pytest.raises(
            DataError, match=r"split 'all' is empty: .*short.avi has 3 frames, a pair needs 6"
        ):
            open_folder(tmp_path, "all")

    def test_a_video_that_is_cut_off_is_noted(self, folder: Path) -> None:
        content = (folder / "clip é.avi").read_bytes()
        (folder / "clip é.avi").write_bytes(content[: len(content) * 2 // 3])
        data = open_folder(folder, "all")
        assert 0 < len(data) < 4
        assert ["its header has 24 frames" in note for note in data.notes] == [True]

    def test_no_such_pair(self, folder: Path) -> None:
        with pytest.raises(IndexError, match="the set has 4"):
            open_folder(folder, "all").read(4)

    def test_a_long_number_in_a_name(self, tmp_path: Path) -> None:
        write_frames(tmp_path, range(2))
        PIL.Image.new("RGB", SIZE).save(tmp_path / f"{'9' * 200}.png")
        assert len(FrameFolder(tmp_path, list(tmp_path.iterdir()))) == 3
