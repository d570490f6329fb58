"""Whether fused CUDA kernels can run (a CUDA device, Triton, a C compiler), and how they are launched."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor

_LOGGER = logging.getLogger(__name__)

# Tensor cores multiply in the types of the kernels since this generation (Ampere).
_MIN_CAPABILITY = (8, 0)

_is_on = True
_lock = threading.Lock()
_count_inside = 0  # threads and levels inside `without_fused`
_is_ready: bool | None = None


@contextmanager
def without_fused() -> Iterator[None]:
    """Switches fused kernels off inside; other threads run plain torch too, meanwhile."""
    _count_plain(1)
    try:
        yield
    finally:
        _count_plain(-1)


def _count_plain(change: int) -> None:
    global _is_on, _count_inside
    with _lock:
        _count_inside += change
        _is_on = _count_inside == 0


def use_fused(*tensors: Tensor) -> bool:
    """Whether fused kernels can take these tensors; otherwise plain torch computes the same."""
    return _is_on and all(tensor.is_cuda for tensor in tensors) and _check_ready()


def launch_on(x: Tensor) -> AbstractContextManager[object]:
    """Makes a tensor's device the current one, inside: Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def count_blocks(total: int, block: int) -> int:
    """Ceiling division. Triton's own `cdiv` takes microseconds outside kernels."""
    return -(-total // block)


def round_to_power(count: int) -> int:
    """The next power of two, at least `count`. Triton's own takes microseconds outside kernels."""
    return 1 << max(0, count - 1).bit_length()


def has_kernels() -> bool:
    """Whether Triton, and so torch.compile, works on the CUDA device of this machine."""
    return _is_on and _check_ready()


def has_bfloat16_units(device: torch.device) -> bool:
    """Whether a device is an NVIDIA GPU that multiplies faster in bfloat16 than in float32."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY


@cache
def has_bfloat16_products() -> bool:
    """Whether this CPU multiplies faster in bfloat16 than in float32; most are far slower in it."""
    # Older versions of torch lack these functions.
    checks = (getattr(torch.cpu, f"_is_{unit}_supported", None) for unit in ("avx512_bf16", "amx_tile"))
    return any(check is not None and check() for check in checks)


@contextmanager
def allow_tf32(device: torch.device, is_allowed: bool = True) -> Iterator[None]:
    """Allows a CUDA device TF32 in float32 products, inside."""
    if device.type != "cuda" or not is_allowed:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _check_ready() -> bool:
    """Whether Triton works on this machine; found out once."""
    global _is_ready
    if _is_ready is None:
        reason = _find_obstacle()
        _is_ready = reason is None
        if reason is not None:
            _LOGGER.info("using plain torch instead of fused CUDA kernels: %s", reason)
    return _is_ready


# As torch.compiler.assume_constant_result does, which would import the compiler, for more than a second.
_check_ready._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _find_obstacle() -> str | None:
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "there is no CUDA device"
    if torch.cuda.get_device_capability() < _MIN_CAPABILITY:
        return f"{torch.cuda.get_device_name()} is older than compute capability 8.0"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:  # without a C compiler Triton raises one of many errors
        return f"triton does not work here: {error}"
    return None
