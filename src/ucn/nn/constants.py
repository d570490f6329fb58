"""Small constant tensors, created on the device of the network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def make_constant(values: Sequence[float], like: Tensor) -> Tensor:
    """Values (N,) with the type and on the device of a tensor.

    They are filled in on the device: a copy from the host synchronises, and a CUDA graph cannot capture it.
    """
    return torch.stack([like.new_full((), value) for value in values])
