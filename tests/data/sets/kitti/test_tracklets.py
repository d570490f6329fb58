"""Labelled boxes in KITTI's XML."""

from pathlib import Path

import numpy as np
import pytest

from support.remedy_rule import refused
from ucn.data.sets.kitti.tracklets import read_tracklets
from ucn.errors import DataError

HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes" ?>\n<!DOCTYPE boost_serialization>\n'


def make_xml(boxes: str) -> str:
    """A file as Boost writes it."""
    return (
        HEAD + '<boost_serialization signature="serialization::archive" version="9">\n'
        '<tracklets class_id="0" tracking_level="0" version="0">\n<count>1</count>\n'
        "<item_version>1</item_version>\n"
        f"{boxes}</tracklets>\n</boost_serialization>\n"
    )


def make_box(kind: str, hwl: tuple[float, float, float], first: int, places: list[tuple[float, ...]]) -> str:
    poses = "".join(
        f"<item><tx>{x}</tx><ty>{y}</ty><tz>{z}</tz><rx>0</rx><ry>0</ry><rz>{turn}</rz>"
        "<state>2</state><occlusion>0</occlusion></item>\n"
        for x, y, z, turn in places
    )
    h, w, length = hwl
    return (
        f'<item class_id="1" tracking_level="0" version="1">\n<objectType>{kind}</objectType>\n<h>{h}</h>\n'
        f'<w>{w}</w>\n<l>{length}</l>\n<first_frame>{first}</first_frame>\n<poses class_id="2">\n'
        f"<count>1</count><item_version>2</item_version>\n{poses}</poses>\n<finished>1</finished>\n</item>\n"
    )


def test_a_box_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "tracklet_labels.xml"
    quarter = np.pi / 2
    path.write_text(make_xml(make_box("Van", (2, 1, 4), 7, [(10, 0, -1.7, 0), (10, 0, -1.7, quarter)])))
    (box,) = read_tracklets(path)
    assert (box.kind, box.height, box.width, box.length, box.first_frame) == ("Van", 2, 1, 4, 7)
    assert box.places.shape == (2, 4)
    # The middle; near its front; beside it; above it; below it (the place is the middle of its bottom).
    points = np.array([[10.0, 0, -1], [11.9, 0, -1], [10, 1.9, -1], [10, 0, 0.6], [10, 0, -1.8]])
    assert box.contains(points, 7).tolist() == [True, True, False, False, False]
    assert box.contains(points, 8).tolist() == [True, False, True, False, False]
    for frame in (6, 9):
        assert not box.contains(points, frame).any()


def test_no_boxes(tmp_path: Path) -> None:
    path = tmp_path / "tracklet_labels.xml"
    path.write_text(make_xml(""))
    assert read_tracklets(path) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not xml", "expected XML, got"),
        (HEAD + "<a><b></a>", "expected XML, got mismatched tag"),
        (
            '<!DOCTYPE lolz [<!ENTITY lol "lol">]><a>&lol;</a>',
            "expected XML without declarations of its own, got DOCTYPE or ENTITY",
        ),
        (HEAD + '<!DOCTYPE boost_serialization [<!ENTITY a "b">]><a/>', "got DOCTYPE or ENTITY"),
        ("<annotation/>", "expected <tracklets> in <boost_serialization>, got <annotation>"),
        ("<tracklets/>", "expected <tracklets> in <boost_serialization>, got <tracklets>"),
        (HEAD + "<boost_serialization/>", "got <boost_serialization> without <tracklets>"),
        (make_xml("<item><w>1</w></item>"), "tracklet 0: expected an element <h>, got none"),
        (make_xml(make_box("Car", (-1, 1, 1), 0, [])), "tracklet 0: expected a box with positive h, w and l"),
        (make_xml(make_box("Car", (1, 1, 1), 0, [(0, 0, 0, np.nan)])), "<rz>: expected a finite number"),
        (make_xml("<item><h>tall</h></item>"), "tracklet 0, <h>: expected a number, got 'tall'"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tracklet_labels.xml"
    path.write_text(text)
    with refused(message):
        read_tracklets(path)


def test_hidden_declarations(tmp_path: Path) -> None:
    path = tmp_path / "tracklet_labels.xml"
    path.write_bytes('<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'.encode("utf-16"))
    with pytest.raises(DataError, match="got DOCTYPE or ENTITY"):
        read_tracklets(path)
    with pytest.raises(DataError, match=r"cannot read tracklets .*: no such file"):
        read_tracklets(tmp_path / "absent.xml")
