"""Whether fused GPU programs may run: a CUDA device, Triton and the compiler it needs, not switched off."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor

_LOGGER = logging.getLogger(__name__)

# The programs multiply in types that tensor cores have since this generation (Ampere).
_LEAST_CAPABILITY = (8, 0)

_is_on = True
_is_ready: bool | None = None


@contextmanager
def without_fused() -> Iterator[None]:
    """Runs the plain path inside, to compare with it; for one thread at a time."""
    global _is_on
    before, _is_on = _is_on, False
    try:
        yield
    finally:
        _is_on = before


def use_fused(*tensors: Tensor) -> bool:
    """Whether fused programs may take these tensors; where not, plain torch does the same work."""
    return _is_on and all(tensor.is_cuda for tensor in tensors) and _check_ready()


def launch_on(x: Tensor) -> AbstractContextManager[object]:
    """For launches of Triton inside: it takes the current device, which need not be that of its arguments."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def count_blocks(total: int, block: int) -> int:
    """How many blocks of some size hold a total. Triton's own `cdiv` takes microseconds outside programs."""
    return -(-total // block)


def round_to_power(count: int) -> int:
    """The least power of two that is no less, without what Triton's own costs outside programs."""
    return 1 << max(0, count - 1).bit_length()


def has_kernels() -> bool:
    """Whether programs can be made for the CUDA device of this machine: by Triton, or by torch's compiler."""
    return _is_on and _check_ready()


def has_bfloat16_units(device: torch.device) -> bool:
    """Whether a device is NVIDIA's and multiplies in bfloat16 faster than in float32; a processor is not."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY


@cache
def has_bfloat16_products() -> bool:
    """Whether this processor multiplies faster in bfloat16 than in float32; most are far slower in it."""
    # torch asks the processor; versions of it that cannot are taken to say no.
    asked = (getattr(torch.cpu, f"_is_{unit}_supported", None) for unit in ("avx512_bf16", "amx_tile"))
    return any(ask is not None and ask() for ask in asked)


def _check_ready() -> bool:
    """Whether Triton works on this machine; asked once."""
    global _is_ready
    if _is_ready is None:
        reason = _find_obstacle()
        _is_ready = reason is None
        if reason is not None:
            _LOGGER.info("plain torch takes the place of fused GPU programs: %s", reason)
    return _is_ready


# What torch.compiler.assume_constant_result does; but that imports the compiler, for more than a second.
_check_ready._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _find_obstacle() -> str | None:
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "there is no CUDA device"
    if torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
        return f"{torch.cuda.get_device_name()} is older than compute capability 8.0"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:  # Triton needs a C compiler, and says so in many ways
        return f"triton does not work here: {error}"
    return None
