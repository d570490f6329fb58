"""Sessions and their images: bounded in number and bytes, in memory only, forgotten when idle."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ucn.errors import UcnError
from ucn.serve.limits import MEBIBYTE, Limits
from ucn.serve.pictures import HeldImage


class UnknownError(UcnError, LookupError):
    """There is no such session, image or weights, or not any longer."""


class FullError(UcnError, RuntimeError):
    """A limit of the server is reached; later there may be room again."""


@dataclass
class _Session:
    last_used: float
    images: OrderedDict[str, HeldImage] = field(default_factory=OrderedDict)


class Uploads:
    """What visitors gave, by session.

    All methods may be called from several threads.
    """

    def __init__(
        self,
        limits: Limits,
        forget: Callable[[str], None] = lambda name: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins empty.

        Args:
            limits: of numbers, bytes and seconds.
            forget: called with the name of each image that is dropped.
            clock: seconds.
        """
        self._limits, self._forget, self._clock = limits, forget, clock
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.RLock()

    def open_session(self) -> str:
        """Begins a session and returns its name, which is hard to guess.

        Raises:
            FullError: there are too many already.
        """
        with self._lock:
            self.expire()
            if len(self._sessions) >= self._limits.max_sessions:
                raise FullError(
                    f"{len(self._sessions)} visitors are here already, which is the limit; try again later"
                )
            name = secrets.token_urlsafe(18)
            self._sessions[name] = _Session(self._clock())
            return name

    def close_session(self, name: str) -> None:
        """Forgets a session and its images; raises `UnknownError` where there is none."""
        with self._lock:
            self._find_session(name)
            self._drop(self._sessions.pop(name).images)

    def check_session(self, name: str) -> None:
        """Raises `UnknownError` where there is no such session; otherwise it counts as used."""
        with self._lock:
            self._find_session(name)

    def add(self, session_name: str, image: HeldImage) -> None:
        """Keeps an image of a session; the session's oldest makes room where it has too many.

        Raises:
            UnknownError: there is no such session.
            FullError: there is no memory left for it.
        """
        with self._lock:
            session = self._find_session(session_name)
            count = max(0, len(session.images) + 1 - self._limits.max_images)
            oldest = list(session.images.values())[:count]
            budget, freed = self._limits.memory_bytes // 2, sum(old.held_bytes for old in oldest)
            if self.held_bytes - freed + image.held_bytes > budget:
                raise FullError(
                    f"the server holds images of {self.held_bytes / MEBIBYTE:.0f} of {budget / MEBIBYTE:.0f} "
                    "MiB already; try a smaller file, or again later"
                )
            for old in oldest:
                del session.images[old.name]
            self._drop(old.name for old in oldest)
            session.images[image.name] = image

    def find(self, name: str) -> HeldImage:
        """The image of a name; its session counts as used.

        Raises:
            UnknownError: there is none, or it was forgotten.
        """
        with self._lock:
            self.expire()
            for session in self._sessions.values():
                if name in session.images:
                    session.last_used = self._clock()
                    return session.images[name]
        raise UnknownError("there is no such image, or it was forgotten; send it again")

    def expire(self) -> None:
        """Forgets the sessions that nobody used for too long."""
        with self._lock:
            latest = self._clock() - self._limits.idle_seconds
            for name in [name for name, session in self._sessions.items() if session.last_used <= latest]:
                self._drop(self._sessions.pop(name).images)

    @property
    def held_bytes(self) -> int:
        """Memory that all images take."""
        with self._lock:
            sessions = self._sessions.values()
            return sum(image.held_bytes for session in sessions for image in session.images.values())

    def _find_session(self, name: str) -> _Session:
        self.expire()
        session = self._sessions.get(name)
        if session is None:
            raise UnknownError("there is no such session, or it was forgotten; open a new one")
        session.last_used = self._clock()
        return session

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._forget(name)
