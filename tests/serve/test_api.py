"""The REST interface: what is answered, what is refused and with which words."""

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from starlette.testclient import TestClient
from starlette.types import Message

from support.serve_cases import MOTORCYCLE, make_image, make_scope, run_async
from ucn.data.example import disparity_errors, example_pair
from ucn.serve.app import create_app
from ucn.serve.limits import Limits
from ucn.serve.samples import Samples
from ucn.serve.service import MatchService
from ucn.weights import list_weights

JPEG = {"Content-Type": "image/jpeg"}


def _open(client: TestClient) -> str:
    answer = client.post("/api/sessions")
    assert answer.status_code == 201
    assert answer.json()["idle_seconds"] == 1800
    return str(answer.json()["session"])


def _send(client: TestClient, session: str, content: bytes, kind: str = "image/png") -> dict[str, Any]:
    answer = client.post(f"/api/sessions/{session}/images", content=content, headers={"Content-Type": kind})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_status(client: TestClient) -> None:
    status = client.get("/api/status").json()
    assert [weights["name"] for weights in status["weights"]] == [info.name for info in list_weights()]
    assert status["default_weights"] == "geometric"
    assert status["samples"][0]["image0"] == {"image": MOTORCYCLE["image0"], "width": 741, "height": 500}
    assert status["max_upload_bytes"] == Limits.max_upload_bytes


def test_upload_match_forget(client: TestClient, service: MatchService) -> None:
    session = _open(client)
    first = _send(client, session, make_image(80, 64, 0))
    second = _send(client, session, make_image(72, 60, 1, "JPEG"), "application/octet-stream")
    assert (first["width"], first["height"]) == (80, 64)
    shown = client.get(f"/api/images/{first['image']}")
    assert shown.headers["content-type"] == "image/jpeg"
    assert shown.content[:2] == b"\xff\xd8"
    question = {"image0": first["image"], "image1": second["image"], "points": [[10, 20], [79.5, 63.5]]}
    answer = client.post("/api/match", json=question)
    assert answer.status_code == 200
    rows = answer.json()["matches"]
    assert [(row["x0"], row["y0"]) for row in rows] == [(10.0, 20.0), (79.5, 63.5)]
    for row in rows:
        assert -0.5 <= row["x1"] <= 71.5
        assert -0.5 <= row["y1"] <= 59.5
        assert 0 <= row["score"] <= 1
    before = service.memory_bytes
    assert client.delete(f"/api/sessions/{session}").status_code == 204
    assert service.memory_bytes < before
    gone = client.post("/api/match", json=question)
    assert gone.status_code == 404
    assert "expired; upload it again" in gone.json()["detail"]
    assert client.get(f"/api/images/{first['image']}").status_code == 404
    assert client.delete(f"/api/sessions/{session}").status_code == 404


@pytest.mark.slow
def test_motorcycle_points_are_found_with_similarities(client: TestClient) -> None:
    points = [[370.0, 250.0], [457.0, 273.0], [240.0, 330.0], [560.0, 100.0], [620.0, 390.0]]
    answer = client.post("/api/match", json={**MOTORCYCLE, "points": points, "similarities_of": 1}).json()
    found = np.asarray([[row["x1"], row["y1"]] for row in answer["matches"]], np.float32)
    errors = disparity_errors(np.asarray(points, np.float32), found, example_pair().disparity)
    assert np.isfinite(errors).all() and np.median(errors) <= 1  # the share depends on the weights
    assert all(row[name] == round(row[name], 3) for row in answer["matches"] for name in ("x1", "y1"))
    assert all(row["score"] == round(row["score"], 4) for row in answer["matches"])
    assert answer["pair_score"] > 0.5
    packed = answer["similarities"]
    values = np.frombuffer(base64.b64decode(packed["values"]), np.uint8)
    values = values.reshape(packed["rows"], packed["columns"])
    row, column = np.unravel_index(values.argmax(), values.shape)
    assert packed["first_x"] + packed["step_x"] * column == pytest.approx(found[1, 0], abs=6)
    assert packed["first_y"] + packed["step_y"] * row == pytest.approx(found[1, 1], abs=6)
    assert -1 <= packed["low"] < packed["high"] <= 1


def test_equal_points_get_equal_answers(service: MatchService) -> None:
    """Sizes at which the position in a batch changes the last digits of a match."""
    first, second = (Samples().find(MOTORCYCLE[name]) for name in ("image0", "image1"))
    assert first is not None and second is not None
    points = np.random.default_rng(0).uniform([0, 0], [740, 499], (251, 2)).astype(np.float32)
    found = service.match_points(first, second, "geometric", np.concatenate([points, points]).tolist())
    np.testing.assert_array_equal(found.points0, np.concatenate([points, points]))
    for answers in (found.points1, found.scores, found.is_mutual):
        np.testing.assert_array_equal(answers[:251], answers[251:])


def test_a_click_is_answered_quickly(client: TestClient) -> None:
    """In processor time of all threads together, which a busy machine does not lengthen: at most the wait."""
    client.post("/api/match", json={**MOTORCYCLE, "points": []})
    seconds = []
    for column in range(8):
        started = time.process_time()
        question = {**MOTORCYCLE, "points": [[200.0 + 20 * column, 250.0]], "similarities_of": 0}
        assert client.post("/api/match", json=question).status_code == 200
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.1


def test_without_points_mutual_matches_come_best_first_also_as_table(client: TestClient) -> None:
    session = _open(client)
    names = [_send(client, session, make_image(160, 120, 3))["image"] for _ in range(2)]  # the same image
    question = {"image0": names[0], "image1": names[1]}
    rows = client.post("/api/match", json=question).json()["matches"]
    assert len(rows) > 20
    assert all(row["is_mutual"] for row in rows)
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert np.median([abs(row["x0"] - row["x1"]) for row in rows]) < 0.5
    table = client.post("/api/match.csv", json=question)
    assert table.headers["content-type"].startswith("text/csv")
    lines = table.text.splitlines()
    assert lines[0] == "x0,y0,x1,y1,score,is_mutual"
    assert len(lines) == len(rows) + 1
    client.delete(f"/api/sessions/{session}")


def test_other_weights(client: TestClient) -> None:
    session = _open(client)
    images = [_send(client, session, make_image(96, 96, seed))["image"] for seed in range(2)]
    answers = []
    for info in list_weights():
        question = {"image0": images[0], "image1": images[1], "weights": info.name, "points": [[30, 40]]}
        answers.append(client.post("/api/match", json=question).json())
    assert [answer["weights"] for answer in answers] == [info.name for info in list_weights()]
    assert len({str(answer["matches"]) for answer in answers}) == len(answers)
    client.delete(f"/api/sessions/{session}")


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"image0": "sample-nothing"}, 404, "no such image"),
        ({"image1": "../../etc/passwd"}, 404, "no such image"),
        ({"weights": "nonsense"}, 404, "no such weights; there are geometric"),
        ({"weights": "/etc/passwd"}, 404, "no such weights"),
        ({"points": [[741, 3]]}, 422, "lies outside the image"),
        ({"points": [[1, -1]]}, 422, "greater than or equal to -0.5"),
        ({"points": [[1, 2, 3]]}, 422, "body.points"),
        ({"points": "all"}, 422, "body.points"),
        ({"points": [["1", 2]]}, 422, "body.points.0.0: Input should be a valid number"),
        ({"points": [[1, True]]}, 422, "body.points.0.1: Input should be a valid number"),
        ({"points": [[1, 2]] * 501}, 422, "at most 500 items"),
        ({"points": [[1, 2]], "similarities_of": 1}, 422, "below the number of points, 1, got 1"),
        ({"similarities_of": 0}, 422, "needs points"),
        ({"image0": "x" * 65}, 422, "at most 64 characters"),
        ({"colour": "red"}, 422, "body.colour: Extra inputs are not permitted; see /docs"),
    ],
)
def test_wrong_questions(client: TestClient, changes: dict[str, Any], status: int, words: str) -> None:
    for path in ("/api/match", "/api/match.csv"):
        answer = client.post(
            path,
            json={**MOTORCYCLE, "points": [], **changes}
            if "points" in changes
            else {**MOTORCYCLE, **changes},
        )
        assert answer.status_code == status
        assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b'{"image0": NaN}', b"\xff\xfe", b'{"points": [[NaN, 1e999]]}']
)
def test_bodies_that_are_no_question(client: TestClient, body: bytes) -> None:
    answer = client.post("/api/match", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert isinstance(answer.json()["detail"], str)


@pytest.mark.parametrize(
    ("content", "kind", "status", "words"),
    [
        (b"hello", "text/plain", 415, "must be an image file"),
        (b"hello", "multipart/form-data; boundary=x", 415, "must be an image file"),
        (b"hello", "image/png", 422, "not an image of a known format"),
        (b"", "image/png", 422, "damaged or not an image"),
        (make_image(40, 20), "image/png", 422, "at least 32 pixels a side, got 40 × 20"),
        (make_image(2000, 600), "image/png", 422, "the limit is 1,000,000 pixels"),
    ],
)
def test_wrong_uploads(service: MatchService, content: bytes, kind: str, status: int, words: str) -> None:
    small = MatchService(Limits(max_pixels=1_000_000))
    client = TestClient(create_app(small, Limits(max_pixels=1_000_000)), base_url="http://localhost")
    session = _open(client)
    answer = client.post(f"/api/sessions/{session}/images", content=content, headers={"Content-Type": kind})
    small.close()
    assert answer.status_code == status
    assert words in answer.json()["detail"]


def test_upload_without_a_session(client: TestClient) -> None:
    answer = client.post("/api/sessions/nonsense/images", content=make_image(), headers=JPEG)
    assert answer.status_code == 404
    assert "open a new one" in answer.json()["detail"]


def test_too_many_sessions_get_retry_after(service: MatchService) -> None:
    client = TestClient(create_app(service, Limits(max_sessions=1)), base_url="http://localhost")
    session = _open(client)
    _send(client, session, make_image())
    answer = client.post("/api/sessions")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "10"
    assert "try again later" in answer.json()["detail"]
    client.delete(f"/api/sessions/{session}")


def test_aborted_uploads_leave_no_trace(service: MatchService, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(service)
    session = _open(TestClient(app, base_url="http://localhost"))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    run_async(lambda: app(make_scope(f"/api/sessions/{session}/images"), receive, send))
    assert app.state.server.intake.held_bytes == 0
    assert not caplog.records


def test_a_fault_carries_all_headers(service: MatchService, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(service)
    client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
    monkeypatch.setattr(app.state.server.uploads, "open_session", lambda client: 1 / 0)
    answer = client.post("/api/sessions")
    assert answer.status_code == 500
    assert answer.json()["detail"].startswith("a fault of ucn")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_stopping_server_refuses_in_words(service: MatchService) -> None:
    app = create_app(service)
    client = TestClient(app, base_url="http://localhost")
    app.state.server.intake.drain()
    answer = client.get("/")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["detail"] == "the server is stopping; try again in a few seconds"
    assert answer.headers["x-frame-options"] == "DENY"


def test_a_cancelled_request_is_answered(service: MatchService) -> None:
    """As at the end of the time that uvicorn grants when it stops."""
    app = create_app(service)
    session = _open(TestClient(app, base_url="http://localhost"))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.sleep(60)
        raise AssertionError("it was not cancelled")

    async def stop() -> None:
        task = asyncio.create_task(app(make_scope(f"/api/sessions/{session}/images"), receive, send))
        await asyncio.sleep(0.05)
        task.cancel()
        await task

    run_async(stop)
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"5") in sent[0]["headers"]


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/page//etc/passwd",
        "/page/app.py",
        "/api/images/..%2f..%2fetc%2fpasswd",
        "/static/main.js",
        "/src/ucn/serve/app.py",
        "/.git/config",
        "/docs/../app.py",
    ],
)
def test_no_path_of_the_server_can_be_read(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (404, 422)
    assert "import" not in answer.text
    assert "root:" not in answer.text


def test_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    import ucn.serve

    folder = Path(ucn.serve.__file__).parent / "page"
    names = sorted(path.name for path in folder.iterdir())
    assert {"index.html", "docs.html", "main.js", "style.css"} <= set(names)
    for name in names:
        text = (folder / name).read_text(encoding="utf-8")
        outside = text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in outside and "https:" not in outside and "//cdn" not in outside, name
        assert "<style" not in text and " style=" not in text and " onclick=" not in text, name
        assert client.get(f"/page/{name}").status_code == 200
    assert "cdn" not in client.get("/docs").text


def test_idle_sessions_expire_without_a_request() -> None:
    service = MatchService(Limits())
    app = create_app(service, Limits(idle_seconds=1.0))
    with TestClient(app, base_url="http://localhost") as client:
        session = _open_quickly(client)
        client.post(f"/api/sessions/{session}/images", content=make_image(), headers=JPEG)
        assert app.state.server.uploads.memory_bytes > 0
        deadline = time.monotonic() + 60
        while app.state.server.uploads.memory_bytes and time.monotonic() < deadline:
            time.sleep(0.05)
        assert app.state.server.uploads.memory_bytes == 0
    service.close()


def _open_quickly(client: TestClient) -> str:
    return str(client.post("/api/sessions").json()["session"])
