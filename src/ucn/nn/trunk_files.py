"""ImageNet weights of the GoogLeNet trunk from files: an .npz of arrays, or an .onnx of BVLC GoogLeNet.

Both hold the same network, trained on BGR in 0..255 minus the mean, as `googlenet.preprocess` makes it.
Nothing in such a file identifies the network but names, shapes and connections; these are checked, and the
trunk is filled wholly or not at all.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.errors import WeightsError
from ucn.files.reading import open_regular, shorten
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.lite import LiteTrunk

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

TRUNK_SUFFIXES = (".npz", ".onnx")
"""Suffixes of the files that hold weights of the trunk."""

_MAX_BYTES = 256 * 2**20  # the whole network has 54 MB in float32
_MAX_HOPS = 8  # nodes between two convolutions, such as a ReLU
_MAX_LISTED = 3

_Layers = dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]  # weights and biases by name
_Shapes = Mapping[str, tuple[int, ...]]  # of the weights; a layer has as many biases as output channels

_STEM_NAMES = {"conv1": "conv1_7x7_s2", "conv2_reduce": "conv2_3x3_reduce", "conv2": "conv2_3x3"}
_BRANCH_NAMES = {
    "conv_1x1": "1x1",
    "reduce_3x3": "3x3_reduce",
    "conv_3x3": "3x3",
    "reduce_5x5": "5x5_reduce",
    "conv_5x5": "5x5",
    "pool_projection": "pool_proj",
}


def caffe_names(blocks: Sequence[str]) -> dict[str, str]:
    """Our names of the layers of a trunk with these inception blocks, and Caffe's with _ for /."""
    branches = {f"{b}.{ours}": f"{b}_{caffe}" for b in blocks for ours, caffe in _BRANCH_NAMES.items()}
    return _STEM_NAMES | branches


CAFFE_NAMES = caffe_names(("inception_3a", "inception_3b", "inception_4a"))
"""The names of a trunk that ends with inception_4a."""

_EXPECTED = (
    "expected BVLC GoogLeNet, as in the ONNX model zoo; torchvision's is another network (batch "
    "normalisation, 3 × 3 in place of 5 × 5, other colours)"
)


def load_imagenet_trunk(
    trunk: GoogLeNetTrunk | LiteTrunk, path: str | Path, further: str | Path | None = None
) -> None:
    """Fills a trunk with the weights of BVLC GoogLeNet.

    Args:
        trunk: the trunk to fill.
        path: an .npz with float32 arrays ``NAME_w`` and ``NAME_b`` for each layer of the trunk, NAME being
            Caffe's with _ for /; or an .onnx, as in the ONNX model zoo, which needs the package onnx and
            serves trunks that end with inception_4a.
        further: an .npz with inception_4b and inception_4c, for a trunk that has them; None: `path` has all.

    Raises:
        WeightsError: the file is missing, damaged, too large, of another network, or lacks a finite float32
            array of the right shape; or the trunk is the lite one. The trunk is then unchanged.
    """
    path = Path(path)
    if isinstance(trunk, LiteTrunk):
        raise WeightsError(
            f"{path} holds GoogLeNet's weights, the network's trunk is 'lite'; start from random weights, "
            "or use the trunk 'googlenet'"
        )
    parameters, names = dict(trunk.named_parameters()), caffe_names(trunk.blocks)
    shapes = {caffe: tuple(parameters[f"{ours}.weight"].shape) for ours, caffe in names.items()}
    if further is None:
        layers = _read_layers(path, shapes)
    else:
        last = {name: shape for name, shape in shapes.items() if name not in CAFFE_NAMES.values()}
        first = {name: shape for name, shape in shapes.items() if name not in last}
        layers = _read_layers(path, first) | _read_layers(Path(further), last)
    with torch.no_grad():
        for ours, caffe in names.items():
            for kind, array in zip(("weight", "bias"), layers[caffe], strict=True):
                parameters[f"{ours}.{kind}"].copy_(torch.tensor(array))


def _read_layers(path: Path, shapes: _Shapes) -> _Layers:
    suffix = path.suffix.lower()
    if suffix == ".caffemodel":
        raise WeightsError(
            f"{path} is a .caffemodel, expected {' or '.join(TRUNK_SUFFIXES)}; convert it with "
            "examples/convert_caffemodel.py of the ucn repository"
        )
    if suffix not in TRUNK_SUFFIXES:
        raise WeightsError(f"{path} does not end in {', '.join(TRUNK_SUFFIXES)}: expected BVLC GoogLeNet")
    try:
        if not path.is_file():
            raise WeightsError(f"no trunk weights at {path}: expected a file of BVLC GoogLeNet")
        _check_bytes(path.stat().st_size, path)
        return _read_npz(path, shapes) if suffix == ".npz" else _read_onnx(path, shapes)
    except OSError as error:
        raise WeightsError(f"cannot read trunk weights {path}: {error.strerror or error}") from error


def _check_bytes(size: int, path: Path) -> None:
    if size > _MAX_BYTES:
        raise WeightsError(f"{path} has {size} bytes; trunk weights have at most {_MAX_BYTES}")


def _check_array(array: Any, name: str, shape: tuple[int, ...], path: Path) -> NDArray[np.float32]:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        dtype = getattr(array, "dtype", type(array).__name__)
        raise WeightsError(f"{name} in {path} must be float32, got {dtype}")
    if array.shape != shape:
        raise WeightsError(f"{name} in {path} must be {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise WeightsError(f"{name} in {path} holds values that are not finite")
    return array


# What zipfile and numpy raise on damaged archives; RuntimeError means encryption or an unknown compression.
_DAMAGE = (
    *(KeyError, OSError, ValueError, TypeError, EOFError, OverflowError, RuntimeError, MemoryError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def _read_npz(path: Path, shapes: _Shapes) -> _Layers:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            _check_bytes(sum(member.file_size for member in archive.infolist()), path)
        with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            return {
                name: (
                    _check_array(arrays[f"{name}_w"], f"{name}_w", shape, path),
                    _check_array(arrays[f"{name}_b"], f"{name}_b", shape[:1], path),
                )
                for name, shape in shapes.items()
            }
    except WeightsError:
        raise
    except _DAMAGE as error:
        raise WeightsError(f"{path} is not an .npz of BVLC GoogLeNet arrays: {shorten(error)}") from error


def _read_onnx(path: Path, shapes: _Shapes) -> _Layers:
    """Layers of an ONNX graph, found by shape and connections: exporters name them as they like."""
    graph = _parse_onnx(path)
    if any(node.op_type == "BatchNormalization" for node in graph.node):
        raise WeightsError(f"{path} has batch normalisation: {_EXPECTED}")
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    layers: _Layers = {}
    for name, node in _find_convolutions(graph, tensors, shapes, path).items():
        if len(node.input) < 3 or node.input[2] not in tensors:
            raise WeightsError(f"{name} in {path} has no stored bias: {_EXPECTED}")
        weight, bias = tensors[node.input[1]], tensors[node.input[2]]
        layers[name] = (
            _read_tensor(weight, f"{name}_w", shapes[name], path),
            _read_tensor(bias, f"{name}_b", shapes[name][:1], path),
        )
    return layers


def _parse_onnx(path: Path) -> GraphProto:
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from onnx import ModelProto
    except ModuleNotFoundError as error:
        raise WeightsError(
            f"{path} needs the package onnx, which is not installed: pip install 'ucn[export]', or convert "
            "the weights to .npz"
        ) from error
    try:
        with open_regular(path) as file:
            model: ModelProto = ModelProto.FromString(file.read())
        return model.graph
    except DecodeError as error:
        raise WeightsError(f"{path} is not a whole .onnx file: {shorten(error)}") from error


def _find_convolutions(
    graph: GraphProto, tensors: Mapping[str, TensorProto], shapes: _Shapes, path: Path
) -> dict[str, NodeProto]:
    """The node of each layer.

    All layers up to inception_4a have distinct shapes, but for two 1 × 1 convolutions of inception_3b; of
    these, the one before the 3 × 3 is its reduction.
    """
    stored: dict[tuple[int, ...], dict[tuple[str, ...], NodeProto]] = {}
    for node in graph.node:
        if node.op_type == "Conv" and len(node.input) >= 2 and node.input[1] in tensors:
            shape = tuple(tensors[node.input[1]].dims)
            # Nodes with the same arrays are one layer, used twice.
            stored.setdefault(shape, {}).setdefault(tuple(node.input[1:]), node)
    producers = {output: node for node in graph.node for output in node.output}
    found: dict[str, NodeProto] = {}
    for name in sorted(shapes, key=lambda name: _rank(name, shapes[name])):
        shape = shapes[name]
        nodes = [node for node in stored.get(shape, {}).values() if node not in found.values()]
        if name.endswith("_reduce"):
            user = name.removesuffix("_reduce")
            before = _find_convolution_before(found[user], producers)
            if before not in nodes:
                raise WeightsError(
                    f"{path} is connected differently: no convolution with stored weights {shape}, for "
                    f"{name}, comes before {user}; {_EXPECTED}"
                )
            nodes = [before]
        if len(nodes) != 1:
            listed = ", ".join(map(str, [*stored][:_MAX_LISTED])) or "none"
            raise WeightsError(
                f"{path} must have one convolution with stored weights {shape}, for {name}, got "
                f"{len(nodes)} (it has {listed}{', …' if len(stored) > _MAX_LISTED else ''}): {_EXPECTED}"
            )
        found[name] = nodes[0]
    return found


def _rank(name: str, shape: tuple[int, ...]) -> int:
    """Larger kernels first, then their reductions, which are found from them, then the other 1 × 1."""
    if math.prod(shape[2:]) > 1:
        return 0
    return 1 if name.endswith("_reduce") else 2


def _find_convolution_before(node: NodeProto, producers: Mapping[str, NodeProto]) -> NodeProto | None:
    """The convolution whose output a node reads, through a ReLU or the like."""
    before: NodeProto | None = node
    for _ in range(_MAX_HOPS):
        before = producers.get(before.input[0]) if before is not None and before.input else None
        if before is not None and before.op_type == "Conv":
            return before
    return None


def _read_tensor(tensor: TensorProto, name: str, shape: tuple[int, ...], path: Path) -> NDArray[np.float32]:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type != TensorProto.FLOAT:
        raise WeightsError(
            f"{name} in {path} must be float32 (ONNX data type 1), got data type {tensor.data_type}"
        )
    if tensor.data_location == TensorProto.EXTERNAL:
        raise WeightsError(f"{name} of {path} is stored in another file; save the network as one file")
    if tuple(tensor.dims) != shape:
        raise WeightsError(f"{name} in {path} must be {shape}, got {tuple(tensor.dims)[:8]}")
    try:
        return _check_array(numpy_helper.to_array(tensor), name, shape, path)
    except WeightsError:
        raise
    except (ValueError, TypeError) as error:  # more or fewer values than its shape has
        raise WeightsError(f"{name} in {path} must have {math.prod(shape)} values: {error}") from error
