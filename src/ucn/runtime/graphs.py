"""CUDA graphs of functions of tensors: one for each size that recurs.

A graph launches the hundreds of kernels of a function at once instead of one by one from Python, which is
most of their time. Such a function waits for nothing, and what it launches depends on sizes alone.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LOGGER = logging.getLogger(__name__)

_WARM_UPS = 2  # passes before a capture, in which kernels are compiled and workspaces allocated
_EAGER_PASSES = 1  # of a size before it is captured: a single one is not worth it
_MAX_COUNTED_SIZES = 64
_MIN_IDLE_PASSES = 64  # before a graph is evicted, so that many sizes are not captured over and over


@dataclass(frozen=True)
class _Graph:
    """A captured graph with its static inputs and output."""

    graph: Any
    inputs: tuple[Tensor, ...]
    output: Tensor


class RecurringGraphs:
    """Runs functions on a CUDA device, by graphs where sizes recur; thread-safe for threads of one stream."""

    def __init__(self, max_graphs: int) -> None:
        """Starts empty.

        Args:
            max_graphs: how many graphs are kept.
        """
        self._max_graphs = max_graphs
        self._graphs: OrderedDict[Hashable, tuple[_Graph, int]] = OrderedDict()  # with its last pass
        self._passes: OrderedDict[Hashable, int] = OrderedDict()
        self._can_capture = True
        self._count = 0
        self._pool: Any = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, for example in another process, start empty: graphs belong to a device."""
        return RecurringGraphs, (self._max_graphs,)

    def __len__(self) -> int:
        return len(self._graphs)

    def run(
        self,
        key: Hashable,
        function: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        read: Callable[[Tensor], Tensor] = Tensor.clone,
    ) -> Tensor:
        """The result of a function.

        Args:
            key: what the function does, beside the sizes of its inputs; equal keys do the same.
            function: of these inputs.
            inputs: on one device.
            read: copies the result, which the next run may overwrite.
        """
        key = key, tuple((each.shape, each.dtype) for each in inputs)
        with self._lock:
            captured = self._find(key, function, inputs)
            if captured is None:
                return read(function(*inputs))
            for static, given in zip(captured.inputs, inputs, strict=True):
                static.copy_(given)
            captured.graph.replay()
            return read(captured.output)

    def _find(
        self, key: Hashable, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]
    ) -> _Graph | None:
        self._count += 1
        if key in self._graphs:
            graph, _ = self._graphs.pop(key)
        elif inputs[0].is_cuda and self._is_due(key) and self._has_space():
            found = self._capture(function, inputs)
            if found is None:
                return None
            graph = found
        else:
            return None
        self._graphs[key] = graph, self._count
        return graph

    def _is_due(self, key: Hashable) -> bool:
        passes = self._passes.pop(key, 0)
        self._passes[key] = passes + 1
        if len(self._passes) > _MAX_COUNTED_SIZES:
            self._passes.popitem(last=False)
        return self._can_capture and passes >= _EAGER_PASSES

    def _has_space(self) -> bool:
        """Whether there is space for one more graph, after evicting an idle one."""
        if len(self._graphs) < self._max_graphs:
            return True
        _, last_pass = next(iter(self._graphs.values()))
        if self._count - last_pass <= _MIN_IDLE_PASSES:
            return False
        self._graphs.popitem(last=False)
        return True

    def _capture(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> _Graph | None:
        device = inputs[0].device
        stream = torch.cuda.current_stream(device)
        try:
            # Buffers made in inference mode could not be written to outside of it.
            with torch.cuda.device(device), torch.inference_mode(False), torch.no_grad():
                # Graphs run one after another, so they can share the memory of their temporaries.
                self._pool = self._pool or torch.cuda.graph_pool_handle()
                return _capture_on_device(function, inputs, self._pool)
        except RuntimeError as error:
            # From the driver, a library or a lack of memory: the next size would fail the same way.
            torch.cuda.set_stream(stream)  # torch stays in the capture's stream where the capture fails
            self._can_capture = False
            _LOGGER.warning("running without CUDA graphs, since capturing one failed: %s", error)
            return None


def _capture_on_device(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], pool: Any) -> _Graph:
    static = tuple(each.detach().clone() for each in inputs)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            function(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as a server's, may allocate memory meanwhile.
    with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
        output = function(*static)
    return _Graph(graph, static, output)
