"""The torch device that code runs on."""

from __future__ import annotations

from collections.abc import Callable

import torch


def choose_device(name: str | None) -> torch.device:
    """The named device, or CUDA where there is one, or the CPU.

    Raises:
        ValueError: `name` is not a device, or this machine has no such device.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda, cuda:N or mps, got '{name}'") from error
    available: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": lambda: (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available,
    }
    if device.type not in available:
        raise ValueError(f"device must be cpu, cuda, cuda:N or mps, got '{name}'")
    if not available[device.type]():
        raise ValueError(
            f"device must exist, got '{name}': torch finds no {device.type.upper()} device there; use cpu"
        )
    return device
