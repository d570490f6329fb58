"""Image files, requests and servers for tests of the web page, and the names of the sample pair."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image

from ucn.serve.limits import Limits

MOTORCYCLE = {"image0": "sample-motorcycle-left", "image1": "sample-motorcycle-right"}


def make_image(width: int = 64, height: int = 48, seed: int = 0, image_format: str = "PNG") -> bytes:
    """The bytes of a small textured image file."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    image = PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, image_format)
    return file.getvalue()


def make_scope(path: str, client: str = "127.0.0.1") -> dict[str, Any]:
    """An upload as a server passes it to the application."""
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"localhost"), (b"content-type", b"image/png")],
        "client": (client, 50000),
        "server": ("localhost", 8000),
    }


def run_async(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine in a thread: after browser tests, this one has a running event loop."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: asyncio.run(asyncio.wait_for(work(), 10))).result()


@contextmanager
def run_server(limits: Limits) -> Iterator[tuple[str, int]]:
    """A server in a thread, without weights; its host and port."""
    from ucn.serve.app import create_app
    from ucn.serve.connection import make_server
    from ucn.serve.service import MatchService

    with contextlib.closing(MatchService(limits, device="cpu")) as service:
        server = make_server(create_app(service, limits))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            yield listener.getsockname()
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@dataclass(frozen=True)
class Answer:
    """A response as it came; status 0 where the connection ended without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def detail(self) -> str:
        """The sentence of a refusal."""
        return str(json.loads(self.body)["detail"])


def ask(address: tuple[str, int], content: bytes, source: str = "127.0.0.1", seconds: float = 10) -> Answer:
    """Sends bytes on a connection of their own and reads one response."""
    with socket.create_connection(address, seconds, (source, 0)) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(content)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    """The next response on a connection."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, TimeoutError):
            raise
        return Answer(0, {}, b"")
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def format_request(
    path: str, content: bytes = b"", method: str = "POST", kind: str = "image/png", host: str = "localhost"
) -> bytes:
    """The bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def assert_refused(answer: Answer, *statuses: int) -> None:
    """Checks that a refusal is one of these, in JSON, with the headers that every response carries."""
    assert answer.status in statuses, answer
    assert answer.detail
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert ("retry-after" in answer.headers) == (answer.status in (429, 503))
