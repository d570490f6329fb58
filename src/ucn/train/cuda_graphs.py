"""Forward and backward passes of training as CUDA graphs, which launch hundreds of kernels at once.

Launched one by one from Python, the kernels keep a fast GPU waiting. The results are the same with and
without graphs, so a run may resume on a machine without them.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ucn.nn import CorrespondenceNetwork

_LOGGER = logging.getLogger(__name__)

_MAX_SIZES = 4
"""Batch sizes that are captured. Sources have one or two; where sizes vary, capturing does not pay."""
_WARM_UPS = 3
"""Passes before a capture, in which libraries choose their kernels and allocate memory."""

_Size = tuple[tuple[int, ...], torch.dtype, bool]


def use_graphs(model: CorrespondenceNetwork) -> None:
    """Makes a network on a CUDA device run captured forward and backward passes in training.

    A size is captured when it first occurs. Without gradients and in evaluation mode nothing changes. The
    values of weights may change afterwards, but not their addresses. A network on another device is
    unchanged.

    Args:
        model: in training mode, with the weights that training starts from.
    """
    if next(model.parameters()).is_cuda:
        # Gradients come from the stream of the capture, which is intended; torch would warn.
        set_warning = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
        if set_warning is not None:  # torch 2.10 and later
            set_warning(False)
        model.forward = _Passes(model)  # type: ignore[method-assign]


class _Pass(nn.Module):
    """The network for batches of one size; `make_graphed_callables` needs a module."""

    def __init__(self, model: CorrespondenceNetwork, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self._run = model, run

    def forward(self, images: Tensor) -> Tensor:
        """As the network's."""
        return self._run(images)


class _Passes:
    """Runs a network by one graph for each batch size."""

    def __init__(self, model: CorrespondenceNetwork) -> None:
        self._model, self._run = model, model.forward
        self._captured: dict[_Size, Callable[[Tensor], Tensor]] = {}
        # Graphs run one at a time, so they share memory.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, images: Tensor) -> Tensor:
        if not (self._model.training and torch.is_grad_enabled()):
            return self._run(images)
        size = (tuple(images.shape), images.dtype, torch.is_autocast_enabled("cuda"))
        if size not in self._captured:
            self._captured[size] = self._capture(images) if len(self._captured) < _MAX_SIZES else self._run
        return self._captured[size](images)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        raise TypeError("a network with captured passes cannot be copied; copy it before `use_graphs`")

    def _capture(self, images: Tensor) -> Callable[[Tensor], Tensor]:
        # The warm-up passes must not change the statistics of batch norms.
        buffers = [buffer.clone() for buffer in self._model.buffers()]
        stream = torch.cuda.current_stream(images.device)
        try:
            captured = self._capture_here(images)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a failed capture leaves torch in its own stream
            _LOGGER.warning(
                "batches of images %s run without a CUDA graph, since the capture failed: %s",
                tuple(images.shape),
                error,
            )
            captured = self._run
        with torch.no_grad():
            for buffer, before in zip(self._model.buffers(), buffers, strict=True):
                buffer.copy_(before)
        return captured

    def _capture_here(self, images: Tensor) -> Callable[[Tensor], Tensor]:
        dtype, is_on = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        with (
            # On another current device nothing would be captured, without an error.
            torch.cuda.device(images.device),
            _undisturbed_captures() as options,
            # bfloat16 copies of weights that autocast caches would not be part of the graph.
            torch.autocast("cuda", dtype, enabled=is_on, cache_enabled=False),
        ):
            captured: Any = torch.cuda.make_graphed_callables(
                _Pass(self._model, self._run),
                (images.clone(),),
                num_warmup_iters=_WARM_UPS,
                allow_unused_input=True,
                pool=self._pool,
                **options,
            )
        return captured  # type: ignore[no-any-return]


@contextmanager
def _undisturbed_captures() -> Iterator[dict[str, Any]]:
    """Lets other threads allocate memory while `make_graphed_callables` captures.

    By default this breaks the capture and raises in the other thread too. The threads that pin batches do it
    all the time, so that runs would sometimes fail at their first capture.

    Yields:
        Further arguments for `make_graphed_callables`.
    """
    mode = "thread_local"
    if "capture_error_mode" in inspect.signature(torch.cuda.make_graphed_callables).parameters:
        yield {"capture_error_mode": mode}
        return
    usual = torch.cuda.graph  # older versions of torch have no argument for the mode
    torch.cuda.graph = functools.partial(usual, capture_error_mode=mode)  # type: ignore[assignment,misc]
    try:
        yield {}
    finally:
        torch.cuda.graph = usual  # type: ignore[misc]
