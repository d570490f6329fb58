"""Other hosts and other web sites are refused, and every answer carries the policy."""

import re

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from fastapi import FastAPI
from starlette.testclient import TestClient

from ucn.serve.app import create_app
from ucn.serve.limits import Limits
from ucn.serve.service import MatchService


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "localhost:8000", "[::1]:8000", "10.0.0.7"])
def test_addresses_and_localhost_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", "", "[::1", "a b"],
)
@pytest.mark.parametrize("path", ["/", "/api/status", "/openapi.json", "/nowhere"])
def test_other_names_are_refused(client: TestClient, host: str, path: str) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert re.search(r"--allow-host \S", answer.json()["detail"])
    assert "<" not in answer.text


@pytest.mark.parametrize(
    "host",
    [
        *(
            "user@localhost",
            "localhost:port",
            "localhost:-1",
            "localhost:99999",
            "localhost/path",
            "localhost?x",
        ),
        *(
            "localhost#x",
            "[::1]x",
            "[::1]:80:80",
            "[127.0.0.1%2f]",
            "localhost:",
            "localhost:١",
            "127.0.0.1\\x",
        ),
    ],
)
def test_odd_hosts_are_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={b"Host": host.encode()}).status_code == 421


@pytest.mark.parametrize("site", ["Cross-Site", "CROSS-SITE", "same-site", "Same-Site", "other", ""])
def test_any_other_fetch_site_is_refused(client: TestClient, site: str) -> None:
    assert client.get("/api/status", headers={"Sec-Fetch-Site": site}).status_code == 403


@pytest.mark.parametrize("site", ["none", "same-origin", "Same-Origin"])
def test_own_fetch_site_is_answered(client: TestClient, site: str) -> None:
    assert client.get("/api/images/sample-coffee", headers={"Sec-Fetch-Site": site}).status_code == 200


def test_allowed_names(service: MatchService) -> None:
    client = TestClient(create_app(service, allowed_hosts=["Match.example"]))
    assert client.get("/", headers={"Host": "match.example:80"}).status_code == 200
    assert client.get("/", headers={"Host": "testserver"}).status_code == 421


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9000", "https://127.0.0.1", "", "http://[", "//[::1"],
)
def test_other_origins_are_refused(client: TestClient, origin: str) -> None:
    answer = client.post("/api/sessions", headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.json()["detail"] == "requests from other web sites are refused"
    assert "access-control-allow-origin" not in answer.headers


def test_own_origin_is_answered(client: TestClient) -> None:
    answer = client.post("/api/sessions", headers={"Origin": "http://127.0.0.1:8000"})
    assert answer.status_code == 201
    client.delete(f"/api/sessions/{answer.json()['session']}")


def test_embedding_by_other_sites_is_refused_but_a_link_is_followed(client: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site"}
    assert client.get("/api/images/sample-coffee", headers=headers).status_code == 403
    assert client.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/docs", 200), ("/page/main.js", 200), ("/api/status", 200), ("/no", 404)],
)
def test_every_answer_carries_the_policy(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) == {"'self'", "'none'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] in ("no-store", "no-cache")


def test_long_bodies_are_refused_with_and_without_a_stated_length(app: FastAPI, client: TestClient) -> None:
    def send() -> bytes:
        return b'{"image0": "' + b"x" * 300_000 + b'"}'

    for body in (send(), iter([send()[:200_000], send()[200_000:]])):
        answer = client.post("/api/match", content=body)
        assert answer.status_code == 413
        assert "the limit is 256 KiB" in answer.json()["detail"]
    answer = client.post("/api/match", content=b"{}", headers={"Content-Length": "9" * 5000})
    assert answer.status_code == 413


def test_uploads_may_be_longer_than_questions(service: MatchService) -> None:
    client = TestClient(
        create_app(service, Limits(max_upload_bytes=2**20)),
        base_url="http://localhost",
        raise_server_exceptions=True,
    )
    session = client.post("/api/sessions").json()["session"]
    kind = {"Content-Type": "image/png"}
    path = f"/api/sessions/{session}/images"
    assert client.post(path, content=bytes(500_000), headers=kind).status_code == 422  # read, and no image
    answer = client.post(path, content=iter([bytes(600_000)] * 2), headers=kind)
    assert answer.status_code == 413
    assert "the limit is 1 MiB" in answer.json()["detail"]
