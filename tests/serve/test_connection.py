"""Connections: deadlines, limits for each client, and responses to what is refused before the application."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from support.serve_cases import (
    ask,
    assert_refused,
    format_request,
    make_image,
    read_answer,
    run_server,
)
from ucn.serve.connection import Connection
from ucn.serve.limits import Limits

Address = tuple[str, int]
_STATUS = format_request("/page/style.css", method="GET")
_STRANGER = "127.0.0.2"


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with run_server(Limits(max_upload_bytes=2**20)) as address:
        yield address


@pytest.fixture
def held() -> Iterator[contextlib.ExitStack]:
    """Closes connections."""
    with contextlib.ExitStack() as stack:
        yield stack


def _connect(
    held: contextlib.ExitStack, address: Address, content: bytes = b"", source: str = "127.0.0.1"
) -> socket.socket:
    connection = held.enter_context(socket.create_connection(address, 10, (source, 0)))
    connection.sendall(content)
    return connection


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"G", b"POST / HTTP/1.1\r\nX: "])
def test_unfinished_headers_have_a_deadline(
    address: Address, held: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(Connection, "header_seconds", 0.2)
    answer = read_answer(_connect(held, address, start))
    assert_refused(answer, 408)
    assert "headers of a request must arrive within 0 s" in answer.detail


def test_a_second_request_has_a_deadline_too(
    address: Address, held: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "header_seconds", 0.2)
    connection = _connect(held, address, _STATUS)
    assert read_answer(connection).status == 200
    connection.sendall(b"GET /")
    assert_refused(read_answer(connection), 408)


def test_a_connection_without_a_request_is_closed(
    address: Address, held: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "header_seconds", 0.2)
    assert _connect(held, address).recv(1) == b""


def test_a_client_that_does_not_read_is_left(
    address: Address, held: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "write_seconds", 0.2)
    connection = held.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect(address)
    image = format_request("/api/images/sample-motorcycle-left", method="GET")
    with contextlib.suppress(ConnectionError):
        for _ in range(200):  # pipelined
            connection.sendall(image)
            time.sleep(0.002)
    time.sleep(0.4)
    size = 0
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(2**20):
            size += len(part)
    assert size < 20 * 2**20  # the kernel's buffers, not all 200 responses


def test_the_oldest_connection_of_a_client_with_too_many_is_closed(
    address: Address, held: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "max_connections_each", 3)
    connections = [_connect(held, address, b"GET", _STRANGER) for _ in range(3)]
    time.sleep(0.1)
    assert ask(address, _STATUS, _STRANGER).status == 200
    assert_refused(read_answer(connections[0]), 503)
    connections[1].settimeout(0.05)
    with pytest.raises(TimeoutError):
        connections[1].recv(1)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", format_request("/api/match", bytes(99))[:-50]])
def test_the_client_with_most_connections_makes_room(
    address: Address, held: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(Connection, "max_connections", 6)
    mine = _connect(held, address, b"GET")
    connections = [_connect(held, address, start, _STRANGER) for _ in range(5)]
    time.sleep(0.1)
    assert ask(address, _STATUS).status == 200
    assert_refused(read_answer(connections[0]), 503)
    mine.sendall(_STATUS[3:])
    assert read_answer(mine).status == 200


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000,
        b"POST /api/match HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_request(address: Address, content: bytes) -> None:
    assert_refused(ask(address, content), 400)


@pytest.mark.parametrize("path", ["/api/sessions/none/images", "/api/match", "/nowhere"])
def test_a_refused_body_is_read_to_its_end(address: Address, path: str) -> None:
    """Else the client, which is still sending, gets a reset instead of the response."""
    assert_refused(ask(address, format_request(path, bytes(5 * 2**20))), 413)


def test_many_uploads_at_once_are_all_answered(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    session = ask(address, format_request("/api/sessions")).body.decode().split('"')[3]
    request = format_request(f"/api/sessions/{session}/images", make_image())
    found: list[int] = []

    def send() -> None:
        found.append(ask(address, request, seconds=60).status)

    threads = [threading.Thread(target=send) for _ in range(120)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [201] * 120
    assert not caplog.records


def test_a_server_that_stops_answers_what_is_in_progress(
    held: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), run_server(Limits()) as address:
        session = ask(address, format_request("/api/sessions")).body.decode().split('"')[3]
        request = format_request(f"/api/sessions/{session}/images", make_image())
        unfinished = [_connect(held, address, request[:-100]) for _ in range(5)]
        time.sleep(0.1)
    for connection in unfinished:
        assert_refused(read_answer(connection), 503)
    assert not caplog.records
