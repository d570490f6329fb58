"""Clients take turns, none occupies all threads, and what waits is bounded."""

from concurrent.futures import Future
from threading import Event

import pytest

from ucn.serve.lanes import CLIENT, CapacityError, Lane, UnavailableError, name_client


def _submit(lane: Lane, client: str, done: list[str], is_free: Event | None = None) -> "Future[None]":
    def work() -> None:
        if is_free is not None:
            assert is_free.wait(60)
        done.append(client)

    token = CLIENT.set(client)
    try:
        return lane.submit(work)
    finally:
        CLIENT.reset(token)


def test_clients_take_turns() -> None:
    lane, done, is_free = Lane("test", 20), list[str](), Event()
    futures = [_submit(lane, "a", done, is_free)]
    futures += [_submit(lane, client, done) for client in "aaaaabbc"]
    is_free.set()
    for future in futures:
        future.result(60)
    assert "".join(done) == "aabcabaaa"
    lane.close()


def test_one_thread_is_kept_for_others() -> None:
    lane, done, is_free = Lane("test", 20, threads=2), list[str](), Event()
    busy = [_submit(lane, "a", done, is_free) for _ in range(5)]
    _submit(lane, "b", done).result(60)  # while the first of a still runs
    assert done == ["b"]
    is_free.set()
    for future in busy:
        future.result(60)
    lane.close()


def test_a_client_may_have_half_of_the_queue() -> None:
    lane, done, is_free = Lane("test", 4), list[str](), Event()
    _submit(lane, "a", done, is_free)
    futures = [_submit(lane, "a", done) for _ in range(2)]
    with pytest.raises(CapacityError, match="2 of your requests wait already; try again"):
        _submit(lane, "a", done)
    futures += [_submit(lane, "b", done) for _ in range(2)]
    futures += [_submit(lane, "c", done)]  # in place of the last job of the client with most
    with pytest.raises(UnavailableError, match="others wait, too"):
        futures[1].result(60)
    assert lane.waiting == 4
    futures.pop(1)
    _submit(lane, "d", done)  # now of b
    with pytest.raises(UnavailableError, match="4 requests wait already"):
        _submit(lane, "e", done)
    is_free.set()
    lane.close()


def test_a_job_that_waits_too_long_is_not_begun() -> None:
    lane, done, is_free = Lane("test", 4, max_seconds=0.05), list[str](), Event()
    first = _submit(lane, "a", done, is_free)
    with pytest.raises(UnavailableError, match="the server is busy"):
        lane.run(done.append, "never")
    is_free.set()
    first.result(60)
    lane.close()
    assert done == ["a"]


def test_drain_ends_what_has_begun_and_refuses_the_rest() -> None:
    lane, done, is_free = Lane("test", 4), list[str](), Event()
    futures = [_submit(lane, "a", done, is_free), _submit(lane, "b", done)]
    lane.drain()
    with pytest.raises(UnavailableError, match="the server is stopping"):
        futures[1].result(60)
    with pytest.raises(UnavailableError, match="the server is stopping"):
        _submit(lane, "a", done)
    is_free.set()
    futures[0].result(60)
    lane.close()
    assert done == ["a"]


def test_errors_reach_the_caller_and_the_lane_goes_on() -> None:
    lane = Lane("test", 4)
    with pytest.raises(ZeroDivisionError):
        lane.run(lambda: 1 / 0)
    assert lane.run(lambda: 7) == 7
    lane.close()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (None, ""),
        (("10.1.2.3", 5), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 5), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5), "fe80::/64"),
        (("::ffff:10.1.2.3", 5), "10.1.2.3"),
    ],
)
def test_name_of_a_client(address: tuple[str, int] | None, name: str) -> None:
    assert name_client(address) == name
