"""Drawn tracks, and the video they are written to."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from ucn.errors import OutputError
from ucn.matching.tracking import TrackedFrame
from ucn.viz.tracks import TrackPainter, VideoFile

GREY = np.full((81, 101, 3), 128, np.uint8)


def make_frame(number: int, points: list[list[float]]) -> TrackedFrame:
    places = np.array(points, np.float32).reshape(-1, 2)
    is_lost = np.isnan(places[:, 0])
    return TrackedFrame(number, places, np.where(is_lost, 0, 1).astype(np.float32), is_lost)


def test_point_and_tail_are_drawn_and_lost_points_are_not() -> None:
    painter = TrackPainter()
    nan = float("nan")
    painter.paint(GREY, make_frame(0, [[20, 20], [80, 60]]))
    painted = painter.paint(GREY, make_frame(1, [[50, 20], [nan, nan]]))
    changed = (painted != 128).any(axis=-1)
    assert changed[20, 50]
    assert changed[20, 35]  # the tail
    assert not changed[50:70, 70:90].any()
    assert (GREY == 128).all()
    assert painted.shape == GREY.shape


def test_many_points_and_none() -> None:
    points = np.random.default_rng(0).uniform(5, 75, (50, 2)).tolist()
    assert (TrackPainter().paint(GREY, make_frame(0, points)) != 128).any()
    assert (TrackPainter().paint(GREY, make_frame(0, [])) == 128).all()


def test_frames_of_other_sizes_are_scaled_into_the_first() -> None:
    painter = TrackPainter()
    painter.paint(GREY, make_frame(0, [[20, 20]]))
    wide = np.full((81, 202, 3), 128, np.uint8)  # fits with half its size, between black bars of 20 rows
    painted = painter.paint(wide, make_frame(1, [[100, 40]]))
    assert painted.shape == GREY.shape
    assert (painted[:20, 60:] == 0).all() and (painted[60:, 60:] == 0).all()
    assert (painted[22:58, 90:] == 128).all()
    assert (painted[40, 50] != 128).any()
    assert (painted[30, 35] != 128).any()  # the tail, from where the point was in the first frame


class TestVideo:
    def test_frames_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "v.mp4"
        with VideoFile(path, 12.5) as file:
            for level in (40, 120, 200):
                file.add(np.full((81, 101, 3), (level, 60, 60), np.uint8))
            assert not path.exists()
        capture = cv2.VideoCapture(str(path))
        assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(12.5)
        frames = [capture.read()[1] for _ in range(3)]
        assert not capture.read()[0]
        capture.release()
        assert frames[0].shape == (80, 100, 3)
        assert [abs(int(f[40, 50, 2]) - level) < 15 for f, level in zip(frames, (40, 120, 200), strict=True)]
        assert list(tmp_path.iterdir()) == [path]

    def test_nothing_is_left_of_a_broken_one(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="stop"), VideoFile(tmp_path / "v.mp4", 25) as file:
            file.add(GREY)
            raise RuntimeError("stop")
        assert list(tmp_path.iterdir()) == []

    def test_existing_file_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "v.mp4").write_bytes(b"mine")
        with pytest.raises(OutputError, match="exists already"):
            VideoFile(tmp_path / "v.mp4", 25)
        with VideoFile(tmp_path / "v.mp4", 25, overwrite=True) as file:
            file.add(GREY)
        assert (tmp_path / "v.mp4").read_bytes() != b"mine"
