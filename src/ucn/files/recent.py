"""A cache that drops the least recently used items first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class RecentItems(Generic[_Key, _Value]):
    """A cache that drops the least recently used items first.

    Its methods may be called from several threads. A pickled or copied cache is empty.
    """

    def __init__(
        self,
        max_items: int | None = None,
        max_bytes: int | None = None,
        count_bytes: Callable[[_Value], int] | None = None,
        min_items: int = 1,
    ) -> None:
        """Starts empty.

        Args:
            max_items: the most items to keep; None sets no limit.
            max_bytes: the most bytes to keep, by `count_bytes`; None sets no limit.
            count_bytes: the size of a value in bytes; needed with `max_bytes`, and picklable where the cache
                is pickled.
            min_items: the last items that stay even where they exceed `max_bytes`.

        Raises:
            ValueError: a limit below 1, or `max_bytes` without `count_bytes`.
        """
        if min(min_items, min_items if max_items is None else max_items) < 1:
            raise ValueError(f"max_items and min_items must be 1 or more, got {max_items} and {min_items}")
        if max_bytes is not None and count_bytes is None:
            raise ValueError("max_bytes needs count_bytes; give a function from a value to its bytes")
        self._limits = (max_items, max_bytes, count_bytes, min_items)
        self._items: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._limits

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    @property
    def held_bytes(self) -> int:
        """Size of all items by `count_bytes`; 0 without it."""
        return self._bytes

    def get(self, key: _Key) -> _Value | None:
        """The value of a key, which counts as a use; None where it is not kept."""
        with self._lock:
            if key not in self._items:
                return None
            self._items.move_to_end(key)
            return self._items[key][0]

    def put(self, key: _Key, value: _Value) -> None:
        """Keeps a value, and drops the least recently used ones beyond the limits."""
        max_items, max_bytes, count_bytes, min_items = self._limits
        size = count_bytes(value) if count_bytes is not None else 0
        with self._lock:
            self._drop(key)
            self._items[key] = (value, size)
            self._bytes += size
            while (max_items is not None and len(self._items) > max_items) or (
                max_bytes is not None and self._bytes > max_bytes and len(self._items) > min_items
            ):
                self._drop(next(iter(self._items)))

    def get_or_make(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """The value of a key, made and kept where it is not there.

        `make` runs without a lock: two threads that ask for one key at once may both make it.
        """
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key][0]
        value = make()
        self.put(key, value)
        return value

    def remove(self, is_unwanted: Callable[[_Key], bool]) -> None:
        """Drops all items whose key fulfils a condition."""
        with self._lock:
            for key in [key for key in self._items if is_unwanted(key)]:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        if key in self._items:
            self._bytes -= self._items.pop(key)[1]
