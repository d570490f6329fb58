"""A service with the shipped weights and its application, shared by the tests of this folder."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from ucn.serve.service import MatchService


@pytest.fixture(scope="session")
def service() -> Iterator[MatchService]:
    """One service for all tests, so that weights are loaded and samples encoded once."""
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
    from ucn.serve.limits import Limits
    from ucn.serve.service import MatchService

    service = MatchService(Limits(), device="cpu")
    yield service
    service.close()


@pytest.fixture(scope="session")
def app(service: MatchService) -> FastAPI:
    """The application with default limits; never started, so that the service outlives single clients."""
    from ucn.serve.app import create_app

    return create_app(service)


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    """Asks the application without a network."""
    from starlette.testclient import TestClient

    return TestClient(app, base_url="http://127.0.0.1:8000")


@pytest.fixture(scope="session")
def url(service: MatchService) -> Iterator[str]:
    """A server in a thread of this process."""
    from ucn.serve.app import create_app
    from ucn.serve.connection import make_server

    server = make_server(create_app(service))
    server._drain = lambda: None  # other tests go on with the service
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)
