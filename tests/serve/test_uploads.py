"""Sessions and images: limits, expiry, and the callback for deleted images."""

import threading

import pytest

from ucn.serve.images import StoredImage
from ucn.serve.lanes import CapacityError
from ucn.serve.limits import Limits
from ucn.serve.uploads import NotFoundError, Uploads


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _image(name: str, size: int = 10) -> StoredImage:
    return StoredImage(name, b"x" * size, (32, 32), b"", 10**6)


def _touch(uploads: Uploads, session: str) -> None:
    """Raises where the session has ended."""
    with uploads.receive(session):
        pass


def test_image_is_found_until_its_session_was_idle_for_too_long() -> None:
    clock, forgotten = Clock(), list[str]()
    uploads = Uploads(Limits(idle_seconds=60.0), forgotten.append, clock)
    session = uploads.open_session()
    uploads.add(session, _image("a"))
    clock.now = 59.0
    assert uploads.find("a").name == "a"  # which counts as use
    clock.now = 118.0
    assert uploads.find("a").name == "a"
    clock.now = 178.0
    with pytest.raises(NotFoundError, match="expired; upload it again"):
        uploads.find("a")
    with pytest.raises(NotFoundError, match="no such session"):
        uploads.add(session, _image("b"))
    assert forgotten == ["a"]
    assert uploads.memory_bytes == 0


def test_expire_drops_only_idle_sessions() -> None:
    clock, forgotten = Clock(), list[str]()
    uploads = Uploads(Limits(idle_seconds=60.0), forgotten.append, clock)
    old = uploads.open_session()
    uploads.add(old, _image("old"))
    clock.now = 30.0
    new = uploads.open_session()
    uploads.add(new, _image("new"))
    clock.now = 70.0
    uploads.expire()
    assert forgotten == ["old"]
    assert uploads.find("new").name == "new"


def test_names_of_sessions_are_hard_to_guess() -> None:
    uploads = Uploads(Limits())
    names = {uploads.open_session() for _ in range(20)}
    assert len(names) == 20
    assert min(map(len, names)) >= 24


def test_too_many_sessions() -> None:
    clock = Clock()
    uploads = Uploads(Limits(max_sessions=2), clock=clock)
    names = [uploads.open_session() for _ in range(2)]
    for name in names:
        uploads.add(name, _image(name))
    with pytest.raises(CapacityError, match=r"2 sessions .* try again later"):
        uploads.open_session()
    clock.now = 30.0
    assert uploads.find(names[0]).name == names[0]
    clock.now = 60.0
    uploads.open_session()  # in place of the one that was idle for a minute
    _touch(uploads, names[0])
    with pytest.raises(NotFoundError):
        _touch(uploads, names[1])


def test_sessions_that_cost_nothing_end_first() -> None:
    clock = Clock()
    uploads = Uploads(Limits(max_sessions=3), clock=clock)
    used = uploads.open_session("a")
    uploads.add(used, _image("kept"))
    names = []
    for second in range(1, 5):
        clock.now = float(second)
        names.append(uploads.open_session("b"))
    assert uploads.find("kept").name == "kept"
    for name in names[:2]:
        with pytest.raises(NotFoundError):
            _touch(uploads, name)
    for name in names[2:]:
        _touch(uploads, name)
    clock.now = 64.0  # a minute later those without images have expired
    with pytest.raises(NotFoundError):
        _touch(uploads, names[3])
    assert uploads.find("kept").name == "kept"


def test_a_session_stays_while_its_first_image_arrives() -> None:
    clock = Clock()
    uploads = Uploads(Limits(max_sessions=2), clock=clock)
    session = uploads.open_session()
    with uploads.receive(session):
        clock.now = 100.0
        for _ in range(5):
            uploads.open_session()
        uploads.add(session, _image("a"))
    assert uploads.find("a").name == "a"


def test_an_empty_session_of_another_client_is_not_the_first_to_end() -> None:
    uploads = Uploads(Limits(max_sessions=4))
    honest = uploads.open_session("honest")
    for _ in range(20):
        uploads.open_session("flood")
    uploads.add(honest, _image("a"))


def test_the_client_with_most_sessions_makes_room() -> None:
    uploads = Uploads(Limits(max_sessions=4))
    for number in range(4):
        uploads.add(uploads.open_session("flood"), _image(str(number)))
    for name in "ab":
        uploads.add(uploads.open_session("honest"), _image(name))
    with pytest.raises(NotFoundError):
        uploads.find("0")
    assert uploads.find("3").name == "3"
    with pytest.raises(CapacityError):
        uploads.open_session("honest")  # both have the same share now


def test_the_client_with_most_memory_makes_room() -> None:
    uploads = Uploads(Limits(memory_bytes=16 * 2**20))  # half of it for uploads
    for number in range(2):
        uploads.add(uploads.open_session("flood"), _image(str(number), 4 * 2**20))
    session = uploads.open_session("honest")
    uploads.add(session, _image("mine", 3 * 2**20))
    with pytest.raises(NotFoundError):
        uploads.find("0")
    with pytest.raises(CapacityError, match="7 of 8 MiB already"):
        uploads.add(session, _image("more", 3 * 2**20))  # it would have more than the other one
    assert uploads.find("1").name == "1"


def test_oldest_image_of_a_session_is_evicted() -> None:
    forgotten = list[str]()
    uploads = Uploads(Limits(max_images=2), forgotten.append)
    session, other = uploads.open_session(), uploads.open_session()
    uploads.add(other, _image("other"))
    for name in "abc":
        uploads.add(session, _image(name))
    assert forgotten == ["a"]
    assert uploads.find("b").name == "b"
    assert uploads.find("other").name == "other"


def test_memory_is_bounded() -> None:
    uploads = Uploads(Limits(memory_bytes=16 * 2**20))  # half of it for uploads
    session = uploads.open_session()
    uploads.add(session, _image("a", 5 * 2**20))
    with pytest.raises(CapacityError, match="5 of 8 MiB already; try a smaller file"):
        uploads.add(session, _image("b", 4 * 2**20))
    uploads.add(session, _image("c", 3 * 2**20))
    assert uploads.memory_bytes == 8 * 2**20


def test_an_image_that_is_refused_costs_no_other_one() -> None:
    forgotten = list[str]()
    uploads = Uploads(Limits(memory_bytes=16 * 2**20, max_images=2), forgotten.append)
    session = uploads.open_session()
    for name in "ab":
        uploads.add(session, _image(name, 4 * 2**20))
    with pytest.raises(CapacityError, match="try a smaller file"):
        uploads.add(session, _image("c", 5 * 2**20))
    assert forgotten == []
    uploads.add(session, _image("d", 4 * 2**20))  # in the place of the oldest
    assert forgotten == ["a"]
    assert uploads.memory_bytes == 8 * 2**20


def test_closing_forgets_at_once_and_only_once() -> None:
    forgotten = list[str]()
    uploads = Uploads(Limits(), forgotten.append)
    session = uploads.open_session()
    uploads.add(session, _image("a"))
    uploads.close_session(session)
    assert forgotten == ["a"]
    with pytest.raises(NotFoundError, match="no such session"):
        uploads.close_session(session)


def test_many_threads() -> None:
    uploads = Uploads(Limits(max_sessions=200, max_images=2))

    def visit(number: int) -> None:
        session = uploads.open_session()
        for image in range(5):
            uploads.add(session, _image(f"{number}-{image}"))
        if number % 2:
            uploads.close_session(session)

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert uploads.memory_bytes == 20 * 2 * 10
