"""`ucn serve` as users start it: it says where it listens, answers there, and stops at Ctrl-C."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from support.serve_cases import (
    MOTORCYCLE,
    ask,
    assert_refused,
    format_request,
    make_image,
    read_answer,
)
from ucn.cli import serve
from ucn.cli.app import app

runner = CliRunner()


def _read_json(stream: "subprocess.Popen[str]") -> dict[str, object]:
    """The first JSON object that a process prints."""
    assert stream.stdout is not None
    text = ""
    for line in stream.stdout:
        text += line
        if line.startswith("}"):
            break
    return dict(json.loads(text))


@pytest.mark.slow
def test_starts_answers_and_stops() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ucn", "serve", "--port", "0", "--json", "--device", "cpu"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        url = str(_read_json(process)["url"])
        assert url.startswith("http://127.0.0.1:")
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        # A client that leaves paths as they are, unlike browsers.
        for path, status in [
            ("/", 200),
            ("/page/../app.py", 404),
            ("/page/..%2f..%2fweights%2ftable.py", 404),
            ("/../../../../etc/passwd", 404),
            ("//etc/passwd", 404),
        ]:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == status, path
            assert b"root:" not in body and b"import" not in body
            assert answer.getheader("server") is None
        connection.request("GET", "/", headers={"Host": "rebound.example"})
        assert connection.getresponse().status == 421
        connection.close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0
        assert errors == "stopped\n"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_sigterm_ends_with_answers() -> None:
    """Uploads and questions in progress are answered, and the process ends as at Ctrl-C."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ucn", "serve", "--port", "0", "--json", "--device", "cpu"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        host, port = str(_read_json(process)["url"]).removeprefix("http://").split(":")
        address = (host, int(port))
        session = ask(address, format_request("/api/sessions")).body.decode().split('"')[3]
        upload = format_request(f"/api/sessions/{session}/images", make_image())
        question = json.dumps({**MOTORCYCLE, "points": [[9, 9]]}).encode()
        match = format_request("/api/match", question, kind="application/json")
        with contextlib.ExitStack() as held:
            connections = []
            for content in (upload[:-9], match, match, upload[:-9], match):
                connections.append(held.enter_context(socket.create_connection(address, 60)))
                connections[-1].sendall(content)
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            for connection in connections:
                answer = read_answer(connection)
                if answer.status != 200:
                    assert_refused(answer, 503)
        _, errors = process.communicate(timeout=60)
        assert errors == "stopped\n"
        assert process.returncode == 0


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = runner.invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1, port {port}: address already in use; choose another" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--weights", "nonsense"], "nonsense"),
        (["--max-sessions", "0"], "--max-sessions must be at least 1"),
        (["--device", "abacus"], "--device must be cpu, cuda"),
    ],
)
def test_wrong_options(arguments: list[str], words: str) -> None:
    result = runner.invoke(app, ["serve", "--port", "0", *arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert words in result.stderr


def test_unknown_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)  # a real question may wait for a name server
    result = runner.invoke(app, ["serve", "--host", "nowhere.invalid", "--port", "0"])
    assert result.exit_code == 1
    assert "cannot listen on nowhere.invalid: it is no address; choose another with --host" in result.stderr


@pytest.mark.parametrize("option", ["--max-upload", "--max-megapixels", "--memory", "--idle"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_limits_are_finite(option: str, value: str) -> None:
    result = runner.invoke(app, ["serve", "--port", "0", option, value])
    assert result.exit_code == 2
    assert f"{option} must be a finite number, got {value}" in result.stderr


@pytest.mark.parametrize("option", ["--max-upload", "--max-megapixels", "--memory"])
@pytest.mark.parametrize("value", ["1e308", "1e15"])
def test_absurd_limits_are_refused_in_words(option: str, value: str) -> None:
    result = runner.invoke(app, ["serve", "--port", "0", option, value])
    assert result.exit_code == 2
    assert f"{option} must be at most 1,0" in result.stderr


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--max-upload", "at least 0.000977 and at most 1,024"),
        ("--max-megapixels", "at least 0.00102"),
        ("--memory", "at least 16"),
        ("--idle", "at least 0.0167"),
    ],
)
@pytest.mark.parametrize("value", ["0", "-1", "0.0001"])
def test_small_limits_are_refused_by_the_name_of_their_option(option: str, expected: str, value: str) -> None:
    result = runner.invoke(app, ["serve", "--port", "0", option, value])
    assert result.exit_code == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    assert f"{option} must be {expected}, got {value}" in text


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 1
    assert "ucn serve needs uvicorn, which is missing: pip install 'ucn[serve]'" in result.stderr


def test_other_addresses_come_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_serve", lambda app, listener: None)
    result = runner.invoke(app, ["serve", "--host", "0.0.0.0", "--port", "0"])
    assert result.exit_code == 0, result.stderr
    assert "there is no password" in result.stderr
    result = runner.invoke(app, ["serve", "--port", "0"])
    assert result.stderr == ""
    assert "http://127.0.0.1:" in result.stdout
    assert "/docs" in result.stdout


def test_what_the_system_cannot_limit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_serve", lambda app, listener: None)
    monkeypatch.setattr(sys, "platform", "darwin")
    result = runner.invoke(app, ["serve", "--port", "0"])
    assert result.stderr == "this system does not limit memory of decoding images\n"


def test_own_weights_are_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    from ucn.config import MatchConfig, ModelConfig
    from ucn.nn import build_model
    from ucn.serve.limits import Limits
    from ucn.weights import save_weights

    path = tmp_path / "mine.safetensors"
    save_weights(path, build_model(ModelConfig(), torch.Generator().manual_seed(0)))
    service, default = serve._build_service(Limits(), str(path), MatchConfig(consensus=False), "cpu")
    assert not service.load(default).config.consensus
    assert default == "mine"
    assert service.list_weights()[-1].name == "mine"
    service.close()
