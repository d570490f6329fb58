"""Matches in the types of OpenCV, for `cv2.drawMatches` and code written for its matchers."""

from __future__ import annotations

import cv2
import numpy as np

from ucn.types import FloatArray, Matches

_DIAMETER = 8.0  # pixels of an OpenCV keypoint: two cells, as large as what tells a match from its neighbours


def to_opencv(matches: Matches) -> tuple[list[cv2.KeyPoint], list[cv2.KeyPoint], list[cv2.DMatch]]:
    """Converts matches to KeyPoints of both images and the DMatches between them.

    OpenCV puts pixel centres at integers, too, so coordinates stay as they are. Match i joins KeyPoint i of
    both lists. The response of a KeyPoint is the score and its `class_id` the row of `matches`; the distance
    of a DMatch is 1 - score, so that the best matches have the smallest. Rows with NaN are left out.
    """
    is_known = np.isfinite(matches.points0).all(axis=1) & np.isfinite(matches.points1).all(axis=1)
    rows = np.flatnonzero(is_known)
    scores = matches.scores[rows].tolist()
    keypoints0, keypoints1 = (
        _make_keypoints(points[rows], scores, rows.tolist()) for points in (matches.points0, matches.points1)
    )
    return keypoints0, keypoints1, [cv2.DMatch(i, i, 1 - score) for i, score in enumerate(scores)]


def _make_keypoints(points: FloatArray, scores: list[float], rows: list[int]) -> list[cv2.KeyPoint]:
    return [
        cv2.KeyPoint(x, y, _DIAMETER, response=score, class_id=row)
        for (x, y), score, row in zip(points.tolist(), scores, rows, strict=True)
    ]
