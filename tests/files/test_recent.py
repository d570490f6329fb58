"""The cache of recent items."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ucn.files.recent import RecentItems


class TestRecentItems:
    def test_drops_the_least_recently_used(self) -> None:
        cache: RecentItems[int, int] = RecentItems(2)
        made: list[int] = []

        def make(key: int) -> int:
            made.append(key)
            return 10 * key

        for key in (1, 2, 1, 3, 1, 2):  # 3 drops 2, since 1 was used later
            assert cache.get_or_make(key, lambda key=key: make(key)) == 10 * key  # type: ignore[misc]
        assert made == [1, 2, 3, 2]
        assert len(cache) == 2

    def test_getting_is_a_use_and_looking_is_not(self) -> None:
        cache: RecentItems[str, int] = RecentItems(2)
        cache.put("a", 1)
        cache.put("b", 2)
        assert cache.get("a") == 1
        assert "b" in cache
        cache.put("c", 3)
        assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)

    def test_empty(self) -> None:
        cache: RecentItems[str, int] = RecentItems()
        assert cache.get("a") is None
        assert len(cache) == cache.held_bytes == 0
        cache.remove(lambda key: True)

    def test_none_is_a_value(self) -> None:
        cache: RecentItems[str, None] = RecentItems(2)
        cache.put("a", None)
        assert cache.get_or_make("a", lambda: pytest.fail("made twice")) is None

    def test_bytes_are_limited(self) -> None:
        cache: RecentItems[str, bytes] = RecentItems(max_bytes=10, count_bytes=len)
        for key in "abc":
            cache.put(key, b"1234")
        assert ("a" in cache, "b" in cache, "c" in cache) == (False, True, True)
        assert cache.held_bytes == 8
        cache.put("b", b"1")  # replaced, and used last
        assert cache.held_bytes == 5
        cache.put("d", b"1234567")
        assert ("b" in cache, "c" in cache, cache.held_bytes) == (True, False, 8)

    def test_the_last_items_stay_however_large(self) -> None:
        cache: RecentItems[str, bytes] = RecentItems(max_bytes=1, count_bytes=len, min_items=2)
        for key in "abc":
            cache.put(key, b"1234")
        assert ("a" in cache, len(cache), cache.held_bytes) == (False, 2, 8)
        one: RecentItems[str, bytes] = RecentItems(max_bytes=1, count_bytes=len)
        one.put("a", b"1234")
        assert one.get("a") == b"1234"

    def test_removing_by_key(self) -> None:
        cache: RecentItems[tuple[str, int], bytes] = RecentItems(max_bytes=99, count_bytes=len)
        for key in (("a", 0), ("b", 0), ("a", 1)):
            cache.put(key, b"12")
        cache.remove(lambda key: key[0] == "a")
        assert (len(cache), cache.held_bytes, cache.get(("b", 0))) == (1, 2, b"12")

    def test_a_copy_is_empty_and_has_the_limits(self) -> None:
        cache: RecentItems[int, bytes] = RecentItems(3, 10, len, 2)
        cache.put(1, b"1234")
        again: RecentItems[int, bytes] = pickle.loads(pickle.dumps(cache))
        assert (len(again), again.held_bytes) == (0, 0)
        for key in range(5):
            again.put(key, b"12345678")
        assert len(again) == 2

    def test_a_failed_make_keeps_nothing(self) -> None:
        cache: RecentItems[int, int] = RecentItems(3)
        with pytest.raises(ZeroDivisionError):
            cache.get_or_make(1, lambda: 1 // 0)
        assert cache.get_or_make(1, lambda: 2) == 2

    def test_threads(self) -> None:
        cache: RecentItems[int, bytes] = RecentItems(5, 60, len)
        start = threading.Barrier(8)

        def work(seed: int) -> None:
            start.wait()
            for step in range(500):
                key = (seed * 7 + step * step) % 11
                assert len(cache.get_or_make(key, lambda key=key: bytes(key + 1))) == key + 1  # type: ignore[misc]
                if step % 50 == 0:
                    cache.remove(lambda key: key % 2 == 0)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert len(cache) <= 5
        assert cache.held_bytes == sum(key + 1 for key in range(11) if key in cache)

    def test_limits_that_make_no_sense(self) -> None:
        for max_items, min_items in ((0, 1), (None, 0)):
            with pytest.raises(ValueError, match="max_items and min_items must be 1 or more"):
                RecentItems(max_items, min_items=min_items)
        with pytest.raises(ValueError, match="max_bytes needs count_bytes"):
            RecentItems(max_bytes=3)
