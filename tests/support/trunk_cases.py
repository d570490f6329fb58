"""Weights of the trunk, and files of them in three formats, written byte by byte."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.config import ModelConfig
from ucn.nn import build_model
from ucn.nn.trunk_files import CAFFE_NAMES

Arrays = dict[str, NDArray[np.float32]]


def make_arrays(seed: int = 0) -> Arrays:
    """Random arrays of every layer of the trunk, named as in an .npz."""
    generator = np.random.default_rng(seed)
    parameters = dict(build_model(ModelConfig()).trunk.named_parameters())
    return {
        f"{caffe}_{suffix}": generator.standard_normal(parameters[f"{ours}.{kind}"].shape, np.float32)
        for ours, caffe in CAFFE_NAMES.items()
        for suffix, kind in (("w", "weight"), ("b", "bias"))
    }


def caffe_name(name: str) -> str:
    """A layer as Caffe calls it."""
    block, _, rest = name.removeprefix("inception_").partition("_")
    return f"inception_{block}/{rest}" if name.startswith("inception_") else f"{block}/{rest}"


def varint(value: int) -> bytes:
    content = b""
    while value >= 128:
        content += bytes([value % 128 + 128])
        value //= 128
    return content + bytes([value])


def integer(number: int, value: int) -> bytes:
    """A field that holds an integer."""
    return varint(number * 8) + varint(value)


def block(number: int, content: bytes | str) -> bytes:
    """A field that holds a text, a message or packed numbers."""
    content = content.encode() if isinstance(content, str) else content
    return varint(number * 8 + 2) + varint(len(content)) + content


def float_fields(number: int, values: Sequence[float]) -> bytes:
    """A field for each number, as old programs write them."""
    return b"".join(varint(number * 8 + 5) + struct.pack("<f", value) for value in values)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def write_caffemodel(path: Path, arrays: Mapping[str, Any], kind: str = "new") -> Path:
    """A NetParameter; kind 'old' is the format before 2015, 'double' has numbers of 8 bytes."""
    names = [name.removesuffix("_w") for name in arrays if name.endswith("_w")]
    field, name_field, blobs_field = (2, 4, 6) if kind == "old" else (100, 1, 7)
    content = block(1, "GoogleNet") + block(field, block(name_field, "data"))
    for name in names:
        blobs = [_make_blob(arrays[f"{name}_{suffix}"], kind) for suffix in "wb"]
        layer = block(name_field, caffe_name(name)) + b"".join(block(blobs_field, blob) for blob in blobs)
        content += block(field, layer)
    path.write_bytes(content)
    return path


def _make_blob(array: NDArray[Any], kind: str) -> bytes:
    if kind == "old":
        shape = (1,) * (4 - array.ndim) + array.shape
        sizes = b"".join(integer(axis, size) for axis, size in enumerate(shape, start=1))
        return sizes + block(5, array.astype("<f4").tobytes())
    dims = block(7, block(1, b"".join(map(varint, array.shape))))
    if kind == "double":
        return block(8, array.astype("<f8").tobytes()) + dims
    return dims + block(5, array.astype("<f4").tobytes())


def make_tensor(name: str, array: NDArray[Any], is_raw: bool = True, data_type: int = 1) -> bytes:
    """A TensorProto."""
    dims = b"".join(integer(1, size) for size in array.shape)
    values = array.astype("<f4").tobytes()
    return dims + integer(2, data_type) + block(8, name) + block(9 if is_raw else 4, values)


def make_node(kind: str, inputs: Sequence[str], output: str) -> bytes:
    """A NodeProto."""
    return b"".join(block(1, name) for name in inputs) + block(2, output) + block(4, kind)


def make_graph(
    arrays: Mapping[str, Any], is_raw: bool = True, names: str = "zoo", extra: Sequence[bytes] = ()
) -> bytes:
    """A GraphProto of the trunk; with names 'numbers' arrays have no other, and all stands in reverse."""
    keys = {name: f"{caffe_name(name[:-2])}{name[-2:]}_0" for name in arrays}
    if names == "numbers":
        keys = {name: str(place) for place, name in enumerate(reversed(list(arrays)))}
    nodes: list[bytes] = list(extra)

    def convolve(name: str, source: str) -> str:
        nodes.append(make_node("Conv", [source, keys[f"{name}_w"], keys[f"{name}_b"]], f"{name}_1"))
        nodes.append(make_node("Relu", [f"{name}_1"], f"{name}_2"))
        return f"{name}_2"

    place = convolve("conv2_3x3", convolve("conv2_3x3_reduce", convolve("conv1_7x7_s2", "data_0")))
    for name in ("inception_3a", "inception_3b", "inception_4a"):
        branches = [convolve(f"{name}_1x1", place)]
        branches += [
            convolve(f"{name}_{side}", convolve(f"{name}_{side}_reduce", place)) for side in ("3x3", "5x5")
        ]
        nodes.append(make_node("MaxPool", [place], f"{name}_pool"))
        branches.append(convolve(f"{name}_pool_proj", f"{name}_pool"))
        place = f"{name}_output"
        nodes.append(make_node("Concat", branches, place))
    if names == "numbers":
        nodes.reverse()
    tensors = [make_tensor(keys[name], array, is_raw) for name, array in arrays.items()]
    return b"".join(block(1, node) for node in nodes) + b"".join(block(5, tensor) for tensor in tensors)


def write_onnx(path: Path, graph: bytes) -> Path:
    path.write_bytes(integer(1, 3) + block(2, "tests") + block(7, graph))
    return path
