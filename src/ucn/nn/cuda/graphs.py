"""CUDA graphs of one function of images: one for each size that is frequent enough to pay for it.

A graph launches the hundred or so kernels of a pass at once instead of one by one from Python, which is most
of the time of a small image. Capturing one costs several passes, and each graph keeps its memory. This file
decides what is captured and what is evicted; nothing in it needs a device.
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

_MAX_COUNTED_SIZES = 64  # sizes whose passes are counted; the least recently used are forgotten

_Size = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class CapturedGraph:
    """A graph with its static input and output buffers."""

    graph: Any
    images: Tensor
    descriptors: Tensor


@dataclass(frozen=True)
class CapturePolicy:
    """Which sizes are captured, and when.

    Attributes:
        eager_passes: how often a size runs eagerly before it is captured.
        max_graphs: how many graphs are kept.
        min_idle_passes: when all are kept, the least recently used graph is evicted only after this many
            passes without it, so that a folder of many sizes is not captured over and over.
        max_pixels: larger batches are not captured: they keep the device busy without a graph, which would
            take much memory. None sets no limit.
    """

    eager_passes: int = 0
    max_graphs: int = 8
    min_idle_passes: int = 0
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        """Checks ranges."""
        if self.max_graphs < 1:
            raise ValueError(f"max_graphs must be at least 1, got {self.max_graphs}")


LAZY_CAPTURE = CapturePolicy(eager_passes=2, max_graphs=8, min_idle_passes=64, max_pixels=2**21)
"""For images of unknown sizes: both images of a pair run eagerly, a third of the same size is captured."""


class GraphCache:
    """The graphs of one function; thread-safe for threads that share one stream."""

    def __init__(self, capture: Callable[[Tensor], CapturedGraph], policy: CapturePolicy) -> None:
        """Starts empty.

        Args:
            capture: captures a pass over images of the given size; raises RuntimeError where it cannot.
            policy: which sizes are captured.
        """
        self._capture, self._policy = capture, policy
        self._graphs: OrderedDict[_Size, tuple[CapturedGraph, int]] = OrderedDict()  # with its last pass
        self._passes: OrderedDict[_Size, int] = OrderedDict()
        self._count = 0
        self._can_capture = True
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, for example in another process, start empty: graphs belong to a device."""
        return GraphCache, (self._capture, self._policy)

    def run(self, images: Tensor) -> Tensor | None:
        """Descriptors by a graph; None where images of this size have none and must run eagerly."""
        with self._lock:
            captured = self._find(images)
            if captured is None:
                return None
            captured.images.copy_(images)
            captured.graph.replay()
            return captured.descriptors.clone()

    def get(self, images: Tensor) -> CapturedGraph:
        """The graph for images of this size, captured now where there is none, whatever the policy."""
        with self._lock:
            size = _read_size(images)
            self._count += 1
            if size not in self._graphs:
                while len(self._graphs) >= self._policy.max_graphs:
                    self._graphs.popitem(last=False)
                self._keep(size, self._capture(images))
            self._keep(size, self._graphs[size][0])
            return self._graphs[size][0]

    def _find(self, images: Tensor) -> CapturedGraph | None:
        size = _read_size(images)
        self._count += 1
        if size in self._graphs:
            self._keep(size, self._graphs[size][0])
            return self._graphs[size][0]
        if not self._is_due(images, size) or not self._evict():
            return None
        try:
            self._keep(size, self._capture(images))
        except RuntimeError as error:
            # From the driver, a library or a lack of memory: the next size would fail the same way.
            self._can_capture = False
            _LOGGER.warning("images are encoded without CUDA graphs, since capturing one failed: %s", error)
            return None
        return self._graphs[size][0]

    def _is_due(self, images: Tensor, size: _Size) -> bool:
        limit = self._policy.max_pixels
        pixels = images.shape[0] * images.shape[-2] * images.shape[-1]
        if not self._can_capture or (limit is not None and pixels > limit):
            return False
        passes = self._passes.pop(size, 0)
        self._passes[size] = passes + 1
        if len(self._passes) > _MAX_COUNTED_SIZES:
            self._passes.popitem(last=False)
        return passes >= self._policy.eager_passes

    def _evict(self) -> bool:
        """Whether there is space for one more graph, after evicting an idle one."""
        if len(self._graphs) < self._policy.max_graphs:
            return True
        _, last_pass = next(iter(self._graphs.values()))
        if self._count - last_pass <= self._policy.min_idle_passes:
            return False
        self._graphs.popitem(last=False)
        return True

    def _keep(self, size: _Size, captured: CapturedGraph) -> None:
        self._graphs[size] = (captured, self._count)
        self._graphs.move_to_end(size)


def _read_size(images: Tensor) -> _Size:
    return tuple(images.shape), images.dtype
