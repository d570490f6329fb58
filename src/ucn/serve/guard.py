"""What is refused before a route sees it: other hosts, other sites' requests, bodies that are too long.

A stranger's web page can make its visitor's browser send requests to 127.0.0.1, and by changing what its own
name resolves to (DNS rebinding) it can even read the answers. Such requests carry the stranger's name as Host
or Origin, which is why both are checked.
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
"""Of everything but an upload: 500 points take about 20 kB."""

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
    """Middleware round the whole application."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str], max_upload_bytes: int) -> None:
        """Wraps an application.

        Args:
            app: what is guarded.
            allowed_hosts: names under which it may be asked for, besides localhost and plain addresses.
            max_upload_bytes: of an image's body.
        """
        self._app = app
        self._allowed = {"localhost", *(name.lower() for name in allowed_hosts)}
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it with what is wrong."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refuse(scope)
        if refusal is not None:
            status, words = refusal
            answer = JSONResponse({"detail": words}, status, headers={"Connection": "close"})
            await answer(scope, receive, send_with_headers)
            return
        await self._app(scope, _limit_body(receive, self._find_limit(scope)), send_with_headers)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_allowed(host):
            return (
                421,
                f"this server does not answer for that host name; start it with --allow-host {_show(host)}",
            )
        origin = headers.get("origin")
        if origin is not None and _find_place(origin) != host.lower():
            return 403, "requests from other web sites are refused"
        is_api = str(scope["path"]).startswith("/api/")
        if is_api and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return 403, "requests from other web sites are refused"
        length, limit = headers.get("content-length"), self._find_limit(scope)
        if length is not None and (not length.isdecimal() or len(length) > 18 or int(length) > limit):
            return 413, _say_too_long(limit)
        return None

    def _is_allowed(self, host: str) -> bool:
        """A name cannot be rebound where the browser was given an address."""
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
    """Stops reading where a body without a stated length grows too long."""
    received = 0

    async def receive_within_limit() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, _say_too_long(limit))
        return message

    return receive_within_limit


def _say_too_long(limit: int) -> str:
    size = f"{limit / 2**20:.3g} MiB" if limit >= 2**20 else f"{limit / 2**10:.3g} KiB"
    return f"the request is too long: at most {size} are taken; reduce the image or send fewer points"


def _find_place(origin: str) -> str | None:
    """Host and port of an origin; None where it is no address, as of a host in a bracket that never ends."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _show(host: str) -> str:
    """A host name as a message may repeat it."""
    name = host.rsplit(":", 1)[0]
    kept = "".join(letter for letter in name if letter.isascii() and (letter.isalnum() or letter in "-."))
    return kept[:100] or "NAME"
