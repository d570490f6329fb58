"""Bodies as they arrive: limited in length, in time and, all together, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from ucn.serve.lanes import CLOSING
from ucn.serve.limits import RETRY_SECONDS

_PAUSE_SECONDS = 5.0
"""How long a body may pause, and how long it may be behind `_MIN_RATE`."""
_MIN_RATE = 16 * 1024
"""Bytes per second; a slow telephone sends five times as much."""
_WAIT_SECONDS = 20.0
"""How long a body waits for memory that other bodies hold."""


class Intake:
    """The bodies of all requests in progress. Used in the event loop only."""

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        """Starts empty.

        Args:
            max_bytes: of all bodies together; those of one client may take half.
            max_seconds: for one body.
        """
        self.max_bytes, self.max_seconds = max_bytes, max_seconds
        self.is_closing = False
        self._bodies: list[Body] = []  # the oldest first
        self._released = asyncio.Event()

    @contextmanager
    def open(self, client: str, receive: Receive, limit: int) -> Iterator[Body]:
        """The body of a request until its response is sent."""
        body = Body(self, client, receive, limit)
        self._bodies.append(body)
        try:
            yield body
        finally:
            self._bodies.remove(body)
            self._release()

    def drain(self) -> None:
        """Ends all bodies that are not complete, and has new requests refused."""
        self.is_closing = True
        for body in self._bodies:
            body.stop()
        self._release()

    @property
    def held_bytes(self) -> int:
        """Bytes of all bodies."""
        return sum(body.held for body in self._bodies)

    async def wait_for_room(self, body: Body) -> None:
        """Waits until the limits hold; the oldest body never waits, so that one is always completed.

        Raises:
            HTTPException: 429 where the client's other bodies hold too much for too long, 503 where all
                bodies together do, or the server stops.
        """
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while not self.is_closing and self._is_over(body):
                    await self._released.wait()
        except TimeoutError:
            if self._is_over_own(body):
                detail = "your other uploads are in progress; try again when they are done"
                raise _refuse(429, detail) from None
            raise _refuse(503, "many uploads are in progress; try again in a few seconds") from None
        if self.is_closing:
            raise _refuse(503, CLOSING)

    def _is_over(self, body: Body) -> bool:
        return self._is_over_own(body) or (self.held_bytes > self.max_bytes and body is not self._bodies[0])

    def _is_over_own(self, body: Body) -> bool:
        own = [each for each in self._bodies if each.client == body.client]
        return sum(each.held for each in own) > self.max_bytes // 2 and body is not own[0]

    def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()


class Body:
    """The body of one request."""

    def __init__(self, intake: Intake, client: str, receive: Receive, limit: int) -> None:
        """Nothing has arrived yet.

        Args:
            intake: all bodies.
            client: whom it comes from.
            receive: of the server.
            limit: the most bytes.
        """
        self.client, self.held = client, 0
        self._intake, self._receive, self._limit = intake, receive, limit
        self._is_complete = False
        self._began: float | None = None
        self._timeout: asyncio.Timeout | None = None

    async def receive(self) -> Message:
        """The next part; raises `HTTPException`."""
        if self._is_complete:
            return await self._receive()  # until the client has gone
        loop = asyncio.get_running_loop()
        self._began = loop.time() if self._began is None else self._began
        allowed = min(self._intake.max_seconds, _PAUSE_SECONDS + self.held / _MIN_RATE)
        deadline = min(self._began + allowed, loop.time() + _PAUSE_SECONDS)
        try:
            async with asyncio.timeout_at(deadline) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            if self._intake.is_closing:
                raise _refuse(503, CLOSING) from None
            raise HTTPException(
                408,
                f"the upload is too slow: it must take less than {self._intake.max_seconds:.0f} s, with "
                f"{_MIN_RATE // 1024} KiB a second at least; send a smaller file",
            ) from None
        finally:
            self._timeout = None
        if message["type"] != "http.request":
            return message
        self._is_complete = not message.get("more_body", False)
        self.held += len(message.get("body", b""))
        if self.held > self._limit:
            raise HTTPException(413, format_too_long(self._limit))
        if not self._is_complete:
            waited_from = loop.time()
            await self._intake.wait_for_room(self)
            self._began += loop.time() - waited_from
        return message

    def stop(self) -> None:
        """Ends the wait for the next part."""
        if self._timeout is not None:
            self._timeout.reschedule(-1.0)


def _refuse(status: int, detail: str) -> HTTPException:
    return HTTPException(status, detail, {"Retry-After": str(RETRY_SECONDS[status])})


def format_too_long(limit: int) -> str:
    """Says that a body is longer than so many bytes."""
    size = f"{limit / 2**20:.3g} MiB" if limit >= 2**20 else f"{limit / 2**10:.3g} KiB"
    return f"the request is too long: the limit is {size}; reduce the image or send fewer points"
