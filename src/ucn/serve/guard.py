"""Middleware that rejects foreign hosts and cross-site requests, and limits bodies.

A foreign web page can make a browser send requests to 127.0.0.1 and, by DNS rebinding, even read the
responses. Such requests carry the foreign name as Host or Origin, so both are checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ucn.serve.intake import Intake, format_too_long
from ucn.serve.lanes import CLIENT, CLOSING, name_client
from ucn.serve.limits import RETRY_SECONDS, Limits

_MAX_BODY_BYTES = 256 * 1024
"""Largest body except for uploads; 500 points take about 20 kB."""

_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z._-]+))(:(?P<port>[0-9]{1,5}))?")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
"""What every response carries."""


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str], limits: Limits, intake: Intake) -> None:
        """Wraps an application.

        Args:
            app: the application.
            allowed_hosts: accepted host names, besides localhost and IP addresses.
            limits: of bodies.
            intake: the bodies that arrive.
        """
        self._app, self._intake = app, intake
        self._allowed = {"localhost", *(name.lower() for name in allowed_hosts)}
        self._max_upload_bytes = limits.max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or responds with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_started
            is_started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        CLIENT.set(name_client(scope.get("client")))
        error = self._find_error(scope)
        if error is not None:
            # The connection stays open, so that the client can finish its body and read the response.
            await explain(*error)(scope, receive, send_with_headers)
            return
        try:
            with self._intake.open(CLIENT.get(), receive, self._find_limit(scope)) as body:
                await self._app(scope, body.receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            if is_started:
                raise
            await explain(503, CLOSING)(scope, receive, send_with_headers)

    def _find_error(self, scope: Scope) -> tuple[int, str] | None:
        if self._intake.is_closing:
            return 503, CLOSING
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
        if is_api and headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin"):
            return 403, "requests from other web sites are refused"
        length, limit = headers.get("content-length"), self._find_limit(scope)
        if length is not None and (not length.isdecimal() or len(length) > 18 or int(length) > limit):
            return 413, format_too_long(limit)
        return None

    def _is_allowed(self, host: str) -> bool:
        """IP addresses are safe: only names can be rebound."""
        parts = _HOST.fullmatch(host)
        if parts is None or int(parts["port"] or 0) > 65535:
            return False
        name = (parts["name"] or parts["address"]).lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._allowed
        return True

    def _find_limit(self, scope: Scope) -> int:
        is_upload = scope["method"] == "POST" and str(scope["path"]).endswith("/images")
        return self._max_upload_bytes if is_upload else _MAX_BODY_BYTES


def explain(status: int, detail: str) -> JSONResponse:
    """The response to a request that fails: one sentence, and when to try again."""
    headers = {"Retry-After": str(RETRY_SECONDS[status])} if status in RETRY_SECONDS else None
    return JSONResponse({"detail": detail}, status, headers)


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
