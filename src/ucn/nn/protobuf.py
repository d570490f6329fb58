"""The wire format of protocol buffers, as far as .caffemodel and .onnx files need it.

A message is a row of fields, each a number and a value. Here nothing descends into a field by itself, so that
nesting costs nothing, and every length is checked against its message before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_MAX_FIELDS = 2**22  # in one message; the largest layer of GoogLeNet has 2,097,152 weights
_MAX_INTEGERS = 64
_FIXED_BYTES = {1: 8, 5: 4}  # wire types of numbers of a fixed length

Value = int | memoryview
"""A field's value: an integer, or the bytes of a number, a text, a message or a packed list."""


class WireError(ValueError):
    """Bytes are not a message."""


def read_fields(message: memoryview, *numbers: int) -> dict[int, list[Value]]:
    """The values of some fields of a message, in the order of the file; an empty list where there are none.

    Raises:
        WireError: the bytes are not a message.
    """
    found: dict[int, list[Value]] = {number: [] for number in numbers}
    for number, value in _walk(message):
        if number in found:
            found[number].append(value)
    return found


def read_messages(values: Sequence[Value]) -> list[memoryview]:
    """Values that are messages themselves.

    Raises:
        WireError: one is an integer.
    """
    messages = [value for value in values if isinstance(value, memoryview)]
    if len(messages) < len(values):
        raise WireError("an integer stands where a message is expected")
    return messages


def read_texts(values: Sequence[Value]) -> list[str]:
    """Values that are texts; what is not UTF-8 is replaced.

    Raises:
        WireError: one is an integer.
    """
    return [str(value, "utf-8", "replace") for value in read_messages(values)]


def read_integers(values: Sequence[Value]) -> list[int]:
    """Integers, whether each has its own field or all are packed into one; at most 64.

    Raises:
        WireError: there are more, or one is cut off.
    """
    integers: list[int] = []
    for value in values:
        if isinstance(value, int):
            integers.append(value)
            continue
        place = 0
        while place < len(value) and len(integers) <= _MAX_INTEGERS:
            integer, place = _read_integer(value, place)
            integers.append(integer)
    if len(integers) > _MAX_INTEGERS:
        raise WireError(f"a list has more than {_MAX_INTEGERS} integers")
    return integers


def read_floats(values: Sequence[Value], digits: str = "<f4") -> NDArray[np.float32]:
    """Floating-point numbers, whether each has its own field or all are packed into one.

    Args:
        values: of the field.
        digits: how the file holds them: '<f4' or '<f8'.

    Raises:
        WireError: the bytes are not a whole number of them.
    """
    content = b"".join(read_messages(values))
    if len(content) % np.dtype(digits).itemsize:
        raise WireError(f"{len(content)} bytes are not a whole number of floating-point numbers")
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        return np.frombuffer(content, digits).astype(np.float32)


def _walk(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field."""
    place = count = 0
    while place < len(message):
        count += 1
        if count > _MAX_FIELDS:
            raise WireError(f"a message has more than {_MAX_FIELDS} fields")
        tag, place = _read_integer(message, place)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has the number 0")
        if wire_type == 0:
            integer, place = _read_integer(message, place)
            yield number, integer
            continue
        if wire_type == 2:
            length, place = _read_integer(message, place)
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        else:  # groups, which neither format has, and types that do not exist
            raise WireError(f"field {number} has the unknown wire type {wire_type}")
        if length > len(message) - place:
            raise WireError(f"field {number} has {length} bytes, but only {len(message) - place} are left")
        yield number, message[place : place + length]
        place += length


def _read_integer(message: memoryview, place: int) -> tuple[int, int]:
    """An integer of 7 bits a byte, the lowest first, and the place behind it."""
    integer = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise WireError("an integer is cut off")
        byte = message[place]
        place += 1
        integer |= (byte & 0x7F) << shift
        if byte < 0x80:
            return integer, place
    raise WireError("an integer has more than 10 bytes")
