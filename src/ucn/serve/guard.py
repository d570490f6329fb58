"""Middleware that rejects foreign hosts, cross-site requests and bodies that are too long.

A foreign web page can make a browser send requests to 127.0.0.1 and, by DNS rebinding, even read the
responses. Such requests carry the foreign name as Host or Origin, so both are checked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MAX_BODY_BYTES = 256 * 1024
"""Largest body except for uploads; 500 points take about 20 kB."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str], max_upload_bytes: int) -> None:
        """Wraps an application.

        Args:
            app: the application.
            allowed_hosts: accepted host names, besides localhost and IP addresses.
            max_upload_bytes: largest body of an upload.
        """
        self._app = app
        self._allowed = {"localhost", *(name.lower() for name in allowed_hosts)}
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or responds with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        error = self._find_error(scope)
        if error is not None:
            status, detail = error
            response = JSONResponse({"detail": detail}, status, headers={"Connection": "close"})
            await response(scope, receive, send_with_headers)
            return
        await self._app(scope, _limit_body(receive, self._find_limit(scope)), send_with_headers)

    def _find_error(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_allowed(host):
            return (
                421,
                f"this server does not accept that host name; start it with --allow-host {_sanitise(host)}",
            )
        origin = headers.get("origin")
        if origin is not None and _parse_origin(origin) != host.lower():
            return 403, "requests from other web sites are refused"
        is_api = str(scope["path"]).startswith("/api/")
        if is_api and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return 403, "requests from other web sites are refused"
        length, limit = headers.get("content-length"), self._find_limit(scope)
        if length is not None and (not length.isdecimal() or len(length) > 18 or int(length) > limit):
            return 413, _format_too_long(limit)
        return None

    def _is_allowed(self, host: str) -> bool:
        """IP addresses are safe: only names can be rebound."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._allowed
        return True

    def _find_limit(self, scope: Scope) -> int:
        is_upload = scope["method"] == "POST" and str(scope["path"]).endswith("/images")
        return self._max_upload_bytes if is_upload else _MAX_BODY_BYTES


def _limit_body(receive: Receive, limit: int) -> Receive:
    """Stops reading a body without a content length once it is too long."""
    received = 0

    async def receive_within_limit() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, _format_too_long(limit))
        return message

    return receive_within_limit


def _format_too_long(limit: int) -> str:
    size = f"{limit / 2**20:.3g} MiB" if limit >= 2**20 else f"{limit / 2**10:.3g} KiB"
    return f"the request is too long: the limit is {size}; reduce the image or send fewer points"


def _parse_origin(origin: str) -> str | None:
    """Host and port of an origin; None where it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _sanitise(host: str) -> str:
    """A host name that is safe to repeat in a message."""
    name = host.rsplit(":", 1)[0]
    kept = "".join(letter for letter in name if letter.isascii() and (letter.isalnum() or letter in "-."))
    return kept[:100] or "NAME"
