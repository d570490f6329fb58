"""The interface holds what its OpenAPI document promises, for generated requests as well as sensible ones."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("schemathesis", reason="schemathesis, of the extra 'dev', is missing")

import schemathesis
from fastapi import FastAPI
from starlette.testclient import TestClient

from support.serve_cases import make_image
from ucn.serve.app import create_app
from ucn.serve.limits import Limits
from ucn.serve.service import MatchService

OPERATIONS = [
    ("get", "/api/status"),
    ("post", "/api/sessions"),
    ("delete", "/api/sessions/{session}"),
    ("post", "/api/sessions/{session}/images"),
    ("get", "/api/images/{image}"),
    ("post", "/api/match"),
    ("post", "/api/match.csv"),
]
WITHOUT_INPUT = OPERATIONS[:2]
_FEW = settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def visited(service: MatchService) -> FastAPI:
    """An application with a limit of sessions above the number of generated requests."""
    return create_app(service, Limits(max_sessions=10_000), allowed_hosts=["testserver"])


@pytest.fixture(scope="module")
def described(visited: FastAPI) -> Any:
    """The same as its own document describes it."""
    return schemathesis.openapi.from_asgi("/openapi.json", visited)


def _check(described: Any, method: str, path: str, mode: str, change: Callable[[Any], None]) -> list[int]:
    """Makes up requests, changes them, and checks each answer against the document; gives their statuses."""
    statuses = []

    @_FEW
    @given(case=described[path][method].as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def check(case: Any) -> None:
        change(case)
        answer = case.call()
        case.validate_response(answer)
        statuses.append(answer.status_code)

    check()
    return statuses


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_that_fit_the_document(described: Any, method: str, path: str) -> None:
    statuses = _check(described, method, path, "positive", lambda case: None)
    assert set(statuses) <= {200, 201, 404}


@pytest.mark.parametrize(("method", "path"), [item for item in OPERATIONS if item not in WITHOUT_INPUT])
def test_requests_that_do_not_fit_the_document(described: Any, method: str, path: str) -> None:
    statuses = _check(described, method, path, "negative", lambda case: None)
    assert set(statuses) <= {400, 404, 405, 422}
    assert {400, 422} & set(statuses)


@pytest.mark.parametrize("path", ["/api/match", "/api/match.csv"])
def test_questions_about_images_that_exist(described: Any, visited: FastAPI, path: str) -> None:
    client = TestClient(visited)
    session = client.post("/api/sessions").json()["session"]
    kind = {"Content-Type": "image/png"}
    sent = [
        client.post(f"/api/sessions/{session}/images", content=make_image(seed=seed), headers=kind).json()
        for seed in range(2)
    ]

    def name_them(case: Any) -> None:
        points = [[x % 64 - 0.5, y % 48 - 0.5] for x, y in case.body.get("points") or []]
        case.body = {
            "image0": sent[0]["image"],
            "image1": sent[1]["image"],
            "points": points if case.body.get("points") is not None else None,
            "similarities_of": len(points) - 1 if points and case.body.get("similarities_of") else None,
        }

    statuses = _check(described, "post", path, "positive", name_them)
    assert set(statuses) == {200}


def test_document(app: FastAPI) -> None:
    document = app.openapi()
    assert set(document["paths"]) == {
        "/api/status",
        "/api/sessions",
        "/api/sessions/{session}",
        "/api/sessions/{session}/images",
        "/api/images/{image}",
        "/api/match",
        "/api/match.csv",
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["description"], path
            assert {"403", "413", "421"} <= set(operation["responses"])
