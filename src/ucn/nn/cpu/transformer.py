"""The convolutional spatial transformer in bands of rows, without gradients.

A bilinear sample is a weighted sum of four rows of a table, which `embedding_bag` computes at the speed of
memory. The samples of a band are multiplied by the kernel while they are in a cache, so that the map of all
samples, k² times as large as the input, never exists.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.cpu.bands import allocate_map, as_image, as_rows, for_each_band
from ucn.nn.transformer import MAX_REACH_CELLS, ConvolutionalSpatialTransformer

_CHUNK_VALUES = 2**20  # sampled at a time

# Far beyond any window; sums of a few such values are still finite.
_MAX_THETA = 1e30

_PAD_BEFORE = MAX_REACH_CELLS
_PAD_AFTER = MAX_REACH_CELLS + 1  # a bilinear sample reads a cell and the next one


class BandedTransformer:
    """A convolutional spatial transformer over maps (h, w, C).

    Attributes:
        out_channels: number of output channels.
    """

    def __init__(self, transformer: ConvolutionalSpatialTransformer) -> None:
        """Takes the weights of a transformer."""
        self.out_channels, channels, kernel, _ = transformer.weight.shape
        self._weight = transformer.weight.permute(2, 3, 1, 0).reshape(-1, self.out_channels).contiguous()
        self._bias = transformer.bias
        self._localiser = [part for part in transformer.localiser if isinstance(part, nn.Conv2d)]
        steps = torch.arange(kernel, dtype=torch.float32) - kernel // 2
        self._dy, self._dx = steps.repeat_interleave(kernel), steps.repeat(kernel)
        self._chunk = max(1, _CHUNK_VALUES // (kernel * kernel * channels))

    def __call__(self, rows: Tensor) -> Tensor:
        """(h, w, C) to (h, w, out_channels)."""
        h, w, channels = rows.shape
        # Padded with zeros as far as a window can reach, so that no sample needs a bounds check.
        table = rows.new_zeros(_PAD_BEFORE + h + _PAD_AFTER, _PAD_BEFORE + w + _PAD_AFTER, channels)
        normalised = allocate_map(h, w, channels, margin=1)
        output = allocate_map(h, w, self.out_channels)

        def normalise(first: int, stop: int) -> None:
            band = rows[first:stop]
            table[_PAD_BEFORE + first : _PAD_BEFORE + stop, _PAD_BEFORE : _PAD_BEFORE + w] = band
            length = torch.linalg.vector_norm(band, dim=-1, keepdim=True)
            scale = math.sqrt(channels) / length.clamp_min_(1e-6)
            torch.mul(band, scale, out=normalised[first + 1 : stop + 1])

        def transform(first: int, stop: int) -> None:
            theta = self._predict_theta(normalised[first : stop + 2]).reshape(-1, 4)
            cells = torch.arange(first * w, stop * w)
            target = output[first:stop].view(-1, self.out_channels)
            for start in range(0, len(cells), self._chunk):
                part = slice(start, start + self._chunk)
                self._convolve_windows(table, theta[part], cells[part], w, target[part])

        for_each_band(normalise, h, w)
        for_each_band(transform, h, w)
        return output

    def _predict_theta(self, normalised: Tensor) -> Tensor:
        """Matrices (n, w, 4) for rows (n + 2, w, C) of unit variance."""
        first, last = self._localiser
        hidden = F.conv2d(as_image(normalised), first.weight, first.bias, padding=(0, 1)).relu_()
        theta = as_rows(F.conv2d(hidden, last.weight, last.bias)).clone()
        theta[..., 0::3] += 1  # the identity
        # Images that are not finite must not index outside the table, nor may inf - inf make a NaN.
        return theta.nan_to_num_().clamp_(-_MAX_THETA, _MAX_THETA)

    def _convolve_windows(self, table: Tensor, theta: Tensor, cells: Tensor, w: int, target: Tensor) -> None:
        """Convolves the windows of cells (n,), transformed by theta (n, 4), into the target (n, C')."""
        t11, t12, t21, t22 = theta.unbind(1)
        x, y = (
            torch.outer(along_x, self._dx)
            .add_(torch.outer(along_y, self._dy))
            .clamp_(-MAX_REACH_CELLS, MAX_REACH_CELLS)
            for along_x, along_y in ((t11, t12), (t21, t22))
        )
        left, top = x.floor(), y.floor()
        x.sub_(left)
        y.sub_(top)
        width = table.shape[1]
        centres = (cells // w + _PAD_BEFORE) * width + cells % w + _PAD_BEFORE
        corners = top.long().mul_(width).add_(left.long()).add_(centres[:, None])
        corners = torch.stack([corners, corners + 1, corners + width, corners + width + 1], dim=-1)
        left_weight, top_weight = 1 - x, 1 - y
        weights = torch.stack([left_weight * top_weight, x * top_weight, left_weight * y, x * y], dim=-1)
        samples = F.embedding_bag(
            corners.view(-1, 4),
            table.view(-1, table.shape[-1]),
            per_sample_weights=weights.view(-1, 4),
            mode="sum",
        )
        torch.addmm(self._bias, samples.view(len(theta), -1), self._weight, out=target)
