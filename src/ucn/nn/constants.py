"""Small constants of the network, made where its tensors are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def make_constant(values: Sequence[float], like: Tensor) -> Tensor:
    """(N,) values of the type and on the device of a tensor.

    They are filled in there: a copy from the host waits for the device, and a CUDA graph cannot hold it.
    """
    return torch.stack([like.new_full((), value) for value in values])
