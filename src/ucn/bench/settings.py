"""How the parts are to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ucn.bench.timing import QUICK, THOROUGH, Effort


def _ignore(phrase: str) -> None:
    del phrase


@dataclass(frozen=True)
class Settings:
    """What all parts are told.

    Attributes:
        device: whose speed is measured.
        seed: of all random inputs.
        is_quick: take small inputs and few repeats, to see that everything works; no figure to be quoted.
        is_thorough: also measure what compiles for minutes on a CUDA device.
        weights: shipped ones that pairs are matched with.
        xfeat: the ONNX file of XFeat, a peer; None leaves it out.
        limit_seconds: after which a series of growing sizes ends.
        report: called with a phrase at the beginning of each stage.
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
        """How often work on a CPU is repeated."""
        return QUICK if self.is_quick else THOROUGH

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the images that are encoded."""
        return (96, 128) if self.is_quick else (480, 640)
