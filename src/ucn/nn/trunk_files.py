"""ImageNet weights of the trunk from files: an .npz of arrays, a .caffemodel, or an .onnx of BVLC GoogLeNet.

All of them hold the same network, trained on blue, green, red of 0..255 less the mean, which is what
`googlenet.preprocess` gives it. Nothing in such a file says which network it is but names, shapes and wiring;
these are checked, and the trunk is filled wholly or not at all.
"""

from __future__ import annotations

import math
import reprlib
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.errors import WeightsError
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.lite import LiteTrunk
from ucn.nn.protobuf import WireError, read_fields, read_floats, read_integers, read_messages, read_texts

TRUNK_SUFFIXES = (".npz", ".caffemodel", ".onnx")
"""Endings of the files that hold weights of the trunk."""

# The whole network has 54 MB, and twice that in double precision.
_MAX_BYTES = 256 * 2**20
_MAX_HOPS = 8
_NAMED = 3

_Array = NDArray[np.float32]
_Layers = dict[str, tuple[_Array, _Array]]  # weights and biases by name
_Shapes = Mapping[str, tuple[int, ...]]  # of the weights; a layer has as many biases as the first number

# Our names of the layers, and BVLC's with _ for /.
CAFFE_NAMES = {
    "conv1": "conv1_7x7_s2",
    "conv2_reduce": "conv2_3x3_reduce",
    "conv2": "conv2_3x3",
} | {
    f"{block}.{ours}": f"{block}_{caffe}"
    for block in ("inception_3a", "inception_3b", "inception_4a")
    for ours, caffe in {
        "conv_1x1": "1x1",
        "reduce_3x3": "3x3_reduce",
        "conv_3x3": "3x3",
        "reduce_5x5": "5x5_reduce",
        "conv_5x5": "5x5",
        "pool_projection": "pool_proj",
    }.items()
}


def load_imagenet_trunk(trunk: GoogLeNetTrunk | LiteTrunk, path: str | Path) -> None:
    """Fills a trunk with the weights of BVLC GoogLeNet.

    Args:
        trunk: what is filled.
        path: an .npz with float32 arrays ``NAME_w`` and ``NAME_b`` for each layer up to inception_4a, NAME
            being Caffe's with _ for /; a .caffemodel of any version since 2014; or an .onnx, as in the ONNX
            model zoo.

    Raises:
        WeightsError: the file is missing, damaged, too large, of another network, or lacks a finite float32
            array of the right shape; or the trunk is the small one. The trunk is then as it was.
    """
    if isinstance(trunk, LiteTrunk):
        raise WeightsError(
            f"{path} holds GoogLeNet's weights, the network's trunk is 'lite'; begin with random weights, "
            "or take the trunk 'googlenet'"
        )
    path = Path(path)
    parameters = dict(trunk.named_parameters())
    shapes = {caffe: tuple(parameters[f"{ours}.weight"].shape) for ours, caffe in CAFFE_NAMES.items()}
    layers = _read_layers(path, shapes)
    with torch.no_grad():
        for ours, caffe in CAFFE_NAMES.items():
            for kind, array in zip(("weight", "bias"), layers[caffe], strict=True):
                parameters[f"{ours}.{kind}"].copy_(torch.from_numpy(array))


def _read_layers(path: Path, shapes: _Shapes) -> _Layers:
    """Every layer of `shapes` from a file."""
    suffix = path.suffix.lower()
    if suffix not in TRUNK_SUFFIXES:
        raise WeightsError(f"{path} does not end in {', '.join(TRUNK_SUFFIXES)}: expected BVLC GoogLeNet")
    try:
        if not path.is_file():
            raise WeightsError(f"no trunk weights at {path}: expected a file of BVLC GoogLeNet")
        if suffix == ".npz":
            return _read_npz(path, shapes)
        _check_bytes(path.stat().st_size, path)
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise WeightsError(f"cannot read trunk weights {path}: {error.strerror or error}") from error
    try:
        return (_read_caffemodel if suffix == ".caffemodel" else _read_onnx)(content, path, shapes)
    except WireError as error:
        raise WeightsError(f"{path} is not a whole {suffix} file: {error}") from error


def _check_bytes(size: int, path: Path) -> None:
    if size > _MAX_BYTES:
        raise WeightsError(f"{path} has {size} bytes; trunk weights have at most {_MAX_BYTES}")


@dataclass(frozen=True)
class _Wanted:
    """An array that is to be read.

    Attributes:
        name: as in an .npz.
        shape: which it must have.
        path: of the file, for errors.
    """

    name: str
    shape: tuple[int, ...]
    path: Path

    @classmethod
    def of_layer(cls, name: str, shape: tuple[int, ...], path: Path) -> tuple[_Wanted, _Wanted]:
        """Weights and biases of a layer."""
        return cls(f"{name}_w", shape, path), cls(f"{name}_b", shape[:1], path)

    def check(self, array: Any) -> _Array:
        """An array that must be this one."""
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            came = getattr(array, "dtype", type(array).__name__)
            raise WeightsError(f"{self.name} in {self.path} must be float32, got {came}")
        self.check_shape(array.shape)
        if not np.isfinite(array).all():
            raise WeightsError(f"{self.name} in {self.path} holds values that are not finite")
        return array

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """A shape that must be this one's."""
        if shape != self.shape:
            came = reprlib.repr(shape)
            raise WeightsError(f"{self.name} in {self.path} must be {self.shape}, got {came}")

    def build(self, values: _Array, shape: tuple[int, ...]) -> _Array:
        """The array of values and a shape, both as a file has them."""
        self.check_shape(shape)
        if len(values) != math.prod(shape):
            raise WeightsError(
                f"{self.name} in {self.path} must have {math.prod(shape)} values, got {len(values)}"
            )
        return self.check(values.reshape(shape))


# What zipfile and numpy raise on damaged archives; a RuntimeError tells of encryption or odd compression.
_DAMAGE = (
    *(KeyError, OSError, ValueError, TypeError, EOFError, OverflowError, RuntimeError, MemoryError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def _read_npz(path: Path, shapes: _Shapes) -> _Layers:
    try:
        _check_bytes(path.stat().st_size, path)
        with zipfile.ZipFile(path) as archive:
            _check_bytes(sum(member.file_size for member in archive.infolist()), path)
        with np.load(path, allow_pickle=False) as arrays:
            layers: _Layers = {}
            for name, shape in shapes.items():
                weights, biases = _Wanted.of_layer(name, shape, path)
                layers[name] = weights.check(arrays[weights.name]), biases.check(arrays[biases.name])
            return layers
    except WeightsError:
        raise
    except _DAMAGE as error:
        raise WeightsError(f"{path} is not an .npz of BVLC GoogLeNet arrays: {error}") from error


def _read_caffemodel(content: memoryview, path: Path, shapes: _Shapes) -> _Layers:
    """Layers of Caffe's NetParameter: its field `layer`, or `layers` of the format before 2015."""
    net = read_fields(content, 100, 2)
    layers: _Layers = {}
    others: list[str] = []
    for field, name_field, blobs_field in ((100, 1, 7), (2, 4, 6)):
        for message in read_messages(net[field]):
            layer = read_fields(message, name_field, blobs_field)
            name = "".join(read_texts(layer[name_field])[-1:])  # of a repeated single field the last counts
            key, blobs = name.replace("/", "_"), read_messages(layer[blobs_field])
            if not blobs:
                continue
            if key not in shapes or len(blobs) != 2:
                others.append(name[:40])
                continue
            if key in layers:
                raise WeightsError(f"{path} has two layers '{name}' with weights; expected one")
            weights, biases = _Wanted.of_layer(key, shapes[key], path)
            layers[key] = _read_blob(blobs[0], weights), _read_blob(blobs[1], biases)
    missing = [name for name in shapes if name not in layers]
    if missing:
        there = f"it has {_list(others)}" if others or layers else "no layer of it has weights"
        raise WeightsError(
            f"{path} lacks {len(missing)} of {len(shapes)} layers with weights and biases, first "
            f"'{missing[0]}': expected BVLC GoogLeNet's; {there}"
        )
    return layers


def _read_blob(message: memoryview, wanted: _Wanted) -> _Array:
    """An array of Caffe's BlobProto."""
    blob = read_fields(message, 1, 2, 3, 4, 5, 7, 8)
    if blob[7]:
        shape = tuple(read_integers(read_fields(read_messages(blob[7])[-1], 1)[1]))
    else:  # before 2015 every blob had four axes, biases (1, 1, 1, N)
        shape = tuple(size for axis in range(1, 5) for size in read_integers(blob[axis])[-1:])
        if shape == (1, 1, 1, *wanted.shape):
            shape = wanted.shape
    values = read_floats(blob[5]) if blob[5] else read_floats(blob[8], "<f8")
    return wanted.build(values, shape)


@dataclass(frozen=True)
class _Node:
    """An operation of an ONNX graph."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_OTHER_NETWORKS = (
    "expected BVLC GoogLeNet, as in the ONNX model zoo; torchvision's is another network (batch "
    "normalisation, 3 × 3 in place of 5 × 5, other colours)"
)


def _read_onnx(content: memoryview, path: Path, shapes: _Shapes) -> _Layers:
    """Layers of an ONNX ModelProto, found by shape and wiring: exporters name them as they like."""
    graphs = read_messages(read_fields(content, 7)[7])
    if len(graphs) != 1:
        raise WeightsError(f"{path} must have one graph, got {len(graphs)}")
    graph = read_fields(graphs[0], 1, 5)
    nodes = [_read_node(message) for message in read_messages(graph[1])]
    if any(node.kind == "BatchNormalization" for node in nodes):
        raise WeightsError(f"{path} has batch normalisation: {_OTHER_NETWORKS}")
    tensors = {
        "".join(read_texts(read_fields(message, 8)[8])[-1:]): message for message in read_messages(graph[5])
    }
    convolutions = _Convolutions(nodes, tensors, path)
    found = convolutions.find(shapes)
    layers: _Layers = {}
    for name, node in found.items():
        if len(node.inputs) < 3 or node.inputs[2] not in tensors:
            raise WeightsError(f"{name} in {path} has no stored bias: {_OTHER_NETWORKS}")
        weights, biases = _Wanted.of_layer(name, shapes[name], path)
        layers[name] = (
            _read_tensor(tensors[node.inputs[1]], weights),
            _read_tensor(tensors[node.inputs[2]], biases),
        )
    return layers


def _read_node(message: memoryview) -> _Node:
    node = read_fields(message, 1, 2, 4)
    kind = "".join(read_texts(node[4])[-1:])
    return _Node(kind, tuple(read_texts(node[1])), tuple(read_texts(node[2])))


class _Convolutions:
    """The convolutions of a graph whose weights are stored in the file."""

    def __init__(self, nodes: list[_Node], tensors: Mapping[str, memoryview], path: Path) -> None:
        self._path = path
        self._producers = {output: node for node in nodes for output in node.outputs}
        self._by_shape: dict[tuple[int, ...], list[_Node]] = {}
        seen: set[tuple[str, ...]] = set()
        for node in nodes:
            # Two nodes with the same arrays are one layer, used twice.
            is_stored = len(node.inputs) >= 2 and node.inputs[1] in tensors
            if node.kind == "Conv" and is_stored and node.inputs[1:] not in seen:
                seen.add(node.inputs[1:])
                shape = tuple(read_integers(read_fields(tensors[node.inputs[1]], 1)[1]))
                self._by_shape.setdefault(shape, []).append(node)

    def find(self, shapes: _Shapes) -> dict[str, _Node]:
        """The node of each layer.

        All layers up to inception_4a have shapes of their own, but for two 1 × 1 convolutions of
        inception_3b; of these, the one that leads to the 3 × 3 is its reduction.
        """
        reductions = [name for name in shapes if name.endswith("_reduce")]
        wide = [name for name, shape in shapes.items() if math.prod(shape[2:]) > 1]
        found = {name: self._only(name, shapes[name], []) for name in wide}
        for name in reductions:
            found[name] = self._before(found[name.removesuffix("_reduce")], name, shapes[name])
        taken = list(found.values())
        rest = [name for name in shapes if name not in found]
        return found | {name: self._only(name, shapes[name], taken) for name in rest}

    def _only(self, name: str, shape: tuple[int, ...], taken: list[_Node]) -> _Node:
        nodes = [node for node in self._by_shape.get(shape, ()) if node not in taken]
        if len(nodes) != 1:
            there = _list([str(other) for other in self._by_shape])
            raise WeightsError(
                f"{self._path} must have one convolution with stored weights {shape}, for {name}, got "
                f"{len(nodes)} (it has {there}): {_OTHER_NETWORKS}"
            )
        return nodes[0]

    def _before(self, node: _Node, name: str, shape: tuple[int, ...]) -> _Node:
        """The convolution of a shape from which a node gets its input, through a ReLU or the like."""
        before: _Node | None = node
        for _ in range(_MAX_HOPS):
            before = self._producers.get(before.inputs[0]) if before and before.inputs else None
            if before is not None and before.kind == "Conv":
                break
        if before is None or before not in self._by_shape.get(shape, ()):
            raise WeightsError(
                f"{self._path} is wired otherwise: no convolution with stored weights {shape}, for {name}, "
                f"leads to {name.removesuffix('_reduce')}; {_OTHER_NETWORKS}"
            )
        return before


def _read_tensor(message: memoryview, wanted: _Wanted) -> _Array:
    """An array of ONNX's TensorProto."""
    tensor = read_fields(message, 1, 2, 4, 9, 14)
    kinds = read_integers(tensor[2])
    if kinds[-1:] != [1]:
        came = kinds[-1] if kinds else "none"
        raise WeightsError(
            f"{wanted.name} in {wanted.path} must be float32 (ONNX data type 1), got data type {came}"
        )
    if any(read_integers(tensor[14])):
        raise WeightsError(
            f"{wanted.name} of {wanted.path} is kept in another file; save the network as one file"
        )
    values = read_floats(tensor[9][-1:] or tensor[4])
    return wanted.build(values, tuple(read_integers(tensor[1])))


def _list(names: list[str]) -> str:
    """The first few of some names."""
    if not names:
        return "none"
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
