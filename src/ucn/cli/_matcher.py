"""The one place where verbs get their matcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ucn.config import MatchConfig
    from ucn.predict import Matcher


def load_matcher(weights: str, config: MatchConfig | None = None, device: str | None = None) -> Matcher:
    """Loads weights onto a device.

    Raises:
        WeightsError: the weights are unknown or damaged.
        ValueError: there is no such device.
    """
    _check_device(device)
    from ucn.predict import Matcher

    return Matcher.from_pretrained(weights, config=config, device=device)


def _check_device(device: str | None) -> None:
    import torch

    if device is None:
        return
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"--device must be cpu, cuda, cuda:N or mps, got '{device}'") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: this torch finds no CUDA device here; use --device cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"--device {device}: this torch finds no MPS device here; use --device cpu")
