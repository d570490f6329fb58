"""The script that converts a .caffemodel, on files written byte by byte."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.trunk_cases import (
    Arrays,
    block,
    float_fields,
    integer,
    make_arrays,
    varint,
    write_caffemodel,
)
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.trunk_files import load_imagenet_trunk

SCRIPT = Path(__file__).parents[2] / "examples" / "convert_caffemodel.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return make_arrays()


def _run(*arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_converted_file_fills_the_trunk(tmp_path: Path, arrays: Arrays) -> None:
    source, target = write_caffemodel(tmp_path / "a.caffemodel", arrays), tmp_path / "trunk ö.npz"
    done = _run(source, target)
    assert (done.returncode, done.stdout) == (0, f"{target}: 21 layers\n")
    trunk = GoogLeNetTrunk()
    load_imagenet_trunk(trunk, target)
    assert np.array_equal(trunk.conv1.weight.detach().numpy(), arrays["conv1_7x7_s2_w"])
    again = _run(source, target)
    assert again.returncode == 1
    assert "the output must be a new .npz file" in again.stderr


@pytest.mark.parametrize("kind", ["new", "old", "double"])
def test_every_version_of_the_format(
    tmp_path: Path, script: dict[str, Any], arrays: Arrays, kind: str
) -> None:
    content = write_caffemodel(tmp_path / "a.caffemodel", arrays, kind).read_bytes()
    found = script["read_caffemodel"](content)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], array), name


def test_values_with_a_field_each(script: dict[str, Any]) -> None:
    weights, biases = np.arange(6, dtype=np.float32).reshape(2, 3, 1, 1), np.array([7, 8], np.float32)
    first = block(7, b"".join(integer(1, size) for size in weights.shape))
    first += block(5, weights[:1].tobytes()) + float_fields(5, weights[1:].ravel().tolist())
    second = block(7, integer(1, 2)) + float_fields(5, biases.tolist())
    layer = block(7, first) + block(7, second) + block(1, "a/b")  # the name may come last
    found = script["read_caffemodel"](block(100, block(1, "data")) + block(100, layer) + integer(5, 1))
    assert np.array_equal(found["a_b_w"], weights)
    assert np.array_equal(found["a_b_b"], biases)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no layer has weights and biases"),
        (block(100, block(1, "data")), "no layer has weights and biases"),
        (b'name: "GoogleNet"\nlayer {\n', "wire type|truncated|are left"),
        (varint(100 * 8 + 2) + varint(2**62) + b"\0", "field 100 has 4611686018427387904 bytes, only 1 are"),
        (b"\x80", "an integer is truncated"),
        (b"\xff" * 11, "an integer has more than 10 bytes"),
    ],
)
def test_damaged_files(script: dict[str, Any], content: bytes, message: str) -> None:
    with pytest.raises(script["FormatError"], match=message):
        script["read_caffemodel"](content)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (block(7, block(1, b"\x40\x03")) + block(5, b"\0" * 8), r"an array of shape \(64, 3\) has 2 values"),
        (block(7, block(1, b"\x02")) + block(5, b"\0" * 7), "7 bytes are not a whole number of values"),
        (block(7, block(1, varint(2**63) * 9)) + block(5, b"\0" * 4), "has 1 values"),
    ],
)
def test_damaged_arrays(script: dict[str, Any], blob: bytes, message: str) -> None:
    layer = block(100, block(1, "conv1") + block(7, blob) + block(7, blob))
    with pytest.raises(script["FormatError"], match=message):
        script["read_caffemodel"](layer)


def test_a_layer_that_comes_twice(tmp_path: Path, script: dict[str, Any], arrays: Arrays) -> None:
    content = write_caffemodel(tmp_path / "a.caffemodel", arrays).read_bytes()
    with pytest.raises(script["FormatError"], match="two layers are called 'conv1/7x7_s2'"):
        script["read_caffemodel"](content * 2)


def test_errors_name_the_file(tmp_path: Path) -> None:
    missing = _run(tmp_path / "none.caffemodel", tmp_path / "a.npz")
    assert missing.returncode == 1
    assert "cannot convert" in missing.stderr
    assert "none.caffemodel" in missing.stderr
    assert not (tmp_path / "a.npz").exists()
