"""Weights of the trunk from .npz and .onnx files: read exactly, or refused with a message."""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.trunk_cases import (
    Arrays,
    block,
    caffe_name,
    integer,
    make_arrays,
    make_graph,
    make_node,
    make_tensor,
    write_npz,
    write_onnx,
)
from ucn.config import ModelConfig
from ucn.errors import WeightsError
from ucn.nn import build_model, trunk_files
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.trunk_files import CAFFE_NAMES, load_imagenet_trunk

Write = Callable[[Path, Arrays], Path]

WRITERS: dict[str, Write] = {
    "npz": lambda folder, arrays: write_npz(folder / "trunk.npz", arrays),
    "onnx": lambda folder, arrays: write_onnx(folder / "trunk.onnx", make_graph(arrays)),
    "packed onnx": lambda folder, arrays: write_onnx(folder / "p.onnx", make_graph(arrays, is_raw=False)),
    "numbered onnx": lambda folder, arrays: write_onnx(
        folder / "n.onnx", make_graph(arrays, names="numbers")
    ),
}


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return make_arrays()


@pytest.fixture
def trunk() -> GoogLeNetTrunk:
    return GoogLeNetTrunk()


def _assert_filled(trunk: GoogLeNetTrunk, arrays: Arrays) -> None:
    parameters = dict(trunk.named_parameters())
    assert len(arrays) == len(parameters) == 2 * len(CAFFE_NAMES)
    for ours, caffe in CAFFE_NAMES.items():
        for suffix, kind in (("w", "weight"), ("b", "bias")):
            value = parameters[f"{ours}.{kind}"]
            assert value.dtype == torch.float32
            assert torch.equal(value, torch.from_numpy(arrays[f"{caffe}_{suffix}"])), caffe


def _assert_refused(trunk: GoogLeNetTrunk, path: Path, message: str) -> None:
    before = {name: value.clone() for name, value in trunk.state_dict().items()}
    with pytest.raises(WeightsError, match=message):
        load_imagenet_trunk(trunk, path)
    assert all(torch.equal(value, before[name]) for name, value in trunk.state_dict().items())


@pytest.mark.parametrize("kind", WRITERS)
def test_whole_files_fill_every_parameter(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, kind: str
) -> None:
    folder = tmp_path / "mit Leerzeichen ö"
    folder.mkdir()
    load_imagenet_trunk(trunk, WRITERS[kind](folder, arrays))
    _assert_filled(trunk, arrays)


@pytest.mark.parametrize("kind", WRITERS)
def test_real_weights_are_the_same_in_every_format(data_folder: Path, tmp_path: Path, kind: str) -> None:
    with np.load(data_folder / "googlenet" / "bvlc_googlenet_conv1_to_inception_4a.npz") as stored:
        arrays = dict(stored)
    trunk = build_model(ModelConfig(transformer="in_branch")).trunk
    load_imagenet_trunk(trunk, WRITERS[kind](tmp_path, arrays))
    parameters = dict(trunk.named_parameters())
    for ours, caffe in CAFFE_NAMES.items():
        assert torch.equal(parameters[f"{ours}.weight"], torch.from_numpy(arrays[f"{caffe}_w"]))
        assert torch.equal(parameters[f"{ours}.bias"], torch.from_numpy(arrays[f"{caffe}_b"]))


@pytest.mark.parametrize("kind", WRITERS)
def test_wrong_arrays_are_named(tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, kind: str) -> None:
    infinite = arrays["inception_4a_pool_proj_b"].copy()
    infinite[5] = np.inf
    path = WRITERS[kind](tmp_path, {**arrays, "inception_4a_pool_proj_b": infinite})
    _assert_refused(trunk, path, r"inception_4a_pool_proj_b in .* holds values that are not finite")
    short = {**arrays, "inception_4a_pool_proj_b": infinite[:63]}
    message = r"inception_4a_pool_proj_b in .* must be \(64,\), got "
    _assert_refused(trunk, WRITERS[kind](tmp_path, short), message)
    turned = {**arrays, "inception_3a_5x5_w": arrays["inception_3a_5x5_w"].transpose(1, 0, 2, 3)}
    message = r"inception_3a_5x5.*\(32, 16, 5, 5\)" if "onnx" not in kind else r"\(32, 16, 5, 5\), for incept"
    _assert_refused(trunk, WRITERS[kind](tmp_path, turned), message)


@pytest.mark.parametrize("kind", WRITERS)
def test_files_cut_anywhere_are_refused(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, kind: str
) -> None:
    path = WRITERS[kind](tmp_path, arrays)
    content = path.read_bytes()
    for length in (0, 1, 2, 7, 100, 37_700, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(WeightsError):
            load_imagenet_trunk(trunk, path)


@pytest.mark.parametrize("kind", WRITERS)
def test_random_damage_gives_one_error_or_none(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, kind: str
) -> None:
    generator = np.random.default_rng(0)
    path = WRITERS[kind](tmp_path, arrays)
    content = path.read_bytes()
    for _ in range(20):
        damaged = bytearray(content)
        for place in generator.integers(0, 400, 3):  # where names, lengths and shapes stand
            damaged[place] = generator.integers(256)
        path.write_bytes(damaged)
        try:
            load_imagenet_trunk(trunk, path)
        except WeightsError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("suffix", [".npz", ".onnx"])
def test_files_that_are_something_else(tmp_path: Path, trunk: GoogLeNetTrunk, suffix: str) -> None:
    _assert_refused(trunk, tmp_path / f"none{suffix}", rf"no trunk weights at .*none{suffix}: expected a")
    _assert_refused(trunk, tmp_path / f"{'x' * 300}{suffix}", "File name too long")
    (tmp_path / f"folder{suffix}").mkdir()
    _assert_refused(trunk, tmp_path / f"folder{suffix}", "no trunk weights at")
    path = tmp_path / f"text{suffix}"
    for text in ('name: "GoogleNet"\nlayer {\n', "version https://git-lfs.github.com/spec/v1\n", "<html>"):
        path.write_text(text)
        _assert_refused(trunk, path, r"text\S+ is not an? ")
    path.write_bytes(b"")
    _assert_refused(trunk, path, "not an .npz|must have one convolution .* got 0 \\(it has none\\)")


def test_other_endings_are_refused(tmp_path: Path, trunk: GoogLeNetTrunk) -> None:
    (tmp_path / "a.pth").write_bytes(b"")
    _assert_refused(trunk, tmp_path / "a.pth", r"does not end in \.npz, \.onnx")
    _assert_refused(
        trunk,
        tmp_path / "a.CaffeModel",
        r"is a \.caffemodel, expected \.npz or \.onnx; convert it with examples/convert_caffemodel\.py",
    )


@pytest.mark.parametrize("kind", ["npz", "onnx"])
def test_size_is_limited(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunk_files, "_MAX_BYTES", 1_000_000)
    path = WRITERS[kind](tmp_path, arrays)
    _assert_refused(trunk, path, "has 42[0-9]+ bytes; trunk weights have at most 1000000")


# The archive of arrays.


def test_archives_are_limited_unpacked_too(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ones.npz"
    ones = {name: np.ones_like(array) for name, array in arrays.items()}
    np.savez_compressed(path, allow_pickle=False, **ones)
    assert path.stat().st_size < 1_000_000
    monkeypatch.setattr(trunk_files, "_MAX_BYTES", 1_000_000)
    _assert_refused(trunk, path, "has 42[0-9]+ bytes; trunk weights have at most 1000000")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(64, np.uint16), "must be float32, got uint16"),
        (np.full(64, "text"), "must be float32, got <U4"),
        (np.array([{}] * 64, dtype=object), "not an .npz of BVLC"),
    ],
)
def test_archives_of_other_types(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, value: Any, message: str
) -> None:
    np.savez(tmp_path / "bad.npz", **{**arrays, "inception_4a_pool_proj_b": value})
    _assert_refused(trunk, tmp_path / "bad.npz", message)


def test_archives_without_the_arrays(tmp_path: Path, trunk: GoogLeNetTrunk) -> None:
    np.savez(tmp_path / "empty.npz", other=np.zeros(1))
    _assert_refused(trunk, tmp_path / "empty.npz", "not an .npz of BVLC.*conv1_7x7_s2_w")
    with zipfile.ZipFile(tmp_path / "words.npz", "w") as archive:
        archive.writestr("conv1_7x7_s2_w", "words")
    _assert_refused(trunk, tmp_path / "words.npz", "must be float32, got bytes")


def test_a_flipped_byte_is_seen(tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays) -> None:
    path = tmp_path / "packed.npz"
    np.savez_compressed(path, allow_pickle=False, **arrays)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    _assert_refused(trunk, path, "is not an .npz of BVLC")


# ONNX.


def test_the_two_equal_shapes_are_distinguished_by_wiring(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays
) -> None:
    same = arrays["inception_3b_1x1_w"].shape == arrays["inception_3b_3x3_reduce_w"].shape
    shapes = [array.shape for name, array in arrays.items() if name.endswith("_w")]
    assert same and len(set(shapes)) == len(shapes) - 1  # all others differ
    load_imagenet_trunk(trunk, write_onnx(tmp_path / "a.onnx", make_graph(arrays, names="numbers")))
    reduce = dict(trunk.named_parameters())["inception_3b.reduce_3x3.weight"]
    assert torch.equal(reduce, torch.from_numpy(arrays["inception_3b_3x3_reduce_w"]))


def test_a_layer_used_twice_is_one_layer(tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays) -> None:
    again = make_node("Conv", ["data_1", "conv1/7x7_s2_w_0", "conv1/7x7_s2_b_0"], "other")
    load_imagenet_trunk(trunk, write_onnx(tmp_path / "a.onnx", make_graph(arrays, extra=[again])))
    _assert_filled(trunk, arrays)


def test_networks_in_onnx_that_are_others(tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays) -> None:
    path = tmp_path / "a.onnx"
    normalisation = make_node("BatchNormalization", ["a", "b"], "c")
    graph = make_graph(arrays, extra=[normalisation])
    _assert_refused(trunk, write_onnx(path, graph), "has batch normalisation: expected BVLC .*torchvision's")
    # torchvision's network after its normalisation was folded in: 3 × 3 in place of 5 × 5.
    folded = {name: a[..., :3, :3] if "5x5_w" in name else a for name, a in arrays.items()}
    message = r"must have one convolution .* \(32, 16, 5, 5\), for inception_3a_5x5, got 0 .*torchvision's is"
    _assert_refused(trunk, write_onnx(path, make_graph(folded)), message)
    twice = make_graph(arrays) + block(5, make_tensor("w", arrays["conv1_7x7_s2_w"]))
    twice += block(1, make_node("Conv", ["x", "w", "conv1/7x7_s2_b_0"], "y"))
    _assert_refused(trunk, write_onnx(path, twice), r"\(64, 3, 7, 7\), for conv1_7x7_s2, got 2")


def test_another_wiring_is_refused(tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays) -> None:
    graph = make_graph(arrays)
    wire = block(1, "inception_3b_3x3_reduce_1")  # what the ReLU reads
    assert graph.count(wire) == 1
    path = tmp_path / "a.onnx"
    for other in ("inception_3b_3x3_reduce_X", "inception_3b_3x3_reduce_2"):  # nothing; itself, in a circle
        write_onnx(path, graph.replace(wire, block(1, other)))
        _assert_refused(
            trunk,
            path,
            r"is connected differently: no convolution .*3b_3x3_reduce, comes before inception_3b_3x3;",
        )


def test_layers_without_stored_biases(tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays) -> None:
    path = tmp_path / "a.onnx"
    stored = make_tensor("conv1/7x7_s2_b_0", arrays["conv1_7x7_s2_b"])
    renamed = stored.replace(b"conv1/7x7_s2_b_0", b"conv1/7x7_s2_c_0")
    graph = make_graph(arrays).replace(stored, renamed)
    _assert_refused(trunk, write_onnx(path, graph), "conv1_7x7_s2 in .* has no stored bias")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (make_tensor("b", np.zeros(64), data_type=10), "must be float32 .*, got data type 10"),
        (integer(1, 64) + block(8, "b") + block(9, b"\0" * 256), "must be float32 .*, got data type 0"),
        (
            make_tensor("b", np.zeros(64)) + integer(14, 1),
            "is stored in another file; save the network",
        ),
        (make_tensor("b", np.zeros(63)), r"must be \(64,\), got \(63,\)"),
        (integer(1, 64) + integer(2, 1) + block(8, "b") + block(9, b"\0" * 255), "must have 64 values: "),
    ],
)
def test_bad_tensors(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, tensor: bytes, message: str
) -> None:
    graph = make_graph(arrays)
    name = caffe_name("conv1_7x7_s2")
    node = make_node("Conv", ["data_0", f"{name}_w_0", f"{name}_b_0"], "conv1_7x7_s2_1")
    assert node in graph
    with_b = make_node("Conv", ["data_0", f"{name}_w_0", "b"], "conv1_7x7_s2_1")
    changed = graph.replace(block(1, node), block(1, with_b)) + block(5, tensor)
    _assert_refused(trunk, write_onnx(tmp_path / "a.onnx", changed), message)


def test_more_values_than_the_shape_has(tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays) -> None:
    stored = make_tensor("conv1/7x7_s2_b_0", arrays["conv1_7x7_s2_b"])
    longer = make_tensor("conv1/7x7_s2_b_0", np.zeros(65)).replace(integer(1, 65), integer(1, 64))
    graph = make_graph(arrays).replace(block(5, stored), block(5, longer))
    _assert_refused(trunk, write_onnx(tmp_path / "a.onnx", graph), "conv1_7x7_s2_b in .* must have 64 values")


def test_without_the_package_onnx(
    tmp_path: Path, trunk: GoogLeNetTrunk, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_onnx(tmp_path / "a.onnx", make_graph(arrays))
    monkeypatch.setitem(sys.modules, "onnx", None)
    _assert_refused(trunk, path, r"a.onnx needs the package onnx, .* pip install 'ucn\[export\]', or convert")
