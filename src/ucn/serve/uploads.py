"""Sessions and their images: in memory only, bounded in number and bytes, deleted when idle."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ucn.errors import UcnError
from ucn.serve.images import StoredImage
from ucn.serve.limits import MEBIBYTE, Limits


class NotFoundError(UcnError, LookupError):
    """A session, image or weights that do not exist, or no longer."""


class CapacityError(UcnError, RuntimeError):
    """A limit of the server is reached; a later attempt may succeed."""


@dataclass
class _Session:
    last_used: float
    images: dict[str, StoredImage] = field(default_factory=dict)


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

    def open_session(self) -> str:
        """Opens a session and returns its random name.

        Raises:
            CapacityError: there are too many sessions.
        """
        with self._lock:
            self.expire()
            if len(self._sessions) >= self._limits.max_sessions:
                raise CapacityError(
                    f"{len(self._sessions)} sessions are open, which is the limit; try again later"
                )
            name = secrets.token_urlsafe(18)
            self._sessions[name] = _Session(self._clock())
            return name

    def close_session(self, name: str) -> None:
        """Deletes a session and its images; raises `NotFoundError`."""
        with self._lock:
            self._find_session(name)
            self._drop(self._sessions.pop(name).images)

    def check_session(self, name: str) -> None:
        """Marks a session as used; raises `NotFoundError`."""
        with self._lock:
            self._find_session(name)

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
            latest = self._clock() - self._limits.idle_seconds
            for name in [name for name, session in self._sessions.items() if session.last_used <= latest]:
                self._drop(self._sessions.pop(name).images)

    @property
    def memory_bytes(self) -> int:
        """Memory of all images."""
        with self._lock:
            sessions = self._sessions.values()
            return sum(image.memory_bytes for session in sessions for image in session.images.values())

    def _find_session(self, name: str) -> _Session:
        self.expire()
        session = self._sessions.get(name)
        if session is None:
            raise NotFoundError("there is no such session, or it has expired; open a new one")
        session.last_used = self._clock()
        return session

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._forget(name)
