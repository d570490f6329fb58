"""Connections and their deadlines; uvicorn has none for headers, and no limit for each client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ucn.serve.guard import HEADERS, explain
from ucn.serve.lanes import name_client


class Connection(H11Protocol):
    """uvicorn's connection with limits; where there are too many, the client that has most loses one."""

    max_connections = 512
    max_connections_each = 256
    header_seconds = 10.0
    """For the headers of a request, and for what remains of a body that was refused."""
    write_seconds = 30.0
    """For a response that the client does not read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts the connection, and starts the deadline of its first headers."""
        super().connection_made(transport)
        self._client_name = name_client(self.client)
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()
        self._watch()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the deadlines."""
        self._timer = _cancel(self._timer)
        self._write_timer = _cancel(self._write_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads; the deadline of headers ends when they are complete, and not before."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        self._idle_since = self.loop.time()
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Starts the deadline of a client that does not read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Ends that deadline."""
        self._write_timer = _cancel(self._write_timer)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Responds to what is not HTTP, as to everything else: in JSON, with all headers."""
        self._end(400, "this is not an HTTP request; see /docs")

    def is_waiting(self) -> bool:
        """Whether the client is to send something: headers, or the rest of a body."""
        return not self._is_busy() or self.cycle.more_body

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        """Runs a deadline while no request is in progress."""
        if self._is_busy() or self.transport.is_closing():
            self._timer = _cancel(self._timer)
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._expire)

    def _expire(self) -> None:
        self._end(408, f"the headers of a request must arrive within {self.header_seconds:.0f} s")

    def _make_room(self) -> None:
        counts = Counter(each._client_name for each in self._others())
        if counts[self._client_name] >= self.max_connections_each:
            client = self._client_name
        elif counts.total() >= self.max_connections:
            client = counts.most_common(1)[0][0]
        else:
            return
        others = [each for each in self._others() if each._client_name == client and each.is_waiting()]
        victim = min(others, key=lambda each: each._idle_since, default=self)
        victim._end(503, "too many connections are open; close some, or try again in a few seconds")

    def _others(self) -> list[Connection]:
        connections = self.connections
        return [each for each in connections if isinstance(each, Connection) and each is not self]

    def _end(self, status: int, detail: str) -> None:
        """Closes the connection, with a response where the client has begun a request."""
        is_begun = self._is_busy() or bool(self.conn.trailing_data[0]) or status == 400
        if is_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = explain(status, detail)
            response.headers.update({**HEADERS, "Connection": "close"})
            events = (
                h11.Response(status_code=status, headers=response.raw_headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            )
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        if self._is_busy():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.connections.discard(self)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, which tells the application that it stops before it waits for the last responses."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]) -> None:
        """A server that calls `drain` when it stops."""
        super().__init__(config)
        self._drain = drain

    async def shutdown(self, sockets: Any = None) -> None:
        """Refuses what has not begun; then as uvicorn."""
        self._drain()
        await asyncio.sleep(0.1)  # connections that the system has accepted are answered
        await super().shutdown(sockets)


def make_server(app: FastAPI) -> Server:
    """A server for the result of `create_app`, with all limits; its `run` takes the sockets."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=32 * 1024,
    )
    return Server(config, app.state.server.drain)


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancels a timer; the result takes its place."""
    if timer is not None:
        timer.cancel()
    return None
