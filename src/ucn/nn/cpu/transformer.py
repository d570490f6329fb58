"""The convolutional spatial transformer in bands of rows, without gradients.

A reading between cells is a weighted sum of four rows of a table, which torch sums at the speed of memory
(`embedding_bag`). The readings of a band are multiplied by the kernel while they are in a cache, so that the
map of all of them, k² times as large as the input, never exists.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.cpu.bands import as_image, as_rows, for_each_band, make_map
from ucn.nn.transformer import MAX_REACH_CELLS, ConvolutionalSpatialTransformer

# Readings of so many numbers are made at a time.
_READINGS = 2**20

# Far more than any window can read; sums of a few such numbers are finite.
_MOST_THETA = 1e30

_BEFORE = MAX_REACH_CELLS
_AFTER = MAX_REACH_CELLS + 1  # a reading takes a cell and the next


class BandedTransformer:
    """A transformer over maps (h, w, C).

    Attributes:
        out_channels: of what it gives.
    """

    def __init__(self, transformer: ConvolutionalSpatialTransformer) -> None:
        """Takes over the weights of a transformer."""
        self.out_channels, channels, kernel, _ = transformer.weight.shape
        self._weight = transformer.weight.permute(2, 3, 1, 0).reshape(-1, self.out_channels).contiguous()
        self._bias = transformer.bias
        self._localiser = [part for part in transformer.localiser if isinstance(part, nn.Conv2d)]
        steps = torch.arange(kernel, dtype=torch.float32) - kernel // 2
        self._dy, self._dx = steps.repeat_interleave(kernel), steps.repeat(kernel)
        self._chunk = max(1, _READINGS // (kernel * kernel * channels))

    def __call__(self, rows: Tensor) -> Tensor:
        """(h, w, C) to (h, w, out_channels)."""
        h, w, channels = rows.shape
        # Zeros as far as a window can read: no reading has to ask whether it is on the map.
        table = rows.new_zeros(_BEFORE + h + _AFTER, _BEFORE + w + _AFTER, channels)
        levelled = make_map(h, w, channels, margin=1)
        found = make_map(h, w, self.out_channels)

        def level(first: int, stop: int) -> None:
            band = rows[first:stop]
            table[_BEFORE + first : _BEFORE + stop, _BEFORE : _BEFORE + w] = band
            length = torch.linalg.vector_norm(band, dim=-1, keepdim=True)
            scale = math.sqrt(channels) / length.clamp_min_(1e-6)
            torch.mul(band, scale, out=levelled[first + 1 : stop + 1])

        def transform(first: int, stop: int) -> None:
            theta = self._predict_theta(levelled[first : stop + 2]).reshape(-1, 4)
            cells = torch.arange(first * w, stop * w)
            target = found[first:stop].view(-1, self.out_channels)
            for start in range(0, len(cells), self._chunk):
                part = slice(start, start + self._chunk)
                self._read_and_combine(table, theta[part], cells[part], w, target[part])

        for_each_band(level, h, w)
        for_each_band(transform, h, w)
        return found

    def _predict_theta(self, levelled: Tensor) -> Tensor:
        """Matrices (n, w, 4) for rows (n + 2, w, C) of unit variance."""
        first, last = self._localiser
        hidden = F.conv2d(as_image(levelled), first.weight, first.bias, padding=(0, 1)).relu_()
        theta = as_rows(F.conv2d(hidden, last.weight, last.bias)).clone()
        theta[..., 0::3] += 1  # the identity
        # An image that is not finite must not read outside the table, nor two infinities make a NaN.
        return theta.nan_to_num_().clamp_(-_MOST_THETA, _MOST_THETA)

    def _read_and_combine(self, table: Tensor, theta: Tensor, cells: Tensor, w: int, target: Tensor) -> None:
        """Windows of cells (n,), moved by theta (n, 4), read and multiplied into the target (n, C')."""
        t11, t12, t21, t22 = theta.unbind(1)
        x, y = (
            torch.outer(along_x, self._dx)
            .add_(torch.outer(along_y, self._dy))
            .clamp_(-MAX_REACH_CELLS, MAX_REACH_CELLS)
            for along_x, along_y in ((t11, t12), (t21, t22))
        )
        columns, lines = x.floor(), y.floor()
        x.sub_(columns)
        y.sub_(lines)
        width = table.shape[1]
        corner = (cells // w + _BEFORE) * width + cells % w + _BEFORE
        places = lines.long().mul_(width).add_(columns.long()).add_(corner[:, None])
        places = torch.stack([places, places + 1, places + width, places + width + 1], dim=-1)
        before_x, before_y = 1 - x, 1 - y
        shares = torch.stack([before_x * before_y, x * before_y, before_x * y, x * y], dim=-1)
        readings = F.embedding_bag(
            places.view(-1, 4),
            table.view(-1, table.shape[-1]),
            per_sample_weights=shares.view(-1, 4),
            mode="sum",
        )
        torch.addmm(self._bias, readings.view(len(theta), -1), self._weight, out=target)
