"""Attacks on the web page, each for some seconds, and what an honest visitor notices. On this machine only.

python benchmarks/page_soak.py [--seconds 12] [--only drip,sessions] [--json]

Each case starts a server of its own on 127.0.0.1 and attacks it from 127.0.0.2, as a stranger would, and then
from 127.0.0.1, the visitor's own address. Meanwhile the visitor opens a session and uploads a photograph
every second; an upload counts as answered where that succeeds within 5 s. Counts and times are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import PIL.Image
from command_line import limit_to_cpu, make_parser, print_result

_HONEST, _STRANGER = "127.0.0.1", "127.0.0.2"
_BAR_SECONDS = 5.0
Attack = Callable[[str, str, float], Coroutine[Any, Any, None]]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=12.0, help="length of each attack, at most 60")
    parser.add_argument("--only", help="cases by name, with commas")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    seconds = min(arguments.seconds, 60.0)
    legal = ["uploads", *ATTACKS, "sigterm"]
    names = arguments.only.split(",") if arguments.only else legal
    if unknown := [name for name in names if name not in legal]:
        parser.error(f"--only: there is no case {unknown[0]!r}: expected {', '.join(legal)}")
    results: dict[str, Any] = {}
    for name in names:
        if name in ATTACKS:
            for source, where in ((_STRANGER, "stranger"), (_HONEST, "own address")):
                attack = partial(_attack, attack=ATTACKS[name], source=source, seconds=seconds)
                results[f"{name}, {where}"] = _run_case(arguments.threads, attack)
        else:
            case = _upload_all if name == "uploads" else _stop_under_load
            results[name] = _run_case(arguments.threads, case)
    print_result(results, arguments.threads, arguments.json)


def _run_case(
    threads: int, case: Callable[[str, subprocess.Popen[str]], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """The counts of a case with a fresh server, and the lines of tracebacks that it logged."""
    command = [sys.executable, "-m", "ucn", "serve", "--port", "0", "--json", "--device", "cpu"]
    with (
        tempfile.TemporaryFile("w+") as log,  # a pipe that nobody reads would stop the server
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=limit_to_cpu(threads)
        ) as process,
    ):
        try:
            found = asyncio.run(asyncio.wait_for(case(_read_address(process), process), 300))
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
        log.seek(0)
        errors = log.read()
    found["tracebacks"] = errors.count("Traceback (most recent call last)")
    print(found, file=sys.stderr, flush=True)  # a case takes half a minute
    return found


def _read_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("}"):
            break
    return str(json.loads(text)["url"]).removeprefix("http://")


async def _upload_all(address: str, _: subprocess.Popen[str]) -> dict[str, Any]:
    """200 uploads at once, by their answers."""
    session = await _open_session(address, _HONEST)
    path, content = f"/api/sessions/{session}/images", _photograph()
    await _ask(address, path, content)
    started = time.perf_counter()
    found = await asyncio.gather(*(_count(address, path, content) for _ in range(200)))
    return {**dict(Counter(found)), "seconds": round(time.perf_counter() - started, 1)}


async def _attack(
    address: str, _: subprocess.Popen[str], attack: Attack, source: str, seconds: float
) -> dict[str, Any]:
    """Uploads of a visitor beside an attack."""
    content = _photograph()
    await _visit(address, content)  # loads what is loaded at first use
    attacking = asyncio.create_task(attack(address, source, seconds))
    await asyncio.sleep(1.5)
    times: list[float] = []
    failures: Counter[str] = Counter()
    ends = time.perf_counter() + seconds - 1.5
    while time.perf_counter() < ends:
        started = time.perf_counter()
        failure = await _visit(address, content)
        elapsed = time.perf_counter() - started
        if failure is None:
            times.append(elapsed)
        else:
            failures[failure] += 1
        await asyncio.sleep(max(0.0, 1.0 - elapsed))
    attacking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await attacking
    answered = sum(elapsed <= _BAR_SECONDS for elapsed in times)
    count = len(times) + failures.total()
    slowest = round(max(times), 2) if times else None
    return {"answered": f"{answered} of {count}", "slowest s": slowest, "failures": dict(failures)}


async def _stop_under_load(address: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """SIGTERM during 40 uploads, 4 of them half sent, and 20 questions, by their answers."""
    session = await _open_session(address, _HONEST)
    path, content = f"/api/sessions/{session}/images", _photograph()
    await _ask(address, path, content)
    question = json.dumps({"image0": "sample-coffee", "image1": "sample-coffee-turned", "points": [[9, 9]]})
    kind = "application/json"
    half = len(content) // 2
    work = [asyncio.create_task(_count(address, path, content[:half], len(content))) for _ in range(4)]
    await asyncio.sleep(0.3)
    work += [asyncio.create_task(_count(address, path, content)) for _ in range(36)]
    work += [
        asyncio.create_task(_count(address, "/api/match", question.encode(), kind=kind)) for _ in range(20)
    ]
    await asyncio.sleep(0.3)
    started = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    found = Counter(await asyncio.gather(*work))
    status = await asyncio.to_thread(process.wait, 60)
    return {**found, "exit status": status, "stopped after s": round(time.perf_counter() - started, 1)}


async def _visit(address: str, content: bytes) -> str | None:
    """One honest upload; what failed, or None."""
    try:
        async with asyncio.timeout(15):
            status, _, body = await _ask(address, "/api/sessions", b"")
            if status != 201:
                return f"{status} for a session"
            status, _, _ = await _ask(address, f"/api/sessions/{json.loads(body)['session']}/images", content)
            return None if status == 201 else f"{status} for the upload"
    except TimeoutError:
        return "no answer within 15 s"
    except (OSError, EOFError, ValueError):
        return "reset"


async def _count(
    address: str, path: str, content: bytes, size: int | None = None, kind: str = "image/jpeg"
) -> str:
    """How a request ended, in words; `size` announces a longer body than it sends."""
    try:
        async with asyncio.timeout(120):
            status, headers, _ = await _ask(address, path, content, kind=kind, size=size)
    except TimeoutError:
        return "no answer"
    except (OSError, EOFError, ValueError):
        return "reset"
    is_ours = "content-security-policy" in headers and (status < 429 or "retry-after" in headers)
    return str(status) if is_ours else f"{status}, bare"


async def _ask(
    address: str,
    path: str,
    content: bytes,
    source: str = _HONEST,
    kind: str = "image/jpeg",
    size: int | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Sends a POST and reads its response; what the response says counts also where sending fails."""
    reader, writer = await _connect(address, source)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {kind}\r\n"
        length = len(content) if size is None else size
        head += f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        with contextlib.suppress(ConnectionError):
            writer.write(head.encode() + content)
            await writer.drain()
        head_lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head_lines[1:] if line)
        length = int(headers.get("content-length", -1))
        body = await (reader.readexactly(length) if length >= 0 else reader.read())
        return int(head_lines[0].split()[1]), headers, body
    finally:
        writer.close()


async def _connect(address: str, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.split(":")
    assert host == "127.0.0.1"
    return await asyncio.open_connection(host, int(port), local_addr=(source, 0))


async def _open_session(address: str, source: str) -> str:
    status, _, body = await _ask(address, "/api/sessions", b"", source)
    if status != 201:
        raise ValueError(f"{status} for a session")
    return str(json.loads(body)["session"])


async def _repeat(count: int, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Runs so many copies of an act again and again, until the time is over."""

    async def work() -> None:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            with contextlib.suppress(OSError, EOFError, ValueError):
                await act()
            await asyncio.sleep(0.02)

    await asyncio.gather(*(work() for _ in range(count)))


async def _drip(address: str, source: str, seconds: float) -> None:
    """16 uploads of a byte a second."""
    session = await _open_session(address, source)

    async def act() -> None:
        await _send_slowly(
            address,
            source,
            f"POST /api/sessions/{session}/images HTTP/1.1\r\n"
            f"Host: {address}\r\nContent-Type: image/jpeg\r\nContent-Length: 1000000\r\n\r\n",
        )

    await _repeat(16, seconds, act)


async def _leave_headers_unfinished(address: str, source: str, seconds: float) -> None:
    """300 connections whose headers grow by a byte a second."""
    await _repeat(
        300, seconds, lambda: _send_slowly(address, source, f"GET / HTTP/1.1\r\nHost: {address}\r\nX: ")
    )


async def _send_slowly(address: str, source: str, start: str) -> None:
    reader, writer = await _connect(address, source)
    try:
        writer.write(start.encode())
        while not reader.at_eof():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    if await reader.read(4096):
                        return
            writer.write(b"a")
            await writer.drain()
    finally:
        writer.close()


async def _open_empty_sessions(address: str, source: str, seconds: float) -> None:
    """40 empty sessions at once, then about a hundred a second."""

    async def act() -> None:
        await _open_session(address, source)

    await asyncio.gather(*(act() for _ in range(40)), return_exceptions=True)
    await _repeat(2, seconds, act)


async def _send_bombs(address: str, source: str, seconds: float) -> None:
    """4 uploads at a time of a JPEG of 14,000 scans."""
    session = await _open_session(address, source)
    bomb = make_scan_bomb(14_000)

    async def act() -> None:
        await _ask(address, f"/api/sessions/{session}/images", bomb, source)

    await _repeat(4, seconds, act)


async def _abort_uploads(address: str, source: str, seconds: float) -> None:
    """8 uploads at a time that are reset in the middle."""
    session, content = await _open_session(address, source), _photograph()

    async def act() -> None:
        _, writer = await _connect(address, source)
        head = f"POST /api/sessions/{session}/images HTTP/1.1\r\nHost: {address}\r\n"
        head += f"Content-Type: image/jpeg\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content[: random.Random(0).randrange(len(content))])
        await writer.drain()
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    await _repeat(8, seconds, act)


ATTACKS: dict[str, Attack] = {
    "drip": _drip,
    "sessions": _open_empty_sessions,
    "headers": _leave_headers_unfinished,
    "bombs": _send_bombs,
    "aborts": _abort_uploads,
}


def make_scan_bomb(scans: int, side: int = 2000) -> bytes:
    """A progressive JPEG that repeats a scan so many times: small, and slow to decode."""
    file = io.BytesIO()
    PIL.Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * scans + b"\xff\xd9"


def _photograph() -> bytes:
    """A JPEG of 640 × 480 and about 150 kB."""
    coarse = np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(coarse).resize((640, 480), PIL.Image.Resampling.BICUBIC).save(
        file, "JPEG", quality=90
    )
    return file.getvalue()


if __name__ == "__main__":
    main()
