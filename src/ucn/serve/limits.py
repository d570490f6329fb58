"""Limits of the server."""

from __future__ import annotations

from dataclasses import dataclass

from ucn.config.base import Config, require

MEBIBYTE = 2**20
RETRY_SECONDS = {429: 10, 503: 5}
"""When a client may try again, by the status of a refusal."""
MAX_POINTS = 500
"""Largest number of points in one request."""


@dataclass(frozen=True)
class Limits(Config):
    """Limits of sessions, uploads and memory."""

    max_upload_bytes: int = 20 * MEBIBYTE
    """Largest image file; 1 KiB to 1 GiB."""
    max_pixels: int = 24_000_000
    """Largest image, checked before it is decoded; at least 1,024."""
    max_sessions: int = 32
    """Largest number of sessions; at least 1."""
    max_images: int = 6
    """Images per session; another one replaces the oldest. At least 2."""
    memory_bytes: int = 1024 * MEBIBYTE
    """Memory, half of it for uploads and half for features; at least 16 MiB."""
    idle_seconds: float = 1800.0
    """Lifetime of an idle session and its images; above 0."""
    max_receiving: int = 16
    """Uploads of full size that may be in memory before they are decoded; at least 2."""
    receive_seconds: float = 120.0
    """Longest time for one body; above 0."""
    max_waiting: int = 16
    """Requests that may wait for encoding, and as many for single points; at least 1."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        size = self.max_upload_bytes
        require(2**10 <= size <= 2**30, "max_upload_bytes must be in [1024, 2**30]", size)
        require(self.max_pixels >= 1024, "max_pixels must be at least 1024", self.max_pixels)
        require(self.max_sessions >= 1, "max_sessions must be at least 1", self.max_sessions)
        require(self.max_images >= 2, "max_images must be at least 2", self.max_images)
        require(self.memory_bytes >= 16 * MEBIBYTE, "memory_bytes must be at least 16 MiB", self.memory_bytes)
        require(self.idle_seconds > 0, "idle_seconds must be above 0", self.idle_seconds)
        require(self.max_receiving >= 2, "max_receiving must be at least 2", self.max_receiving)
        require(self.receive_seconds > 0, "receive_seconds must be above 0", self.receive_seconds)
        require(self.max_waiting >= 1, "max_waiting must be at least 1", self.max_waiting)
