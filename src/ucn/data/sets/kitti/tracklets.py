"""KITTI's tracklet_labels.xml: boxes around vehicles and people in each frame, in scanner coordinates."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.sets.posed.posed_pairs import Array
from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_binary

MAX_TRACKLET_BYTES = 32 * 2**20
"""Larger files are refused; those of the longest drives have a few MB."""
PEOPLE = ("Pedestrian", "Cyclist", "Person (sitting)")
"""Kinds that always count as moving."""

_REMEDY = "unpack the drive's tracklets again, or remove the file"
_MARGIN = 0.2  # metres; boxes were drawn by hand
# Boost writes this line; a document type with declarations could define unbounded entities.
_HARMLESS = re.compile(rb"<!DOCTYPE\s+boost_serialization\s*>")


@dataclass(frozen=True)
class Tracklet:
    """A labelled box over time.

    Attributes:
        kind: Car, Van, Pedestrian, ...
        length: extent along its own x, metres.
        width: extent along its own y, metres.
        height: extent along z, metres.
        first_frame: the frame of its first position.
        places: (N, 4) x, y, z of the centre of its bottom and its rotation about z, for each frame.
    """

    kind: str
    length: float
    width: float
    height: float
    first_frame: int
    places: Array

    def contains(self, points: Array, frame: int) -> NDArray[np.bool_]:
        """Which points (N, 3) of a frame's scan are in the box, with a margin; none in other frames."""
        row = frame - self.first_frame
        if not 0 <= row < len(self.places):
            return np.zeros(len(points), np.bool_)
        x, y, z, turn = self.places[row]
        offsets = points - [x, y, z]
        along = offsets[:, 0] * np.cos(turn) + offsets[:, 1] * np.sin(turn)
        across = offsets[:, 1] * np.cos(turn) - offsets[:, 0] * np.sin(turn)
        is_inside = (np.abs(along) <= self.length / 2 + _MARGIN) & (
            np.abs(across) <= self.width / 2 + _MARGIN
        )
        return np.asarray(is_inside & (offsets[:, 2] >= 0) & (offsets[:, 2] <= self.height + _MARGIN))


def read_tracklets(path: Path) -> list[Tracklet]:
    """Reads all boxes of a drive.

    Raises:
        DataError: the file is missing, too large, not XML, has declarations, or lacks an element.
    """
    content = _HARMLESS.sub(b"", read_binary(path, "tracklets", MAX_TRACKLET_BYTES), count=1)
    if re.search(rb"<!(?:DOCTYPE|ENTITY)", content, re.IGNORECASE) or b"\0" in content:
        raise DataError(
            f"{path}: expected XML without declarations of its own, got DOCTYPE or ENTITY; {_REMEDY}"
        )
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"{path}: expected XML, got {error}; {_REMEDY}") from error
    if root.tag != "boost_serialization" or root.find("tracklets") is None:
        got = f"<{root.tag[:40]}>" + (" without <tracklets>" if root.tag == "boost_serialization" else "")
        raise DataError(f"{path}: expected <tracklets> in <boost_serialization>, got {got}; {_REMEDY}")
    return [
        _read_tracklet(item, f"{path}: tracklet {i}")
        for i, item in enumerate(root.iterfind("tracklets/item"))
    ]


def _read_tracklet(item: ElementTree.Element, where: str) -> Tracklet:
    height, width, length, first = (_number(item, name, where) for name in ("h", "w", "l", "first_frame"))
    places = [
        [_number(pose, name, where) for name in ("tx", "ty", "tz", "rz")]
        for pose in item.iterfind("poses/item")
    ]
    if not (min(height, width, length) > 0 and first >= 0 and first == int(first)):
        raise DataError(
            f"{where}: expected a box with positive h, w and l and a first_frame from 0 on; {_REMEDY}"
        )
    kind = (item.findtext("objectType") or "").strip()
    return Tracklet(kind, length, width, height, int(first), np.array(places).reshape(-1, 4))


def _number(element: ElementTree.Element, name: str, where: str) -> float:
    text = element.findtext(name)
    if text is None:
        raise DataError(f"{where}: expected an element <{name}>, got none; {_REMEDY}")
    return parse_numbers(text, 1, f"{where}, <{name}>")[0]
