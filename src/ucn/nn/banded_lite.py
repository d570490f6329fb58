"""The small network on a processor: what it does at its finest cells, in bands of rows of large images.

Maps of large images are longer than what the system keeps for a process to use again: each layer would write
to pages that have to be handed out and cleared first, so that the time of a pixel grew with the image. In
bands they stay short; only what is read again later, or elsewhere, is kept as a whole map.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.bands import ROWS_MULTIPLE, as_image, as_rows, make_map
from ucn.nn.lite import LiteTrunk, normalise_colours
from ucn.nn.model import CorrespondenceNetwork
from ucn.nn.normalise import l2_normalise
from ucn.threads import share

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
        cells = images.shape[-2] * images.shape[-1] // self._trunk.stride**2
        if len(images) == 0 or cells < _LEAST_CELLS:
            return self._network.describe(images)
        with torch.autocast("cpu", enabled=False):  # threads do not know the caller's
            return torch.cat([self._describe_one(image[None].float()) for image in images])

    def _describe_one(self, image: Tensor) -> Tensor:
        trunk = self._trunk
        h, w = (-(-size // 2) // 2 for size in image.shape[-2:])
        bands = _cut(h, w)
        fine = make_map(h, w, trunk.channels_out)
        halved = [fine] * len(bands)  # what the next coarser size begins with

        def begin(index: int) -> None:
            first, stop = bands[index]
            rows = self._enter(image, first, stop, h)
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

    def _enter(self, image: Tensor, first: int, stop: int, h: int) -> Tensor:
        """Rows of the finest map before it looks at coarser ones, of an image (1, 3, H, W)."""
        trunk, units = self._trunk, self._trunk.down[0]
        assert isinstance(units, nn.Sequential)
        top, bottom = max(0, first - len(units)), min(h, stop + len(units))
        height = image.shape[-2]
        # Cell i reads rows 2i to 2i + 2 of the first convolution, and its row j those 2j - 1 to 2j + 1 of the
        # image; there is one of zeros before and behind each.
        middle = min(-(-height // 2), 2 * bottom + 1)
        above, below = 4 * top - 1, 2 * middle
        pixels = normalise_colours(image[..., max(0, above) : min(height, below), :])
        pixels = F.pad(pixels, (0, 0, int(above < 0), int(below > height)))
        x = F.relu(_convolve(trunk.stem1.convolution, pixels, (0, 1)), inplace=True)
        x = F.pad(x, (0, 1, 0, 2 * (bottom - top) + 1 - x.shape[-2]))
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
        x = units(F.relu(as_image(fine[top:bottom]) + grown, inplace=True))[..., first - top : stop - top, :]
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


def _convolve(convolution: nn.Conv2d, x: Tensor, padding: tuple[int, int]) -> Tensor:
    return F.conv2d(x, convolution.weight, convolution.bias, convolution.stride, padding)
