"""Bounds on the rounding errors of the scores that a search ranks by."""

from __future__ import annotations

import torch
from torch import Tensor

TIE_TOLERANCE = 1e-12
"""Distances that differ by less than this share are ties: summing in another order explains it."""


def bound_rounding(query_norms: Tensor, largest_norm: Tensor, D: int, dtype: torch.dtype) -> Tensor:
    """The largest rounding error (B, N) of the scores of each query; infinite where they overflow."""
    products = query_norms * largest_norm
    scale = products + 0.5 * largest_norm.square()
    unit = 2.0 ** (-53 if dtype == torch.float64 else -24)
    # The usual bound of a sum of D products; then the rounding of both factors (TF32, bfloat16), underflow,
    # and the tolerance of ties.
    bound = 1.05 * (D + 8) * unit * scale
    bound += 2.1 * factor_roundoff(dtype) * products + D * torch.finfo(dtype).tiny
    bound += TIE_TOLERANCE * (query_norms + largest_norm).square()
    return bound.masked_fill_(scale >= torch.finfo(dtype).max / 8, torch.inf)


def factor_roundoff(dtype: torch.dtype) -> float:
    """The relative error of a matrix product's factors, allowing for hardware that truncates them."""
    if dtype == torch.float64:
        return 0.0
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to report it where the setting per backend was used
        precision = "medium"
    return {"highest": 0.0, "high": 2.0**-10, "medium": 2.0**-7}[precision]
