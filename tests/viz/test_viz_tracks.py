"""Drawn tracks, and the video they are written to."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ucn.errors import OutputError
from ucn.matching.tracking import TrackedFrame
from ucn.viz.tracks import TrackPainter, VideoFile

NAN = float("nan")
GREY = np.full((81, 101, 3), 128, np.uint8)


def make_frame(number: int, points: list[list[float]]) -> TrackedFrame:
    places = np.array(points, np.float32).reshape(-1, 2)
    is_lost = np.isnan(places[:, 0])
    return TrackedFrame(number, places, np.where(is_lost, 0, 1).astype(np.float32), is_lost)


def is_painted(painted: NDArray[np.uint8], x: int, y: int, reach: int = 6) -> bool:
    around = painted[max(y - reach, 0) : y + reach + 1, max(x - reach, 0) : x + reach + 1]
    return bool((around != 128).any())


def test_point_and_tail_are_drawn() -> None:
    painter = TrackPainter()
    painter.paint(GREY, make_frame(0, [[20, 20], [80, 60]]))
    painted = painter.paint(GREY, make_frame(1, [[50, 20], [80, 60]]))
    assert is_painted(painted, 50, 20, 0)
    assert is_painted(painted, 35, 20, 0)  # the tail
    assert (GREY == 128).all()
    assert painted.shape == GREY.shape


@pytest.mark.parametrize("others", [0, 40])
def test_lost_points_are_crosses_where_they_were_last_seen(others: int) -> None:
    painter = TrackPainter()
    elsewhere = [[150.0, 150.0]] * others
    large = np.full((200, 300, 3), 128, np.uint8)
    painter.paint(large, make_frame(0, [[20, 20], [250, 40], *elsewhere]))
    seen = painter.paint(large, make_frame(1, [[60, 20], [250, 60], *elsewhere]))
    for number in (2, 3):
        lost = painter.paint(large, make_frame(number, [[60, 20], [NAN, NAN], *elsewhere]))
    reach = 2 if others else 4
    assert is_painted(lost, 250, 60, 0)
    assert is_painted(lost, 250 + reach, 60 + reach, 0)
    assert not is_painted(lost, 250, 60 + reach + 2, 0)
    assert (lost[60, 250] != seen[60, 250]).any()
    assert is_painted(lost, 20, 190)  # the note: lost: 1 of N
    assert not is_painted(seen, 20, 190)
    found = painter.paint(large, make_frame(4, [[60, 20], [220, 100], *elsewhere]))
    assert is_painted(found, 220, 100, 0)
    assert not is_painted(found, 20, 190)


def test_points_that_were_never_seen_are_not_marked() -> None:
    painted = TrackPainter().paint(GREY, make_frame(0, [[NAN, NAN], [20, 20]]))
    assert painted.shape == GREY.shape
    assert is_painted(painted, 20, 20, 0)


def test_neighbours_have_different_colours_and_keep_them() -> None:
    large = np.full((200, 600, 3), 128, np.uint8)
    starts = [[20.0 + 45 * column, 50.0 + 60 * row] for row in range(2) for column in range(12)]
    painter = TrackPainter()
    first, second = (painter.paint(large, make_frame(number, starts)) for number in range(2))
    colours = np.array([first[round(y), round(x)] for x, y in starts], int).reshape(2, 12, 3)
    assert np.abs(np.diff(colours, axis=1)).max(axis=-1).min() > 40
    assert np.abs(np.diff(colours, axis=0)).max(axis=-1).min() > 40
    again = np.array([second[round(y), round(x)] for x, y in starts], int).reshape(2, 12, 3)
    assert (colours == again).all()


def test_markers_grow_with_the_frame() -> None:
    sizes = []
    for scale in (1, 4):
        large = np.full((50 * scale, 960 * scale, 3), 128, np.uint8)
        painted = TrackPainter().paint(large, make_frame(0, [[480.0 * scale, 25.0 * scale]]))
        column = painted[:, 480 * scale]
        sizes.append(int((column != 128).any(axis=-1).sum()))
    assert sizes[1] == pytest.approx(4 * sizes[0], rel=0.15)


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
        assert (tmp_path / "v.mp4").read_bytes() == b"mine"
