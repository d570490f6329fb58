"""The lite network on a CPU: its finest feature maps in bands of rows, for large images.

The allocator returns the memory of large maps to the system: each layer would write to pages that have to be
mapped and cleared first, so that the time per pixel grew with the image. Bands are small enough to stay
mapped. Only what is read again later, or by another band, is kept as a whole map. The largest maps are those
of the stem: they are allocated with their zero padding, so that none is copied to be padded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.cpu.bands import ROWS_MULTIPLE, allocate_map, as_image, as_rows
from ucn.nn.lite import LiteTrunk, upsample_and_add, write_normalised
from ucn.nn.model import CorrespondenceNetwork
from ucn.nn.normalise import l2_normalise
from ucn.runtime.threads import share

# The allocator keeps the memory of maps of fewer cells, as of images of 1024 pixels a side.
_MIN_CELLS = 48_000
# Bands overlap by a few rows, so that lower ones cost more.
_BAND_CELLS, _MIN_BAND_ROWS = 6144, 24


class BandedLite:
    """What a lite network computes, to rounding, in less memory; without gradients."""

    def __init__(self, network: CorrespondenceNetwork) -> None:
        """Takes the weights of a folded network; see `can_band_lite`."""
        assert isinstance(network.trunk, LiteTrunk)
        self._network, self._trunk = network, network.trunk

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.describe`: large images in bands, others as a whole."""
        if len(images) == 0:
            return self._network.describe(images)
        cells = images.shape[-2] * images.shape[-1] // self._trunk.stride**2
        if cells >= _MIN_CELLS:
            return self.describe_in_bands(images)
        with torch.autocast("cpu", enabled=False):
            return self._describe_whole(images.float())

    @torch.no_grad()
    def describe_in_bands(self, images: Tensor, band_rows: int | None = None) -> Tensor:
        """As `CorrespondenceNetwork.describe`, with bands of a multiple of 4 rows (by size where None)."""
        with torch.autocast("cpu", enabled=False):  # threads do not inherit the caller's autocast
            return torch.cat([self._describe_one(image[None].float(), band_rows) for image in images])

    def _describe_whole(self, images: Tensor) -> Tensor:
        trunk = self._trunk
        h, _ = _count_cells(images)
        fine = self._run_stem(images, 0, h)
        coarse = trunk.laterals[0](trunk.run_coarse_levels(trunk.halvings[0](fine)))
        return self._apply_head(trunk.up[0](upsample_and_add(fine, coarse)))

    def _describe_one(self, image: Tensor, band_rows: int | None) -> Tensor:
        trunk = self._trunk
        h, w = _count_cells(image)
        step = band_rows or max(_MIN_BAND_ROWS, _BAND_CELLS // (w * ROWS_MULTIPLE) * ROWS_MULTIPLE)
        bands = [(first, min(h, first + step)) for first in range(0, h, step)]
        fine = allocate_map(h, w, trunk.channels_out)
        halved = [fine] * len(bands)  # input of the next coarser level

        def start(index: int) -> None:
            first, stop = bands[index]
            rows = self._run_stem(image, first, stop)
            fine[first:stop] = as_rows(rows)
            halved[index] = trunk.halvings[0](rows)

        share(start, range(len(bands)))
        coarse = trunk.laterals[0](trunk.run_coarse_levels(torch.cat([*halved], dim=-2)))
        described = allocate_map(h, w, self._count_dimensions())

        def finish(index: int) -> None:
            first, stop = bands[index]
            described[first:stop] = as_rows(self._merge_and_describe(fine, coarse, first, stop))

        share(finish, range(len(bands)))
        return as_image(described)

    def _run_stem(self, images: Tensor, first: int, stop: int) -> Tensor:
        """Rows first..stop-1 of the finest map before coarser levels are added, for images (B, 3, H, W)."""
        trunk, units = self._trunk, self._trunk.down[0]
        assert isinstance(units, nn.Sequential)
        h, w = _count_cells(images)
        top, bottom = max(0, first - len(units)), min(h, stop + len(units))
        # Cell i reads rows 2i to 2i + 2 of the first convolution, whose row j reads rows 2j - 1 to 2j + 1 of
        # the image; both are padded with zeros at either end. The same holds for columns.
        begin, rows, columns = 4 * top - 1, 2 * (bottom - top) + 1, 2 * w + 1
        above, end = max(0, -begin), begin + 2 * rows + 1
        window = images[..., max(0, begin) : end, : 2 * columns]
        pixels = images.new_zeros((len(images), 2 * rows + 1, 2 * columns + 1, 3)).permute(0, 3, 1, 2)
        write_normalised(window, pixels[..., above : above + window.shape[-2], 1 : 1 + window.shape[-1]])
        stem = trunk.stem1.convolution
        x = F.relu(F.conv2d(pixels, stem.weight, stem.bias, stem.stride), inplace=True)
        height, width = (-(-size // 2) for size in images.shape[-2:])
        x[..., height - 2 * top :, :] = 0
        x[..., width:] = 0
        x = units(F.relu(trunk.stem2(x), inplace=True))
        return x[..., first - top : stop - top, :]  # type: ignore[no-any-return]

    def _merge_and_describe(self, fine: Tensor, coarse: Tensor, first: int, stop: int) -> Tensor:
        """Descriptors (1, D, n, w) of rows of the finest map (h, w, C), with the coarser levels added."""
        units, (h, w, _) = self._trunk.up[0], fine.shape
        assert isinstance(units, nn.Sequential)
        top, bottom = max(0, first - len(units)), min(h, stop + len(units))
        start = max(0, top // 2 - 1)  # a cell is interpolated between two coarse ones
        upsampled = F.interpolate(
            coarse[..., start : (bottom - 1) // 2 + 2, :],
            scale_factor=2,
            mode="bilinear",
            align_corners=False,
        )
        upsampled = upsampled[..., top - 2 * start : bottom - 2 * start, :w]
        x = units(F.relu(as_image(fine[top:bottom]) + upsampled, inplace=True))
        return self._apply_head(x[..., first - top : stop - top, :])

    def _apply_head(self, x: Tensor) -> Tensor:
        return l2_normalise(self._network.projection(self._network.head_norm(x)))

    def _count_dimensions(self) -> int:
        projection = self._network.projection
        return projection.out_channels if isinstance(projection, nn.Conv2d) else self._trunk.channels_out


def can_band_lite(network: CorrespondenceNetwork) -> bool:
    """Whether `BandedLite` takes a network: a folded one with a lite trunk and a plain head."""
    has_branches = network.context is not None or len(network.coarse_levels) > 0
    has_plain_head = (
        isinstance(network.transformer, nn.Identity)
        and isinstance(network.projection, (nn.Conv2d, nn.Identity))
        and not isinstance(network.head_norm, nn.BatchNorm2d)
    )
    return isinstance(network.trunk, LiteTrunk) and has_plain_head and not has_branches


def _count_cells(images: Tensor) -> tuple[int, int]:
    """Rows and columns of the finest map."""
    h, w = (-(-size // 2) // 2 for size in images.shape[-2:])
    return h, w
