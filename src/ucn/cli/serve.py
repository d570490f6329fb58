"""``ucn serve``: a local web page for matching two images, and its REST interface."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli import _options as opt
from ucn.cli._report import print_json, print_lines

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ucn.config import MatchConfig
    from ucn.serve.limits import Limits
    from ucn.serve.service import MatchService

_MOST = 2.0**40  # bytes and pixels; above every machine, so that a typing error is said in the option's unit
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 accepts other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 = any free one.")] = 8000,
    weights: opt.Weights = "geometric",
    consensus: opt.Consensus = None,
    device: opt.Device = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name to accept, besides localhost and IP addresses; repeatable.",
            show_default=False,
        ),
    ] = None,
    max_upload: Annotated[float, typer.Option(metavar="MIB", help="Largest image file.")] = 20,
    max_megapixels: Annotated[float, typer.Option(metavar="MP", help="Largest image.")] = 24,
    max_sessions: Annotated[int, typer.Option(metavar="N", help="Largest number of sessions.")] = 32,
    memory: Annotated[float, typer.Option(metavar="MIB", help="Memory for images and features.")] = 1024,
    idle: Annotated[float, typer.Option(metavar="MINUTES", help="Lifetime of an idle session.")] = 30,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Serve a web page: click a point in one image, see its match in another.

    Images are kept in memory only, until the session ends. There is no password: whoever reaches the port can
    use the page.
    """
    from ucn.serve.limits import MEBIBYTE, Limits

    limits = Limits(
        max_upload_bytes=_count("--max-upload", max_upload, MEBIBYTE, 2**10, 2**30),
        max_pixels=_count("--max-megapixels", max_megapixels, 1e6, 1024),
        max_sessions=max_sessions,
        memory_bytes=_count("--memory", memory, MEBIBYTE, 16 * MEBIBYTE),
        idle_seconds=_count("--idle", idle, 60, 1),
    )
    service, default_weights = _build_service(limits, weights, opt.build_config(consensus=consensus), device)
    from ucn.serve.app import create_app
    from ucn.serve.decoder import list_missing_limits

    app = create_app(service, limits, default_weights=default_weights, allowed_hosts=allow_host or [])
    with contextlib.closing(service), _listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}"
        if json:
            print_json({"command": "serve", "url": url, "limits": limits.to_dict()})
        else:
            print_lines({"page": url, "interface": f"{url}/docs", "stop": "Ctrl-C"})
            if host not in _LOOPBACK:
                typer.echo(
                    "anyone who can reach this address can use the page: there is no password", err=True
                )
            if missing := list_missing_limits():
                what = " and ".join(missing)
                typer.echo(f"this system does not limit {what} of decoding images", err=True)
        _serve(app, listener)


def _count(option: str, value: float, unit: float, lowest: float, highest: float = _MOST) -> int:
    if not math.isfinite(value):
        raise typer.BadParameter(f"{option} must be a finite number, got {value:g}")
    if value * unit > _MOST:
        raise typer.BadParameter(f"{option} must be at most {_MOST / unit:,.0f}, got {value:g}")
    if not lowest <= value * unit <= highest:
        end = f" and at most {highest / unit:,.0f}" if highest < _MOST else ""
        raise typer.BadParameter(f"{option} must be at least {lowest / unit:.3g}{end}, got {value:g}")
    return round(value * unit)


def _build_service(
    limits: Limits, weights: str, config: MatchConfig | None, device: str | None
) -> tuple[MatchService, str]:
    """The service, and its name of the requested weights."""
    from ucn.errors import UcnError
    from ucn.weights import check_weights
    from ucn.weights.table import SHIPPED

    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise UcnError(f"ucn serve needs {error.name}, which is missing: pip install 'ucn[serve]'") from error
    check_weights(weights)
    from ucn.runtime.device import choose_device
    from ucn.serve.service import MatchService

    choose_device(device)
    own = None if weights in SHIPPED else Path(weights)
    service = MatchService(limits, own_weights=own, config=config, device=device)
    if own is not None:
        service.load(service.default_weights)  # so that an error comes now, not at the first request
    return service, weights if own is None else service.default_weights


def _listen(host: str, port: int) -> socket.socket:
    from ucn.errors import UcnError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # `create_server` does not distinguish this error
        listener = socket.create_server((host, port), family=family)
        # Connections inherit it; without it, the second packet of a response waits 40 ms for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except socket.gaierror as error:
        raise UcnError(f"cannot listen on {host}: it is no address; choose another with --host") from error
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UcnError(
            f"cannot listen on {host}, port {port}: {reason}; choose another with --port (0: a free one)"
        ) from error


def _serve(app: FastAPI, listener: socket.socket) -> None:
    from ucn.serve.connection import make_server

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # uvicorn raises the signal again when the last response is sent: SIGTERM then ends like Ctrl-C.
    before = signal.signal(signal.SIGTERM, stop)
    # Ctrl-C is the normal way to stop it.
    with contextlib.suppress(KeyboardInterrupt):
        make_server(app).run(sockets=[listener])
    signal.signal(signal.SIGTERM, before)
    typer.echo("stopped", err=True)
