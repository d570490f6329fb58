"""Sessions and their images: in memory only, bounded in number and bytes, deleted when idle."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ucn.errors import UcnError
from ucn.serve.images import StoredImage
from ucn.serve.lanes import CapacityError
from ucn.serve.limits import MEBIBYTE, Limits


class NotFoundError(UcnError, LookupError):
    """A session, image or weights that do not exist, or no longer."""


_SHORT_SECONDS = 60.0
"""Lifetime of an idle session without images, and of one with images where there are too many."""


@dataclass
class _Session:
    client: str
    last_used: float
    images: dict[str, StoredImage] = field(default_factory=dict)
    receiving: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.images and not self.receiving

    @property
    def memory_bytes(self) -> int:
        return sum(image.memory_bytes for image in self.images.values())


class Uploads:
    """Uploaded images by session; all methods are thread-safe."""

    def __init__(
        self,
        limits: Limits,
        forget: Callable[[str], None] = lambda name: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts empty.

        Args:
            limits: of sessions, images, bytes and seconds.
            forget: called with the name of each deleted image.
            clock: time in seconds.
        """
        self._limits, self._forget, self._clock = limits, forget, clock
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.RLock()

    def open_session(self, client: str = "") -> str:
        """Opens a session and returns its random name.

        Where there are too many, the one ends that was idle for longest: of those without images, else of
        those of a client that has more than this one, else of those idle for a minute.

        Args:
            client: whom the session belongs to.

        Raises:
            CapacityError: there are too many sessions, and none can end.
        """
        with self._lock:
            self.expire()
            if len(self._sessions) >= self._limits.max_sessions:
                self._end_one(client)
            name = secrets.token_urlsafe(18)
            self._sessions[name] = _Session(client, self._clock())
            return name

    def close_session(self, name: str) -> None:
        """Deletes a session and its images; raises `NotFoundError`."""
        with self._lock:
            self._find_session(name)
            self._end(name)

    @contextmanager
    def receive(self, name: str) -> Iterator[None]:
        """Keeps a session while an image of it arrives; raises `NotFoundError`."""
        with self._lock:
            session = self._find_session(name)
            session.receiving += 1
        try:
            yield
        finally:
            with self._lock:
                session.receiving -= 1
                session.last_used = self._clock()

    def add(self, session_name: str, image: StoredImage) -> None:
        """Stores an image; it replaces the oldest image of a full session.

        Raises:
            NotFoundError: there is no such session.
            CapacityError: the memory limit is reached.
        """
        with self._lock:
            session = self._find_session(session_name)
            count = max(0, len(session.images) + 1 - self._limits.max_images)
            oldest = list(session.images.values())[:count]
            budget, freed = self._limits.memory_bytes // 2, sum(old.memory_bytes for old in oldest)
            self._free_memory(session, image.memory_bytes - freed)
            if self.memory_bytes - freed + image.memory_bytes > budget:
                raise CapacityError(
                    f"uploads take {self.memory_bytes / MEBIBYTE:.0f} of {budget / MEBIBYTE:.0f} MiB "
                    "already; try a smaller file, or again later"
                )
            for old in oldest:
                del session.images[old.name]
            self._drop(old.name for old in oldest)
            session.images[image.name] = image

    def find(self, name: str) -> StoredImage:
        """The image of this name; its session counts as used.

        Raises:
            NotFoundError: there is no such image.
        """
        with self._lock:
            self.expire()
            for session in self._sessions.values():
                if name in session.images:
                    session.last_used = self._clock()
                    return session.images[name]
        raise NotFoundError("there is no such image, or it has expired; upload it again")

    def expire(self) -> None:
        """Deletes idle sessions."""
        with self._lock:
            now, idle_seconds = self._clock(), self._limits.idle_seconds
            for name, session in list(self._sessions.items()):
                allowed = min(idle_seconds, _SHORT_SECONDS) if session.is_empty else idle_seconds
                if session.last_used + allowed <= now:
                    self._end(name)

    @property
    def memory_bytes(self) -> int:
        """Memory of all images."""
        with self._lock:
            return sum(session.memory_bytes for session in self._sessions.values())

    def _find_session(self, name: str) -> _Session:
        self.expire()
        session = self._sessions.get(name)
        if session is None:
            raise NotFoundError("there is no such session, or it has expired; open a new one")
        session.last_used = self._clock()
        return session

    def _end_one(self, client: str) -> None:
        """Ends the cheapest session, so that another one can be opened; raises `CapacityError`."""
        counts = Counter(session.client for session in self._sessions.values())
        most, count = counts.most_common(1)[0]
        empty = {name: session for name, session in self._sessions.items() if session.is_empty}
        of_most = {name: session for name, session in self._sessions.items() if session.client == most}
        # Those of the client with most sessions first: another one's may be about to get its first image.
        choices: Collection[str] = (empty.keys() & of_most.keys()) or empty.keys()
        if not choices and count > counts[client] + 1:
            choices = of_most.keys()
        if not choices:
            latest = self._clock() - _SHORT_SECONDS
            choices = {name for name, session in self._sessions.items() if session.last_used <= latest}
        if not choices:
            number = len(self._sessions)
            raise CapacityError(f"{number} sessions are open, which is the limit; try again later")
        self._end(min(choices, key=lambda name: self._sessions[name].last_used))

    def _free_memory(self, session: _Session, needed: int) -> None:
        """Ends idle sessions of clients that hold more than this one would, until an image has room."""
        held: Counter[str] = Counter()
        for each in self._sessions.values():
            held[each.client] += each.memory_bytes
        while self.memory_bytes + needed > self._limits.memory_bytes // 2:
            most, size = held.most_common(1)[0]
            if most == session.client or size <= held[session.client] + needed:
                return
            of_most = [name for name, each in self._sessions.items() if each.client == most and each.images]
            name = min(of_most, key=lambda name: self._sessions[name].last_used)
            held[most] -= self._sessions[name].memory_bytes
            self._end(name)

    def _end(self, name: str) -> None:
        self._drop(self._sessions.pop(name).images)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._forget(name)
