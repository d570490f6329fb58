"""The CPU engine: a folded network in float32, in bands of rows where its architecture allows it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ucn.nn.cpu.lite import BandedLite, can_band_lite
from ucn.nn.cpu.network import BandedNetwork, can_band
from ucn.nn.folding import FoldedEncoder
from ucn.nn.model import CorrespondenceNetwork


class CpuEncoder(FoldedEncoder):
    """Computes the descriptors of a network, to rounding, several times as fast on a CPU.

    Networks that fit neither `BandedNetwork` nor `BandedLite` run folded, as a whole.
    """

    def __init__(self, model: CorrespondenceNetwork) -> None:
        super().__init__(model)
        self._banded: BandedNetwork | BandedLite | None = None
        if can_band(self.network):
            self._banded = BandedNetwork(self.network)
        elif can_band_lite(self.network):
            self._banded = BandedLite(self.network)

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.describe`."""
        return (self._banded or self.network).describe(images)

    def list_code_paths(self) -> list[Callable[[Tensor], Tensor]]:
        """As `FoldedEncoder.list_code_paths`; the lite network cuts large images alone into bands."""
        banded = self._banded
        if not isinstance(banded, BandedLite):
            return [self]
        return [self, lambda images: banded.describe_in_bands(self.prepare(images), band_rows=4)]
