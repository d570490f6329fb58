"""The network's passes of a training step as CUDA graphs: hundreds of programs started at once.

Started one by one from Python they keep a fast GPU waiting. What is computed stays the same, so a run may
use graphs or not, and go on without them.
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

_MOST_SIZES = 4
"""Of batches that are captured: sources have one or two; where sizes vary, capturing would never pay."""
_WARM_UPS = 3
"""Passes before a capture, in which libraries choose their programs and get their memory."""

_Size = tuple[tuple[int, ...], torch.dtype, bool]


def use_graphs(model: CorrespondenceNetwork) -> None:
    """Makes a network on a CUDA device run captured passes, forwards and backwards, while it is trained.

    A size is captured when it first comes; without gradients, and in evaluation mode, nothing changes. The
    weights may change their values afterwards, but not their place in memory. A network elsewhere stays as it
    is.

    Args:
        model: in training mode, with the weights that training begins with.
    """
    if next(model.parameters()).is_cuda:
        # Gradients come from the stream of the capture, which torch would warn of: here it is meant to be so.
        set_warning = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
        if set_warning is not None:  # torch 2.10 and later
            set_warning(False)
        model.forward = _Passes(model)  # type: ignore[method-assign]


class _Pass(nn.Module):
    """The network for batches of one size: captured passes belong to a module."""

    def __init__(self, model: CorrespondenceNetwork, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self._run = model, run

    def forward(self, images: Tensor) -> Tensor:
        """As the network."""
        return self._run(images)


class _Passes:
    """Runs a network by the graphs of the sizes that it has met."""

    def __init__(self, model: CorrespondenceNetwork) -> None:
        self._model, self._run = model, model.forward
        self._captured: dict[_Size, Callable[[Tensor], Tensor]] = {}
        # Sizes take turns, so one memory serves all.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, images: Tensor) -> Tensor:
        if not (self._model.training and torch.is_grad_enabled()):
            return self._run(images)
        size = (tuple(images.shape), images.dtype, torch.is_autocast_enabled("cuda"))
        if size not in self._captured:
            self._captured[size] = self._capture(images) if len(self._captured) < _MOST_SIZES else self._run
        return self._captured[size](images)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        raise TypeError("a network with captured passes cannot be copied; copy it before `use_graphs`")

    def _capture(self, images: Tensor) -> Callable[[Tensor], Tensor]:
        # Passes before the capture would count among those that the norms' statistics are of.
        buffers = [buffer.clone() for buffer in self._model.buffers()]
        stream = torch.cuda.current_stream(images.device)
        try:
            captured = self._capture_here(images)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # torch stays in the capture's stream where the capture fails
            _LOGGER.warning(
                "steps with images of %s run without a CUDA graph, as one cannot be captured: %s",
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
            # On another device than the images' nothing would be captured, and nothing be said.
            torch.cuda.device(images.device),
            _undisturbed_captures() as options,
            # A weight's copy in bfloat16 that autocast remembers would be none of the graph's.
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
    """Inside, other threads may ask a device for memory while `make_graphed_callables` captures.

    By default that breaks the capture and fails in the other thread too, and the threads that pin batches for
    data sets do so all the time: now and then a run would end with its first captures.

    Yields:
        Further arguments for `make_graphed_callables`.
    """
    mode = "thread_local"
    if "capture_error_mode" in inspect.signature(torch.cuda.make_graphed_callables).parameters:
        yield {"capture_error_mode": mode}
        return
    usual = torch.cuda.graph  # which older versions of torch take without asking for a mode
    torch.cuda.graph = functools.partial(usual, capture_error_mode=mode)  # type: ignore[assignment,misc]
    try:
        yield {}
    finally:
        torch.cuda.graph = usual  # type: ignore[misc]
