"""The small network on a processor: what it does at its finest cells, in bands of rows of large images.

Maps of large images are longer than what the system keeps for a process to use again: each layer would write
to pages that have to be handed out and cleared first, so that the time of a pixel grew with the image. In
bands they stay short; only what is read again later, or elsewhere, is kept as a whole map. The largest maps
are those of the stem, so they are allocated with the zeros round them, and none is copied to get some.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.cpu.bands import ROWS_MULTIPLE, as_image, as_rows, make_map
from ucn.nn.lite import LiteTrunk, add_grown, write_normalised
from ucn.nn.model import CorrespondenceNetwork
from ucn.nn.normalise import l2_normalise
from ucn.runtime.threads import share

# Of maps of fewer cells, as of images of 1024 pixels a side, the system keeps the memory.
_LEAST_CELLS = 48_000
# Bands overlap by a few rows, so that lower ones cost more.
_BAND_CELLS, _LEAST_ROWS = 6144, 24


class BandedLite(nn.Module):
    """What a small network computes, to rounding, in less memory; without gradients."""

    def __init__(self, network: CorrespondenceNetwork) -> None:
        """Takes over the weights of a network in use; see `can_band_lite`."""
        super().__init__()
        assert isinstance(network.trunk, LiteTrunk)
        self._network, self._trunk = network, network.trunk

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to unit descriptors (B, D, h, w)."""
        return self.describe(self._network.prepare(images))

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """Prepared images (B, 3, H, W) to unit descriptors (B, D, h, w)."""
        if len(images) == 0:
            return self._network.describe(images)
        cells = images.shape[-2] * images.shape[-1] // self._trunk.stride**2
        with torch.autocast("cpu", enabled=False):  # threads do not know the caller's
            if cells < _LEAST_CELLS:
                return self._describe_whole(images.float())
            return torch.cat([self._describe_in_bands(image[None].float()) for image in images])

    def _describe_whole(self, images: Tensor) -> Tensor:
        trunk = self._trunk
        h, _ = _count_cells(images)
        fine = self._enter(images, 0, h)
        coarse = trunk.laterals[0](trunk.look_round(trunk.halvings[0](fine)))
        return self._finish(trunk.up[0](add_grown(fine, coarse)))

    def _describe_in_bands(self, image: Tensor) -> Tensor:
        trunk = self._trunk
        h, w = _count_cells(image)
        bands = _cut(h, w)
        fine = make_map(h, w, trunk.channels_out)
        halved = [fine] * len(bands)  # what the next coarser size begins with

        def begin(index: int) -> None:
            first, stop = bands[index]
            rows = self._enter(image, first, stop)
            fine[first:stop] = as_rows(rows)
            halved[index] = trunk.halvings[0](rows)

        share(begin, range(len(bands)))
        coarse = trunk.laterals[0](trunk.look_round(torch.cat([*halved], dim=-2)))
        described = make_map(h, w, self._find_width())

        def end(index: int) -> None:
            first, stop = bands[index]
            described[first:stop] = as_rows(self._leave(fine, coarse, first, stop))

        share(end, range(len(bands)))
        return as_image(described)

    def _enter(self, images: Tensor, first: int, stop: int) -> Tensor:
        """Rows of the finest map before it looks at coarser ones, of images (B, 3, H, W)."""
        trunk, units = self._trunk, self._trunk.down[0]
        assert isinstance(units, nn.Sequential)
        h, w = _count_cells(images)
        top, bottom = max(0, first - len(units)), min(h, stop + len(units))
        # Cell i reads rows 2i to 2i + 2 of the first convolution, and its row j those 2j - 1 to 2j + 1 of the
        # image; there are zeros before and behind each. It is the same with columns.
        begin, rows, columns = 4 * top - 1, 2 * (bottom - top) + 1, 2 * w + 1
        above, end = max(0, -begin), begin + 2 * rows + 1
        seen = images[..., max(0, begin) : end, : 2 * columns]
        pixels = images.new_zeros((len(images), 2 * rows + 1, 2 * columns + 1, 3)).permute(0, 3, 1, 2)
        write_normalised(seen, pixels[..., above : above + seen.shape[-2], 1 : 1 + seen.shape[-1]])
        stem = trunk.stem1.convolution
        x = F.relu(F.conv2d(pixels, stem.weight, stem.bias, stem.stride), inplace=True)
        height, width = (-(-size // 2) for size in images.shape[-2:])
        x[..., height - 2 * top :, :] = 0
        x[..., width:] = 0
        x = units(F.relu(trunk.stem2(x), inplace=True))
        return x[..., first - top : stop - top, :]  # type: ignore[no-any-return]

    def _leave(self, fine: Tensor, coarse: Tensor, first: int, stop: int) -> Tensor:
        """Descriptors (1, D, n, w) of rows of the finest map (h, w, C), with what coarser cells found."""
        units, (h, w, _) = self._trunk.up[0], fine.shape
        assert isinstance(units, nn.Sequential)
        top, bottom = max(0, first - len(units)), min(h, stop + len(units))
        start = max(0, top // 2 - 1)  # a cell lies between two coarse ones
        grown = F.interpolate(
            coarse[..., start : (bottom - 1) // 2 + 2, :],
            scale_factor=2,
            mode="bilinear",
            align_corners=False,
        )
        grown = grown[..., top - 2 * start : bottom - 2 * start, :w]
        x = units(F.relu(as_image(fine[top:bottom]) + grown, inplace=True))
        return self._finish(x[..., first - top : stop - top, :])

    def _finish(self, x: Tensor) -> Tensor:
        return l2_normalise(self._network.projection(self._network.head_norm(x)))

    def _find_width(self) -> int:
        projection = self._network.projection
        return projection.out_channels if isinstance(projection, nn.Conv2d) else self._trunk.channels_out


def can_band_lite(network: CorrespondenceNetwork) -> bool:
    """Whether a `BandedLite` can be made of a network: a folded one of a small trunk and nothing more."""
    is_bare = network.context is None and not len(network.coarse_levels)
    is_plain = isinstance(network.transformer, nn.Identity) and not isinstance(
        network.head_norm, nn.BatchNorm2d
    )
    return isinstance(network.trunk, LiteTrunk) and is_bare and is_plain


def _cut(h: int, w: int) -> list[tuple[int, int]]:
    step = max(_LEAST_ROWS, _BAND_CELLS // (w * ROWS_MULTIPLE) * ROWS_MULTIPLE)
    return [(first, min(h, first + step)) for first in range(0, h, step)]


def _count_cells(images: Tensor) -> tuple[int, int]:
    """Rows and columns of the finest map."""
    h, w = (-(-size // 2) // 2 for size in images.shape[-2:])
    return h, w
