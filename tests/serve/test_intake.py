"""Bodies have limits of length, time and memory."""

import asyncio

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from starlette.exceptions import HTTPException
from starlette.types import Message

from support.serve_cases import run_async
from ucn.serve import intake
from ucn.serve.intake import Body, Intake


class Sender:
    """Parts of a body, each after a pause in seconds."""

    def __init__(self, *parts: tuple[float, int], is_whole: bool = True) -> None:
        self.parts, self.is_whole = list(parts), is_whole

    async def __call__(self) -> Message:
        if not self.parts:
            await asyncio.sleep(60)
        pause, size = self.parts.pop(0)
        await asyncio.sleep(pause)
        more = bool(self.parts) or not self.is_whole
        return {"type": "http.request", "body": bytes(size), "more_body": more}


async def _read(body: Body) -> int:
    while (await body.receive()).get("more_body"):
        pass
    return body.held


def test_a_body_is_counted_until_its_request_ends() -> None:
    async def work() -> None:
        bodies = Intake(100, 60)
        with bodies.open("a", Sender((0, 10), (0, 5)), 20) as body:
            assert await _read(body) == 15
            assert bodies.held_bytes == 15
        assert bodies.held_bytes == 0

    run_async(work)


def test_length() -> None:
    async def work() -> None:
        body = Body(Intake(100, 60), "a", Sender((0, 10), (0, 11)), 20)
        with pytest.raises(HTTPException, match="the request is too long"):
            await _read(body)

    run_async(work)


@pytest.mark.parametrize("sender", [Sender(is_whole=False), Sender(*[(0.03, 1)] * 50), Sender((0.2, 5))])
def test_a_body_that_pauses_or_drips(monkeypatch: pytest.MonkeyPatch, sender: Sender) -> None:
    monkeypatch.setattr(intake, "_PAUSE_SECONDS", 0.1)

    async def work() -> None:
        with Intake(100, 60).open("a", sender, 2**20) as body, pytest.raises(HTTPException) as error:
            await _read(body)
        assert error.value.status_code == 408
        assert "too slow: it must take less than 60 s, with 16 KiB a second" in error.value.detail

    run_async(work)


def test_a_body_at_the_least_rate_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_PAUSE_SECONDS", 0.15)

    async def work() -> None:
        with Intake(2**20, 60).open("a", Sender(*[(0.03, 2000)] * 20), 2**20) as body:
            assert await _read(body) == 40_000

    run_async(work)


def test_memory_is_waited_for_and_the_oldest_body_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_WAIT_SECONDS", 0.1)

    async def work() -> None:
        bodies = Intake(40, 60)
        with bodies.open("a", Sender((0, 30), (0, 30)), 100) as first:
            assert await _read(first) == 60  # over its half, but the first
            second = Body(bodies, "a", Sender((0, 1), (0, 1)), 100)
            with pytest.raises(HTTPException, match="429: your other uploads are in progress"):
                await _read(second)
            third = Body(bodies, "b", Sender((0, 1), (0, 1)), 100)
            with pytest.raises(HTTPException, match="503: many uploads are in progress"):
                await _read(third)
        with bodies.open("b", Sender((0, 1), (0, 1)), 100) as third:
            assert await _read(third) == 2

    run_async(work)


def test_a_waiting_body_goes_on_when_another_one_ends() -> None:
    async def work() -> None:
        bodies = Intake(40, 60)
        with bodies.open("b", Sender((0, 1), (0, 1)), 100) as waiting:
            with bodies.open("a", Sender((0, 41)), 100) as first:
                bodies._bodies.reverse()  # the large one came first
                await _read(first)
                reading = asyncio.create_task(_read(waiting))
                await asyncio.sleep(0.05)
                assert not reading.done()
            assert await reading == 2

    run_async(work)


def test_drain_ends_what_is_not_complete() -> None:
    async def work() -> None:
        bodies = Intake(40, 60)
        with bodies.open("a", Sender(is_whole=False), 100) as body:
            reading = asyncio.create_task(_read(body))
            await asyncio.sleep(0.02)
            bodies.drain()
            with pytest.raises(HTTPException, match="503: the server is stopping"):
                await reading

    run_async(work)
