"""Threads that work for one client after the other, however much a single one has queued."""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from ucn.errors import UcnError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Job = tuple["Future[Any]", Callable[[], Any]]

CLIENT: ContextVar[str] = ContextVar("ucn_client", default="")
"""Whom the current request comes from; see `name_client`."""


class CapacityError(UcnError, RuntimeError):
    """The client has reached a limit; a later attempt may succeed."""


class UnavailableError(UcnError, RuntimeError):
    """The server is full, or stops; a later attempt may succeed."""


def name_client(address: tuple[str, int] | None) -> str:
    """The client that an address belongs to: of IPv6 the first 64 bits, which one user may choose freely."""
    host = "" if address is None else address[0]
    if ":" not in host:
        return host
    try:
        full = ipaddress.IPv6Address(host.split("%")[0])
    except ValueError:
        return host
    if full.ipv4_mapped is not None:  # IPv4 through a socket of both kinds
        return str(full.ipv4_mapped)
    return str(ipaddress.IPv6Network((full, 64), strict=False))


class Lane:
    """A few threads with a queue for each client; the clients take turns.

    Of several threads, one is kept free of the client that occupies all others. All methods are thread-safe.
    """

    def __init__(self, name: str, max_waiting: int, threads: int = 1, max_seconds: float = 60.0) -> None:
        """Starts empty; threads start when they are needed.

        Args:
            name: of the threads.
            max_waiting: jobs in the queues; one client may have half of them.
            threads: jobs that run at a time.
            max_seconds: how long `run` waits for a job to begin.
        """
        self._max_waiting, self._threads, self._max_seconds = max_waiting, threads, max_seconds
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._executor = ThreadPoolExecutor(threads, name)
        self._is_closing = False

    def run(
        self, work: Callable[_Arguments, _Result], *arguments: _Arguments.args, **options: _Arguments.kwargs
    ) -> _Result:
        """Runs work when it is the client's turn, and waits for it; raises as `submit` and as the work."""
        future = self.submit(work, *arguments, **options)
        try:
            return future.result(self._max_seconds)
        except TimeoutError:
            if future.cancel():
                raise UnavailableError("the server is busy; try again in a few seconds") from None
            return future.result()

    def submit(
        self, work: Callable[_Arguments, _Result], *arguments: _Arguments.args, **options: _Arguments.kwargs
    ) -> Future[_Result]:
        """Queues work for the client of this context; a cancelled job is not begun.

        Raises:
            CapacityError: too many jobs of this client wait.
            UnavailableError: too many jobs wait, none of them of a client with more; or the lane is closing.
        """
        client, future = CLIENT.get(), Future[_Result]()
        with self._lock:
            if self._is_closing:
                raise UnavailableError(CLOSING)
            self._make_room(client)
            run = partial(copy_context().run, work, *arguments, **options)
            self._waiting.setdefault(client, deque()).append((future, run))
            self._start()
        return future

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    def drain(self) -> None:
        """Refuses all jobs that have not begun, and new ones."""
        with self._lock:
            self._is_closing = True
            dropped = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
        for future, _ in dropped:
            _refuse(future, CLOSING)

    def close(self) -> None:
        """Drains the lane and waits for its threads."""
        self.drain()
        self._executor.shutdown()

    def _make_room(self, client: str) -> None:
        """Drops the last job of the client with most of them, where the lane is full."""
        mine = len(self._waiting.get(client, ()))
        if mine >= max(1, self._max_waiting // 2):
            raise CapacityError(f"{mine} of your requests wait already; try again in a few seconds")
        if self.waiting < self._max_waiting:
            return
        most = max(self._waiting, key=lambda name: len(self._waiting[name]))
        if len(self._waiting[most]) <= mine + 1:
            raise UnavailableError(f"{self._max_waiting} requests wait already; try again in a few seconds")
        _refuse(self._waiting[most].pop()[0], "others wait, too; try again in a few seconds")

    def _start(self) -> None:
        """Begins jobs while threads are free; the lock is held."""
        most = max(1, self._threads - 1)
        while self._running.total() < self._threads:
            client = next((name for name in self._waiting if self._running[name] < most), None)
            if client is None:
                return
            future, run = self._waiting[client].popleft()
            self._waiting.move_to_end(client)
            if not self._waiting[client]:
                del self._waiting[client]
            if future.set_running_or_notify_cancel():
                self._running[client] += 1
                self._executor.submit(self._work, client, future, run)

    def _work(self, client: str, future: Future[Any], run: Callable[[], Any]) -> None:
        try:
            result = run()
        except BaseException as error:
            self._end(client)
            future.set_exception(error)
        else:
            self._end(client)
            future.set_result(result)

    def _end(self, client: str) -> None:
        with self._lock:
            self._running[client] -= 1
            self._running += Counter()  # forgets clients without jobs
            self._start()


CLOSING = "the server is stopping; try again in a few seconds"
"""What is said to those whose request is not answered any more."""


def _refuse(future: Future[Any], reason: str) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(UnavailableError(reason))
