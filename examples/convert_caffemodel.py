"""Converts BVLC GoogLeNet from a .caffemodel to the .npz that `init` of a recipe takes.

    python examples/convert_caffemodel.py bvlc_googlenet.caffemodel trunk.npz

It needs NumPy alone, and reads any version of the format since 2014. The .npz holds the arrays NAME_w and
NAME_b of every layer with weights, NAME being Caffe's with _ for /; those up to inception_4a are used.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

MAX_BYTES = 256 * 2**20
FIXED_BYTES = {1: 8, 5: 4}  # wire types of fixed length
Value = int | memoryview


class FormatError(ValueError):
    """The file is not a .caffemodel."""


def read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """An integer of 7 bits a byte, the lowest first, and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise FormatError("an integer is truncated")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise FormatError("an integer has more than 10 bytes")


def read_fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a protocol buffer message; nested messages stay bytes."""
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = read_varint(message, position)
            yield number, value
            continue
        if wire_type == 2:
            length, position = read_varint(message, position)
        elif wire_type in FIXED_BYTES:
            length = FIXED_BYTES[wire_type]
        else:
            raise FormatError(f"field {number} has the unknown wire type {wire_type}")
        if length > len(message) - position:
            raise FormatError(f"field {number} has {length} bytes, only {len(message) - position} are left")
        yield number, message[position : position + length]
        position += length


def select(message: memoryview, number: int) -> list[memoryview]:
    """The values of one field that are not integers."""
    return [value for field, value in read_fields(message) if field == number and not isinstance(value, int)]


def read_shape(blob: memoryview) -> tuple[int, ...]:
    """The shape of a BlobProto: a packed list in field 7, or four fields in the format before 2015."""
    sizes: list[int] = []
    for shape in select(blob, 7):
        for number, value in read_fields(shape):
            if number == 1 and isinstance(value, int):
                sizes.append(value)
            elif number == 1 and isinstance(value, memoryview):
                position = 0
                while position < len(value):
                    size, position = read_varint(value, position)
                    sizes.append(size)
    if sizes:
        return tuple(sizes)
    axes = {number: value for number, value in read_fields(blob) if isinstance(value, int)}
    old = tuple(axes.get(axis, 1) for axis in range(1, 5))
    return old[3:] if old[:3] == (1, 1, 1) else old


def read_blob(blob: memoryview) -> np.ndarray:
    """The array of a BlobProto, as float32."""
    singles, doubles = b"".join(select(blob, 5)), b"".join(select(blob, 8))
    dtype, content = ("<f4", singles) if singles else ("<f8", doubles)
    if len(content) % np.dtype(dtype).itemsize:
        raise FormatError(f"{len(content)} bytes are not a whole number of values")
    shape = read_shape(blob)
    with np.errstate(over="ignore"):  # `ucn` refuses what is not finite
        values = np.frombuffer(content, dtype).astype(np.float32)
    if np.prod(shape, dtype=float) != len(values):
        raise FormatError(f"an array of shape {shape[:8]} has {len(values)} values")
    return values.reshape(shape)


def read_caffemodel(content: bytes) -> dict[str, np.ndarray]:
    """Arrays of every layer with weights and biases, in a NetParameter's `layer`, or `layers` before 2015."""
    net = memoryview(content)
    arrays: dict[str, np.ndarray] = {}
    for field, name_field, blobs_field in ((100, 1, 7), (2, 4, 6)):
        for layer in select(net, field):
            name = "".join(str(value, "utf-8", "replace") for value in select(layer, name_field)[-1:])
            blobs = select(layer, blobs_field)
            if len(blobs) != 2:
                continue
            key = name.replace("/", "_")
            if f"{key}_w" in arrays:
                raise FormatError(f"two layers are called '{name}'")
            arrays[f"{key}_w"], arrays[f"{key}_b"] = map(read_blob, blobs)
    if not arrays:
        raise FormatError("no layer has weights and biases")
    return arrays


def main() -> None:
    """Converts one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("caffemodel", type=Path)
    parser.add_argument("npz", type=Path)
    arguments = parser.parse_args()
    if arguments.npz.suffix != ".npz" or arguments.npz.exists():
        sys.exit(f"the output must be a new .npz file, got {arguments.npz}")
    try:
        size = arguments.caffemodel.stat().st_size
        if size > MAX_BYTES:
            sys.exit(f"{arguments.caffemodel} has {size} bytes, expected at most {MAX_BYTES}")
        arrays = read_caffemodel(arguments.caffemodel.read_bytes())
    except (OSError, FormatError) as error:
        sys.exit(f"cannot convert {arguments.caffemodel}: {error}")
    np.savez(arguments.npz, allow_pickle=False, **arrays)
    print(f"{arguments.npz}: {len(arrays) // 2} layers")


if __name__ == "__main__":
    main()
