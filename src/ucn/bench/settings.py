"""Settings that all parts of the benchmark share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ucn.bench.timing import FULL, QUICK, Effort


def _ignore(phrase: str) -> None:
    del phrase


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        device: the device to measure.
        seed: of all random inputs.
        is_quick: use small inputs and few rounds, as a smoke test; the results are not representative.
        is_thorough: also measure what takes minutes to compile on a CUDA device.
        weights: name of the shipped weights for real descriptors, matching and training.
        xfeat: XFeat's ONNX file, a baseline of encoding and matching; None skips it.
        limit_seconds: time limit of each series of growing inputs.
        report: called with a phrase when a stage begins.
    """

    device: torch.device
    seed: int = 0
    is_quick: bool = False
    is_thorough: bool = False
    weights: str = "geometric"
    xfeat: Path | None = None
    limit_seconds: float = 90.0
    report: Callable[[str], None] = _ignore

    @property
    def is_cuda(self) -> bool:
        """Whether a CUDA device is measured."""
        return self.device.type == "cuda"

    @property
    def effort(self) -> Effort:
        """Number of rounds on a CPU."""
        return QUICK if self.is_quick else FULL

    @property
    def image_hw(self) -> tuple[int, int]:
        """(H, W) of the encoded images."""
        return (96, 128) if self.is_quick else (480, 640)
