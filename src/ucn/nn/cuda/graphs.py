"""CUDA graphs of one function of images, one for each size that comes often enough to be worth it.

A captured pass starts its hundred or so programs at once instead of one by one from Python, which is most of
the time of a small image. To capture costs several passes, and each graph keeps its memory; so what is
captured, and what makes room for it, is decided here. Nothing in this file needs a device.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LOGGER = logging.getLogger(__name__)

# Sizes whose passes are counted; of more than so many, those that came least lately are forgotten.
_COUNTED_SIZES = 64

_Size = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Captured:
    """A graph and its own memory: what it reads, and what it writes when replayed."""

    graph: Any
    images: Tensor
    descriptors: Tensor


@dataclass(frozen=True)
class CapturePolicy:
    """Which sizes are captured, and when.

    Attributes:
        after: passes of a size that run as they are before the next one is captured.
        max_sizes: that are kept.
        rest: where all are taken, the size that was used least lately makes room once as many passes of
            others went by; so folders of many sizes are not captured over and over.
        max_pixels: of a batch; larger ones keep a device busy without a graph, and would take much memory.
            None captures any.
    """

    after: int = 0
    max_sizes: int = 8
    rest: int = 0
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        """Checks ranges."""
        if self.max_sizes < 1:
            raise ValueError(f"max_sizes must be at least 1, got {self.max_sizes}")


class Captures:
    """The graphs of one function; its methods may be called from several threads that share one stream."""

    def __init__(self, record: Callable[[Tensor], Captured], policy: CapturePolicy) -> None:
        """Captures nothing yet.

        Args:
            record: captures a pass over images like the given ones; a RuntimeError says that it cannot.
            policy: when to.
        """
        self._record, self._policy = record, policy
        self._kept: OrderedDict[_Size, tuple[Captured, int]] = OrderedDict()  # with the pass of its last use
        self._passes: OrderedDict[_Size, int] = OrderedDict()
        self._count = 0
        self._can_record = True
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in another process say, begins without graphs: they belong to a device."""
        return Captures, (self._record, self._policy)

    def run(self, images: Tensor) -> Tensor | None:
        """Descriptors by a graph; None where images of this size are not captured, and run as they are."""
        with self._lock:
            captured = self._find(images)
            if captured is None:
                return None
            captured.images.copy_(images)
            captured.graph.replay()
            return captured.descriptors.clone()

    def get(self, images: Tensor) -> Captured:
        """The graph for images of this size, captured now where it was not; its memory belongs to it."""
        with self._lock:
            size = _read_size(images)
            self._count += 1
            if size not in self._kept:
                while len(self._kept) >= self._policy.max_sizes:
                    self._kept.popitem(last=False)
                self._keep(size, self._record(images))
            self._keep(size, self._kept[size][0])
            return self._kept[size][0]

    def _find(self, images: Tensor) -> Captured | None:
        size = _read_size(images)
        self._count += 1
        if size in self._kept:
            self._keep(size, self._kept[size][0])
            return self._kept[size][0]
        if not self._is_due(images, size) or not self._make_room():
            return None
        try:
            self._keep(size, self._record(images))
        except RuntimeError as error:
            # Of the driver, the libraries or the memory; the same would happen to the next size.
            self._can_record = False
            _LOGGER.warning("images are encoded without CUDA graphs, as one cannot be captured: %s", error)
            return None
        return self._kept[size][0]

    def _is_due(self, images: Tensor, size: _Size) -> bool:
        limit = self._policy.max_pixels
        pixels = images.shape[0] * images.shape[-2] * images.shape[-1]
        if not self._can_record or (limit is not None and pixels > limit):
            return False
        before = self._passes.pop(size, 0)
        self._passes[size] = before + 1
        if len(self._passes) > _COUNTED_SIZES:
            self._passes.popitem(last=False)
        return before >= self._policy.after

    def _make_room(self) -> bool:
        if len(self._kept) < self._policy.max_sizes:
            return True
        _, last_use = next(iter(self._kept.values()))
        if self._count - last_use <= self._policy.rest:
            return False
        self._kept.popitem(last=False)
        return True

    def _keep(self, size: _Size, captured: Captured) -> None:
        self._kept[size] = (captured, self._count)
        self._kept.move_to_end(size)


def _read_size(images: Tensor) -> _Size:
    return tuple(images.shape), images.dtype
