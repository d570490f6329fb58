"""``ucn serve``: a local web page on which a click finds its match, and its REST interface."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli._options import Debug, Device, Json, Weights
from ucn.cli._report import print_json, print_lines

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ucn.serve.limits import Limits
    from ucn.serve.service import Engine

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 takes a free one.")] = 8000,
    weights: Weights = "geometric",
    device: Device = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name to answer for, besides localhost and plain addresses; may be repeated.",
            show_default=False,
        ),
    ] = None,
    max_upload: Annotated[float, typer.Option(metavar="MIB", help="Largest image file.")] = 20,
    max_megapixels: Annotated[float, typer.Option(metavar="MP", help="Largest image.")] = 24,
    max_sessions: Annotated[int, typer.Option(metavar="N", help="Visitors at a time.")] = 32,
    memory: Annotated[float, typer.Option(metavar="MIB", help="For all images and their features.")] = 1024,
    idle: Annotated[float, typer.Option(metavar="MINUTES", help="Forget a visitor's images after.")] = 30,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Open a web page: click a point in one image, see its match in another.

    Images are kept in memory only and forgotten. There is no password: who reaches the port can use the page.
    """
    from ucn.serve.limits import MEBIBYTE, Limits

    limits = Limits(
        max_upload_bytes=_count("--max-upload", max_upload, MEBIBYTE),
        max_pixels=_count("--max-megapixels", max_megapixels, 1e6),
        max_sessions=max_sessions,
        memory_bytes=_count("--memory", memory, MEBIBYTE),
        idle_seconds=60.0 * idle,
    )
    engine, default_weights = _build_engine(limits, weights, device)
    from ucn.serve.app import create_app

    app = create_app(engine, limits, default_weights=default_weights, allowed_hosts=allow_host or [])
    with contextlib.closing(engine), _listen(host, port) as listener:
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
        _serve(app, listener)


def _count(option: str, value: float, unit: float) -> int:
    """So many units as a whole number of bytes or pixels."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{option} must be a finite number, got {value:g}")
    return round(value * unit)


def _build_engine(limits: Limits, weights: str, device: str | None) -> tuple[Engine, str]:
    """What encodes and matches, and the name under which it knows the weights that were asked for."""
    from ucn.errors import UcnError
    from ucn.runtime.device import choose_device
    from ucn.weights import list_weights, load_weights

    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise UcnError(f"ucn serve needs {error.name}, which is missing: pip install 'ucn[serve]'") from error
    from ucn.serve.service import Engine

    choose_device(device)
    is_shipped = weights in {info.name for info in list_weights()}
    own = None if is_shipped else Path(weights)
    if own is not None:
        load_weights(own)  # what is wrong with a file is said now, not to a visitor
    engine = Engine(limits, own_weights=own, device=device)
    return engine, weights if own is None else engine.default_weights


def _listen(host: str, port: int) -> socket.socket:
    from ucn.errors import UcnError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # what `create_server` raises does not tell this from the rest
        listener = socket.create_server((host, port), family=family)
        # Connections inherit it; without it, an answer's second part waits 40 ms for word of the first.
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
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=100,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    # Ctrl-C is the ordinary way to stop it; where a shell runs it in the background, uvicorn alone hears it.
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    typer.echo("stopped", err=True)
