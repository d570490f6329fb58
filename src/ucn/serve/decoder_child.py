"""The child process of `decoder`: reads an image from stdin, and writes its size and pixels to stdout.

It must not import torch, so that it starts in a fifth of a second.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any, BinaryIO

_MEMORY_BYTES = 512 * 2**20
_PIXEL_BYTES = 32  # decoded, converted, turned; some decoders take 16 of them
_HEADER_SECONDS = 1
_SECONDS, _PIXELS = 5, 24_000_000  # more of them for larger images


def limit_seconds(seconds: float) -> None:
    """Ends this process after so much more processor time, where the system can do that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used + seconds), most))


def limit_memory(max_pixels: int) -> None:
    """Limits memory, files and core dumps of this process, as far as the system can do that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    memory = _MEMORY_BYTES + _PIXEL_BYTES * max_pixels
    for name, limit in (("RLIMIT_AS", memory), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0)):
        try:
            resource.setrlimit(getattr(resource, name), (limit, limit))
        except (AttributeError, OSError, ValueError):  # macOS has no limit of the address space
            continue


def answer(task: str, content: bytes, max_pixels: int) -> tuple[dict[str, Any], bytes]:
    """What `Decoders` asks for: numbers, and bytes; raises `ImageReadError`."""
    from ucn.data.io import count_pixels, decode_pixels
    from ucn.serve.images import decode_upload

    limit_seconds(_HEADER_SECONDS)
    pixels = count_pixels(content, max_pixels)
    limit_seconds(_HEADER_SECONDS + _SECONDS * pixels / _PIXELS)
    if task == "show":
        image = decode_upload("", content, max_pixels)
        return {"height": image.image_hw[0], "width": image.image_hw[1]}, image.shown
    values = decode_pixels(content, max_pixels)
    return {"shape": values.shape, "dtype": str(values.dtype)}, values.tobytes()


def serve(requests: BinaryIO, answers: BinaryIO, max_pixels: int) -> None:
    """Answers requests until there are no more."""
    from ucn.errors import ImageReadError

    while line := requests.readline(4096):
        request = json.loads(line)
        content = requests.read(request["bytes"])
        values = b""
        try:
            head, values = answer(request["task"], content, max_pixels)
            head["bytes"] = len(values)
        except ImageReadError as error:
            # What failed for lack of memory may have left little of it.
            head = {"error": str(error)[:1000], "is_spent": isinstance(error.__cause__, MemoryError)}
        except MemoryError:
            head = {"error": "cannot read the image: not enough memory; reduce the image", "is_spent": True}
        answers.write(json.dumps(head).encode() + b"\n" + values)
        answers.flush()


def main() -> None:
    """Serves the parent's pipes."""
    max_pixels = int(sys.argv[1])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a decoder prints must not look like an answer
    limit_memory(max_pixels)
    serve(sys.stdin.buffer, answers, max_pixels)


if __name__ == "__main__":
    main()
