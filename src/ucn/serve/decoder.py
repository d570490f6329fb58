"""Decodes uploads in child processes, which are limited in time and memory and can be killed.

Decoders are the code that a stranger's bytes reach first. A child that crashes, or takes too long, costs one
upload; the next one starts a new child. The child answers with numbers and pixels, never with pickles.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucn.data.io import to_tensor
from ucn.errors import ImageReadError, UcnError
from ucn.serve import decoder_child
from ucn.serve.images import StoredImage

_WALL_SECONDS = 20.0
"""A child is killed after this time, also where processor time cannot be limited, or is not used up."""


def list_missing_limits() -> list[str]:
    """What this system cannot limit in a child: on Windows memory and processor time, on macOS memory."""
    if sys.platform == "win32":
        return ["memory", "processor time"]
    return [] if sys.platform == "linux" else ["memory"]


class Decoders:
    """A few children; each decodes one image at a time. All methods are thread-safe."""

    def __init__(self, count: int, max_pixels: int, wall_seconds: float = _WALL_SECONDS) -> None:
        """Prepares the children; each is started by its first image.

        Args:
            count: images that are decoded at a time.
            max_pixels: larger images are refused.
            wall_seconds: after which a child is killed.
        """
        self._children = [_Child(max_pixels, wall_seconds) for _ in range(count)]
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for child in self._children:
            self._idle.put(child)

    def show(self, name: str, content: bytes) -> StoredImage:
        """Checks an upload, and encodes the JPEG for the browser, as `decode_upload`.

        Raises:
            ImageReadError: it is not a readable image, too large or too small, or takes too long.
        """
        with self._borrow() as child:
            head, shown = child.ask("show", content)
        return StoredImage(name, content, (head["height"], head["width"]), shown, child.max_pixels)

    def read(self, image: StoredImage) -> Tensor:
        """The pixels of an image, as `decode_image`; raises as `show`."""
        with self._borrow() as child:
            head, values = child.ask("read", image.content)
        # A copy: torch needs an array that may be written.
        pixels = np.frombuffer(values, head["dtype"]).reshape(head["shape"]).copy()
        if pixels.dtype == np.uint8:
            return to_tensor(pixels)
        return torch.from_numpy(pixels).expand(3, -1, -1).contiguous()

    def close(self) -> None:
        """Ends the children."""
        for child in self._children:
            child.kill()

    @contextlib.contextmanager
    def _borrow(self) -> Iterator[_Child]:
        child = self._idle.get()
        try:
            yield child
        finally:
            self._idle.put(child)


class _Child:
    """A process that runs `decoder_child`; started when it is needed, and again after it was killed."""

    def __init__(self, max_pixels: int, wall_seconds: float) -> None:
        self.max_pixels, self._wall_seconds = max_pixels, wall_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, task: str, content: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer of the child: a few numbers, and bytes; raises `ImageReadError`."""
        process, is_late = self._start(), threading.Event()

        def stop() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self._wall_seconds, stop)
        timer.start()
        try:
            head, answer = _exchange(process, {"task": task, "bytes": len(content)}, content)
        except (OSError, ValueError, KeyError, TypeError):  # it is gone, or says what it should not
            self.kill()
            if is_late.is_set() or process.returncode == -getattr(signal, "SIGXCPU", 0):
                remedy = "it takes too long to decode; save it again, as a plain JPEG for example"
            else:
                remedy = "its decoder crashed: the file is damaged; get it again or remove it"
            raise ImageReadError(f"cannot read the image: {remedy}") from None
        finally:
            timer.cancel()
        if "error" in head:
            if head.get("is_spent"):
                self.kill()
            raise ImageReadError(str(head["error"]))
        _check(task, head, answer, self.max_pixels)
        return head, answer

    def kill(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent bytes
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        if self._process is None:
            # It finds the packages that this process found; one thread keeps its address space small.
            path = os.pathsep.join(sys.path)
            environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(decoder_child.__file__)), str(self.max_pixels)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the server, which then ends it
            )
        return self._process


def _exchange(
    process: subprocess.Popen[bytes], head: dict[str, Any], content: bytes
) -> tuple[dict[str, Any], bytes]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(head).encode() + b"\n" + content)
    process.stdin.flush()
    answer = json.loads(process.stdout.readline(4096))
    if not isinstance(answer, dict):
        raise ValueError("the answer is no dictionary")
    values = process.stdout.read(answer["bytes"]) if answer.get("bytes") else b""
    if len(values) != answer.get("bytes", 0):
        raise ValueError("the answer is cut")
    return answer, values


def _check(task: str, head: dict[str, Any], answer: bytes, max_pixels: int) -> None:
    """Raises `UcnError` where an answer is none that the child's code can give."""
    if task == "show":
        sides = (head.get("height"), head.get("width"))
        is_sound = all(isinstance(side, int) and side > 0 for side in sides) and answer[:2] == b"\xff\xd8"
    else:
        shape = head.get("shape", ())
        is_sound = head.get("dtype") in ("uint8", "float32") and len(shape) in (2, 3)
        is_sound = is_sound and all(isinstance(side, int) and side > 0 for side in shape)
        is_sound = is_sound and shape[0] * shape[1] <= max_pixels and shape[2:] in ([], [3])
    if not is_sound:
        raise UcnError("the decoder gave a wrong answer")
