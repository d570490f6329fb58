"""PLY files against a parser of a few lines and headers written by hand."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.sparse_scene_cases import make_sparse_scene
from ucn.errors import OutputError
from ucn.formats.ply import CAMERA_COLOUR, write_cameras_ply, write_points_ply

_TYPES = {"float": "<f4", "int": "<i4", "uchar": "u1"}


def read_ply(path: Path) -> tuple[list[str], dict[str, NDArray[np.void]]]:
    """Comments and elements of a binary file; every byte must be read."""
    head, _, body = path.read_bytes().partition(b"end_header\n")
    lines = head.decode("ascii").splitlines()
    assert lines[:2] == ["ply", "format binary_little_endian 1.0"]
    comments, elements = [], list[tuple[str, int, list[tuple[str, str]]]]()
    for word, *rest in (line.split(" ", 1) for line in lines[2:]):
        if word == "comment":
            comments.append(rest[0])
        elif word == "element":
            name, count = rest[0].split()
            elements.append((name, int(count), []))
        else:
            assert word == "property"
            kind, name = rest[0].split()
            elements[-1][2].append((name, _TYPES[kind]))
    found = {}
    for element, rows, properties in elements:
        dtype = np.dtype(properties)
        found[element] = np.frombuffer(body, dtype, rows)
        body = body[rows * dtype.itemsize :]
    assert body == b""
    return comments, found


def test_points(tmp_path: Path) -> None:
    scene = make_sparse_scene(50)
    write_points_ply(tmp_path / "p.ply", scene)
    expected = (
        "ply\nformat binary_little_endian 1.0\ncomment written by ucn\nelement vertex 50\n"
        "property float x\nproperty float y\nproperty float z\n"
        "property uchar red\nproperty uchar green\nproperty uchar blue\n"
        "property float error\nproperty int track_length\nend_header\n"
    )
    content = (tmp_path / "p.ply").read_bytes()
    assert content.startswith(expected.encode())
    assert len(content) == len(expected) + 50 * (3 * 4 + 3 + 4 + 4)
    _, elements = read_ply(tmp_path / "p.ply")
    rows = elements["vertex"]
    np.testing.assert_allclose(np.stack([rows[axis] for axis in "xyz"], axis=1), scene.points, rtol=1e-6)
    colours = np.stack([rows[name] for name in ("red", "green", "blue")], axis=1)
    np.testing.assert_array_equal(colours, scene.colours)
    np.testing.assert_allclose(rows["error"], scene.errors, rtol=1e-6)
    np.testing.assert_array_equal(rows["track_length"], scene.track_lengths)


def test_cameras(tmp_path: Path) -> None:
    scene = make_sparse_scene(50)
    write_cameras_ply(tmp_path / "c.ply", scene)
    comments, elements = read_ply(tmp_path / "c.ply")
    assert comments == ["written by ucn", 'camera 0 "a.jpg"', 'camera 1 "b.jpg"', 'camera 2 "c.jpg"']
    vertices, edges = elements["vertex"], elements["edge"]
    places = np.stack([vertices[axis] for axis in "xyz"], axis=1).reshape(3, 5, 3)
    np.testing.assert_allclose(places, scene.frusta(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(places[:, 0], scene.centres, rtol=1e-6)
    assert len(edges) == 24
    np.testing.assert_array_equal(edges["vertex1"] // 5, edges["vertex2"] // 5)
    assert {
        (int(a), int(b)) for a, b in zip(edges["vertex1"][8:16], edges["vertex2"][8:16], strict=True)
    } == {
        *((5, 6), (5, 7), (5, 8), (5, 9)),
        *((6, 7), (7, 8), (8, 9), (9, 6)),
    }
    for rows in (vertices, edges):
        assert {tuple(int(row[name]) for name in ("red", "green", "blue")) for row in rows} == {CAMERA_COLOUR}


def test_hostile_names_stay_in_their_line(tmp_path: Path) -> None:
    names = ("a\nend_header\nelement vertex 9", "ü\udcff.jpg", "x" * 5000)
    write_cameras_ply(tmp_path / "c.ply", make_sparse_scene(5, names))
    comments, elements = read_ply(tmp_path / "c.ply")
    assert comments[1] == r'camera 0 "a\nend_header\nelement vertex 9"'
    assert comments[2] == r'camera 1 "\u00fc\udcff.jpg"'
    assert 100 < len(comments[3]) < 1000
    assert len(elements["vertex"]) == 15


def test_no_points_and_existing_files(tmp_path: Path) -> None:
    write_points_ply(tmp_path / "p.ply", make_sparse_scene(0))
    assert len(read_ply(tmp_path / "p.ply")[1]["vertex"]) == 0
    with pytest.raises(OutputError, match="exists already"):
        write_cameras_ply(tmp_path / "p.ply", make_sparse_scene(0))
    write_cameras_ply(tmp_path / "p.ply", make_sparse_scene(0), overwrite=True)
