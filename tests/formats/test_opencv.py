"""Matches in the types of OpenCV."""

import cv2
import numpy as np

from ucn.types import Matches


def make_matches(count: int = 3) -> Matches:
    points0 = np.array([[0, 1], [2.5, 3], [4, 5]], np.float32)[:count]
    points1 = np.array([[10, 11], [np.nan, np.nan], [14.25, 15]], np.float32)[:count]
    scores = np.array([0.5, 0.0, 1.0], np.float32)[:count]
    return Matches(points0, points1, scores, scores > 0, 0.75, (20, 30), (40, 50))


def test_keypoints_and_matches_by_hand() -> None:
    keypoints0, keypoints1, links = make_matches().to_opencv()
    assert [point.pt for point in keypoints0] == [(0, 1), (4, 5)]
    assert [point.pt for point in keypoints1] == [(10, 11), (14.25, 15)]
    assert [point.response for point in keypoints1] == [0.5, 1.0]
    assert [point.class_id for point in keypoints0] == [0, 2]  # the row without a match is left out
    assert [(link.queryIdx, link.trainIdx, link.distance) for link in links] == [(0, 0, 0.5), (1, 1, 0.0)]


def test_no_matches() -> None:
    assert make_matches(0).to_opencv() == ([], [], [])


def test_opencv_takes_them() -> None:
    keypoints0, keypoints1, links = make_matches().to_opencv()
    images = np.zeros((20, 30, 3), np.uint8), np.zeros((40, 50, 3), np.uint8)
    drawn = cv2.drawMatches(images[0], keypoints0, images[1], keypoints1, links, None)  # type: ignore[call-overload]
    assert drawn.shape == (40, 80, 3)
    assert drawn.any()
