"""Tracking: with matchers whose answers are known, and the real one on a texture that moves."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.errors import DataError, PointsError
from ucn.matching.tracking import TrackedFrame, open_frames, track_points, write_tracks
from ucn.types import Matches

Array = NDArray[np.float32]
Answers = Mapping[tuple[int, int], tuple[float, float, bool]]


class ScriptedMatcher:
    """Frame t is encoded as t; what it answers is read from a table.

    Its answers are (shift, score, is_mutual) for a pair of frames (from, to), the same for all points.
    """

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.encoded: list[int] = []
        self.asked: list[tuple[int, int, int]] = []

    def extract(self, image: Tensor) -> Any:
        number = int(image[0, 0, 0])
        self.encoded.append(number)
        return SimpleNamespace(number=number, image_hw=(int(image.shape[1]), int(image.shape[2])))

    def match_features(self, features0: Any, features1: Any, *, points: Array) -> Matches:
        pair = (features0.number, features1.number)
        self.asked.append((*pair, len(points)))
        shift, score, is_mutual = self.answers[pair]
        moved = (points + np.array([shift, 0], np.float32)).astype(np.float32)
        full = np.full(len(points), score, np.float32)
        return Matches(points, moved, full, np.full(len(points), is_mutual), 0.5, (50, 200), (50, 200))


def number_frames(count: int) -> Iterable[Tensor]:
    return (torch.full((3, 50, 200), float(number)) for number in range(count))


def track(answers: Answers, **options: Any) -> list[TrackedFrame]:
    count = max(pair[1] for pair in answers) + 1
    return list(track_points(ScriptedMatcher(answers), number_frames(count), [[10.0, 20.0]], **options))


GOOD, WEAK, ONE_WAY = (0.9, True), (0.4, True), (0.9, False)


class TestRules:
    def test_first_frame(self) -> None:
        frames = list(track_points(ScriptedMatcher({}), number_frames(1), [[10.0, 20.0], [3.5, 4.0]]))
        assert len(frames) == 1
        np.testing.assert_array_equal(frames[0].points, [[10, 20], [3.5, 4]])
        assert frames[0].scores.tolist() == [1, 1]
        assert not frames[0].is_lost.any()

    def test_each_frame_is_encoded_once(self) -> None:
        pairs = [(0, t) for t in range(1, 6)] + [(t, t + 1) for t in range(1, 5)]
        matcher = ScriptedMatcher(dict.fromkeys(pairs, (1.0, *GOOD)))
        list(track_points(matcher, number_frames(6), [[10.0, 20.0], [30.0, 20.0]]))
        assert matcher.encoded == [0, 1, 2, 3, 4, 5]
        assert len(matcher.asked) == 9
        assert {count for _, _, count in matcher.asked} == {2}

    def test_first_frame_is_believed_where_both_agree(self) -> None:
        frames = track({(0, 1): (2, *GOOD), (0, 2): (4.5, *GOOD), (1, 2): (2, 0.99, True)})
        assert [frame.points[0, 0] for frame in frames] == [10, 12, 14.5]

    def test_the_surer_one_where_they_differ(self) -> None:
        near = track({(0, 1): (2, *GOOD), (0, 2): (18, 0.6, True), (1, 2): (2, 0.8, True)})
        assert near[2].points[0, 0] == 14
        assert near[2].scores[0] == pytest.approx(0.8)
        far = track({(0, 1): (2, *GOOD), (0, 2): (18, 0.9, True), (1, 2): (2, 0.8, True)})
        assert far[2].points[0, 0] == 28

    @pytest.mark.parametrize("bad", [WEAK, ONE_WAY])
    def test_frame_before_helps_where_the_first_does_not(self, bad: tuple[float, bool]) -> None:
        frames = track({(0, 1): (2, *GOOD), (0, 2): (5, *bad), (1, 2): (3, *GOOD)})
        assert frames[2].points[0, 0] == 15
        assert not frames[2].is_lost[0]

    @pytest.mark.parametrize("bad", [WEAK, ONE_WAY])
    def test_lost_and_found_again(self, bad: tuple[float, bool]) -> None:
        frames = track({(0, 1): (2, *bad), (0, 2): (4, *GOOD)})
        assert frames[1].is_lost.tolist() == [True]
        assert np.isnan(frames[1].points).all()
        assert frames[1].scores.tolist() == [0]
        assert frames[2].points[0, 0] == 14

    def test_a_leap_is_not_believed_until_there_was_time_for_it(self) -> None:
        answers = {(0, t): (45, *GOOD) for t in range(1, 4)}  # of 200 px: one step is 20
        assert [bool(frame.is_lost[0]) for frame in track(answers)] == [False, True, True, False]
        assert not track({(0, 1): (45, *GOOD)}, max_step=0.5)[1].is_lost[0]

    def test_lower_scores_on_demand(self) -> None:
        assert not track({(0, 1): (2, *WEAK)}, min_score=0.3)[1].is_lost[0]

    def test_no_points_and_no_frames(self) -> None:
        frames = list(track_points(ScriptedMatcher({}), number_frames(3), np.zeros((0, 2))))
        assert [len(frame.points) for frame in frames] == [0, 0, 0]
        assert list(track_points(ScriptedMatcher({}), [], [[1.0, 1.0]])) == []

    @pytest.mark.parametrize(("shift", "is_lost"), [(44.0, False), (45.0, True)])
    def test_steps_between_frames_of_several_sizes(self, shift: float, is_lost: bool) -> None:
        """In a frame twice as large the point is expected at (20.5, 40.5), and may move by 40 pixels."""
        frames = [torch.zeros(3, 50, 200), torch.ones(3, 100, 400)]
        matcher = ScriptedMatcher({(0, 1): (shift, *GOOD)})
        _, tracked = track_points(matcher, frames, [[10.0, 20.0]])
        assert tracked.is_lost.tolist() == [is_lost]
        if not is_lost:
            assert tracked.points.tolist() == [[10 + shift, 20]]

    def test_wrong_input(self) -> None:
        with pytest.raises(PointsError, match="outside"):
            list(track_points(ScriptedMatcher({}), number_frames(1), [[500.0, 1.0]]))
        with pytest.raises(ValueError, match="min_score must be in"):
            list(track_points(ScriptedMatcher({}), [], [[1.0, 1.0]], min_score=2))
        with pytest.raises(ValueError, match="max_step must be above 0"):
            list(track_points(ScriptedMatcher({}), [], [[1.0, 1.0]], max_step=0))


def test_written_table(tmp_path: Path) -> None:
    lost = TrackedFrame(
        1,
        np.array([[np.nan, np.nan], [2.25, 3.0]], np.float32),
        np.array([0, 0.5], np.float32),
        np.array([True, False]),
    )
    write_tracks(tmp_path / "t.csv", [lost])
    assert (tmp_path / "t.csv").read_text().splitlines() == [
        "frame,point,x,y,score,is_lost",
        "1,0,nan,nan,0.0000,1",
        "1,1,2.250,3.000,0.5000,0",
    ]
    columns = {"name": ["left eye", "beak"], "score": ["a", "b"]}
    write_tracks(tmp_path / "t.csv", [lost, lost], overwrite=True, columns=columns)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0] == "frame,point,x,y,score,is_lost,name,input_score"
    assert [line.split(",")[-2:] for line in lines[1:]] == [["left eye", "a"], ["beak", "b"]] * 2


def write_moving_frames(folder: Path, count: int, speed: tuple[float, float]) -> None:
    """A texture that moves by `speed` from frame to frame."""
    folder.mkdir()
    noise = np.random.default_rng(0).uniform(0, 1, (300, 340, 3)).astype(np.float32)
    texture = cv2.GaussianBlur(noise, (0, 0), 2.5)
    texture = (texture - texture.min()) / (texture.max() - texture.min()) * 255
    for time in range(count):
        shift = np.array([[1, 0, speed[0] * time - 70], [0, 1, speed[1] * time - 50]], np.float32)
        moved = cv2.warpAffine(texture, shift, (176, 132), flags=cv2.INTER_CUBIC)
        image = PIL.Image.fromarray(np.clip(moved, 0, 255).astype(np.uint8))
        image.save(folder / f"frame{time}.png")


class TestFrames:
    def test_folder_in_the_order_of_its_numbers(self, tmp_path: Path) -> None:
        write_moving_frames(tmp_path / "f", 11, (1, 0))
        (tmp_path / "f" / "notes.txt").touch()
        (tmp_path / "f" / ".hidden.png").touch()
        frames = open_frames(tmp_path / "f", 100)
        assert len(frames) == 11
        assert frames.frame_path(2).name == "frame2.png"

    def test_neither_video_nor_folder(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "text.mp4").write_text("no clip")
        for path, words in (
            (tmp_path / "empty", "has no frames"),
            (tmp_path / "text.mp4", "is not a video"),
            (tmp_path / "absent.mp4", "no such file"),
        ):
            with pytest.raises(DataError, match=words):
                open_frames(path, 10)


@pytest.mark.slow
def test_real_matcher_follows_a_texture(tmp_path: Path) -> None:
    from ucn.matching.matcher import Matcher

    speed = (3.0, -1.25)
    write_moving_frames(tmp_path / "f", 5, speed)
    frames = open_frames(tmp_path / "f", 10)
    starts = np.array([[60.0, 70.0], [90.0, 60.0], [100.0, 90.0], [40.5, 100.25]])
    images: Sequence[Tensor] = [frames.read(number) for number in range(len(frames))]
    tracks = list(track_points(Matcher.from_pretrained("geometric", device="cpu"), images, starts))
    assert len(tracks) == 5
    is_seen = ~np.stack([frame.is_lost for frame in tracks])
    assert is_seen.mean() > 0.8
    for frame in tracks:
        errors = np.linalg.norm(frame.points - (starts + np.array(speed) * frame.number), axis=1)
        assert errors[~frame.is_lost].max(initial=0) < 1.5
