import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from support.remedy_rule import assert_remedy, refused
from support.semantic_files import write_mat
from ucn.data.sets.semantic import matlab
from ucn.data.sets.semantic.matlab import read_mat
from ucn.errors import DataError


@pytest.mark.parametrize("is_packed", [False, True])
def test_arrays_are_read_by_name(tmp_path: Path, is_packed: bool) -> None:
    points = np.array([[1.5, np.nan, 7], [3, 4, -0.25]])
    path = write_mat(tmp_path / "ä b.mat", {"a": points, "b": np.array([[1, 0]], np.uint8)}, is_packed)
    found = read_mat(path, ["a", "b"])
    np.testing.assert_array_equal(found["a"], points)
    assert found["b"].tolist() == [[1, 0]] and found["b"].dtype == np.float64


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "?"])
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (1, 3), (3, 2), (2, 3, 4), (5, 0)])
def test_all_kinds_of_numbers(tmp_path: Path, dtype: str, shape: tuple[int, ...], is_packed: bool) -> None:
    values = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 100, shape).astype(dtype)
    other: dict[str, Any] = {"before": "text", "after": {"part_name": "wheel", "mask": np.ones((3, 3))}}
    path = write_mat(
        tmp_path / "a.mat", {"before": other["before"], "a": values, "after": other["after"]}, is_packed
    )
    np.testing.assert_array_equal(read_mat(path, ["a"])["a"], values.astype(np.float64))


def test_other_byte_order_and_small_elements(tmp_path: Path) -> None:
    """A file by hand: big-endian, doubles kept as bytes, as MATLAB stores small whole numbers."""
    flags = struct.pack(">IIII", 6, 8, 6, 0)
    shape = struct.pack(">IIii", 5, 8, 2, 1)
    name = struct.pack(">HH4s", 1, 1, b"a")  # size, type and data of a small element
    numbers = struct.pack(">HH4s", 2, 2, bytes([7, 200]))
    body = flags + shape + name + numbers
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB".ljust(124) + b"\x01\x00MI" + struct.pack(">II", 14, len(body)) + body)
    assert read_mat(path, ["a"])["a"].tolist() == [[7], [200]]


def test_real_files_read_as_by_scipy(data_folder: Path) -> None:
    paths = sorted((data_folder / "flowweb_toy").rglob("*.mat")) + sorted(
        (data_folder / "pf_willow").rglob("*.mat")
    )
    assert len(paths) == 50
    for path in paths:
        names = ["keypts", "keypts_status"] if "flowweb" in path.as_posix() else ["pts_coord"]
        found, expected = read_mat(path, names), scipy.io.loadmat(path)
        for name in names:
            np.testing.assert_array_equal(found[name], expected[name])


def test_what_is_not_there_or_not_numbers(tmp_path: Path) -> None:
    values = {"text": "word", "cells": np.array([["x", 1]], object), "turned": np.array([[1 + 2j]])}
    path = write_mat(tmp_path / "a.mat", values | {"record": {"x": 1}})
    with pytest.raises(DataError, match=r"a\.mat has no variable 'kps'"):
        read_mat(path, ["kps"])
    kinds = {"text": "text", "cells": "cells", "turned": "complex numbers", "record": "a structure"}
    for name, kind in kinds.items():
        with refused(f"expected numbers in '{name}', got {kind}"):
            read_mat(path, [name])
    with pytest.raises(DataError, match="no such file"):
        read_mat(tmp_path / "b.mat", ["a"])


def test_version_73_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400))
    with pytest.raises(DataError, match=r"version 7.3 \(HDF5\); save it again with -v7"):
        read_mat(path, ["a"])
    path.write_bytes(b"MATLAB".ljust(124) + b"\x00\x03IM" + bytes(400))
    with pytest.raises(DataError, match="expected version 5 of MATLAB's format"):
        read_mat(path, ["a"])


@pytest.mark.parametrize("content", [b"", b"no mat file", bytes(200), b"x" * 200])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    with refused("is not a MATLAB file of version 5"):
        read_mat(path, ["a"])


@pytest.mark.parametrize("is_packed", [False, True])
def test_damage_never_gets_through(tmp_path: Path, is_packed: bool) -> None:
    path = write_mat(tmp_path / "a.mat", {"b": "text", "a": np.arange(12.0).reshape(3, 4)}, is_packed)
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        broken = bytearray(whole)
        for place in generator.integers(124, len(whole), 3):
            broken[place] = generator.integers(256)
        path.write_bytes(bytes(broken[: generator.integers(100, 2 * len(whole))]))
        try:
            assert read_mat(path, ["a"])["a"].dtype == np.float64
        except DataError as error:
            refused += 1
            assert "a.mat" in str(error)
            assert_remedy(str(error))
    assert refused > 100


def test_limits_hold_before_anything_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_mat(tmp_path / "a.mat", {"a": np.zeros((400, 400))}, is_packed=True)
    assert path.stat().st_size < 5000
    monkeypatch.setattr(matlab, "MAX_UNPACKED_BYTES", 100_000)
    with pytest.raises(DataError, match="unpacks to more than 100,000 bytes; get the file again"):
        read_mat(path, ["a"])
    monkeypatch.setattr(matlab, "MAX_MAT_BYTES", 1000)
    with pytest.raises(DataError, match="the limit for MATLAB file is 1,000"):
        read_mat(path, ["a"])


def test_a_packed_part_within_a_packed_part_is_refused(tmp_path: Path) -> None:
    path = write_mat(tmp_path / "a.mat", {"a": np.zeros((3, 3))}, is_packed=True)
    content = path.read_bytes()
    packed = zlib.compress(content[128:])
    path.write_bytes(content[:128] + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(DataError, match="expected an array, got element type 15"):
        read_mat(path, ["a"])


def test_an_array_that_claims_to_be_larger_than_it_is(tmp_path: Path) -> None:
    path = write_mat(tmp_path / "a.mat", {"a": np.zeros((3, 4))})
    content = path.read_bytes()
    shape = struct.pack("<ii", 3, 4)
    assert content.count(shape) == 1
    path.write_bytes(content.replace(shape, struct.pack("<ii", 2**30, 2**30)))
    with pytest.raises(DataError, match=r"'a' of size \(1073741824, 1073741824\) has 96 bytes of numbers"):
        read_mat(path, ["a"])


def test_an_array_of_too_many_axes_names_its_file(tmp_path: Path) -> None:
    shape = struct.pack("<II", 5, 400) + struct.pack("<100i", *[1] * 100)
    body = struct.pack("<IIII", 6, 8, 6, 0) + shape + struct.pack("<HH4s", 1, 1, b"a")
    body += struct.pack("<HH4s", 2, 1, b"\x07")
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 14, len(body)) + body)
    with refused(r"cannot read .*a\.mat: damaged MATLAB file \('a' has 100 axes\)"):
        read_mat(path, ["a"])
