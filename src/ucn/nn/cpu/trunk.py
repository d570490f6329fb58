"""The GoogLeNet trunk in bands of rows, without gradients, at the strides of the paper."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.cpu.bands import allocate_map, as_image, as_rows, for_each_band
from ucn.nn.cpu.transformer import BandedTransformer
from ucn.nn.folding import JoinedInception
from ucn.nn.googlenet import MEAN_BGR, GoogLeNetTrunk
from ucn.nn.transformer import ConvolutionalSpatialTransformer

STRIDES = (2, 2, 1, 1)
"""The only strides that this trunk supports."""

# Returns rows first..stop-1 of a map; one row beyond either end is zero.
_ReadRows = Callable[[int, int], Tensor]
# Receives rows first..stop-1 (rows, w, 512) of the trunk's last map.
_TakeBand = Callable[[int, int, Tensor], None]


class BandedTrunk:
    """A trunk that passes on its last map band by band, so that it never exists as a whole."""

    def __init__(self, trunk: GoogLeNetTrunk) -> None:
        """Takes the weights of a folded trunk with strides (2, 2, 1, 1)."""
        mean = torch.tensor(MEAN_BGR).flip(0)
        self._mean = mean / 255  # RGB, for pixels in [0, 1]
        self._first = nn.Conv2d(3, trunk.conv1.out_channels, 7, stride=2, padding=3)
        self._first.weight = _freeze(trunk.conv1.weight.flip(1) * 255)
        self._first.bias = trunk.conv1.bias
        self._reduce, self._second = trunk.conv2_reduce, trunk.conv2
        blocks: list[nn.Module] = [trunk.inception_3a, trunk.inception_3b, trunk.inception_4a]
        self._inceptions = [BandedInception(block) for block in blocks if isinstance(block, JoinedInception)]

    def run(self, image: Tensor, start: Callable[[int, int], _TakeBand]) -> None:
        """Computes the features of one image (3, H, W).

        Args:
            image: RGB in [0, 1].
            start: called with the numbers of rows and columns; returns a function that receives the bands,
                in any order and from several threads.
        """
        stem = self._run_stem(image)  # (h + 4, w, 192)
        h, w = stem.shape[0] - 4, stem.shape[1]
        inception_3a, inception_3b, inception_4a = self._inceptions
        write = inception_3a.prepare(lambda first, stop: _pool(stem[first + 1 : stop + 3]), h, w)
        after_3a = allocate_map(h, w, inception_3a.width, margin=1)
        for_each_band(lambda first, stop: write(first, stop, after_3a[first + 1 : stop + 1]), h, w)
        write = inception_3b.prepare(lambda first, stop: after_3a[first + 1 : stop + 1], h, w)
        after_3b = allocate_map(h, w, inception_3b.width, margin=2)
        for_each_band(lambda first, stop: write(first, stop, after_3b[first + 2 : stop + 2]), h, w)
        write = inception_4a.prepare(lambda first, stop: _pool(after_3b[first + 1 : stop + 3]), h, w)
        take = start(h, w)

        def finish(first: int, stop: int) -> None:
            band = after_3b.new_empty(stop - first, w, inception_4a.width)
            write(first, stop, band)
            take(first, stop, band)

        for_each_band(finish, h, w)

    def _run_stem(self, image: Tensor) -> Tensor:
        """All layers before pool2: rows (h + 4, w, 192), with a margin of two rows of zeros."""
        height, width = image.shape[1:]
        colours = allocate_map(height, width, 3, margin=3)
        torch.sub(image.permute(1, 2, 0), self._mean, out=colours[3 : height + 3])
        halved = (height + 1) // 2
        h, w = (_count_pooled((size + 1) // 2) for size in (height, width))
        reduced = allocate_map(h, w, self._reduce.out_channels, margin=1)
        output = allocate_map(h, w, self._second.out_channels, margin=2)

        def reduce(first: int, stop: int) -> None:
            last = min(halved, 2 * stop + 1)  # windows of pool1 are three rows high and overlap by one
            band = _pool_by_two(_convolve(self._first, colours[4 * first : 2 * last + 5]))
            _normalise_responses(band.clamp_min_(0))
            torch.clamp_min(_convolve(self._reduce, band), 0, out=reduced[first + 1 : stop + 1])

        def convolve(first: int, stop: int) -> None:
            band = _convolve(self._second, reduced[first : stop + 2]).clamp_min_(0)
            output[first + 2 : stop + 2] = _normalise_responses(band)

        for_each_band(reduce, h, w)
        for_each_band(convolve, h, w)
        return output


class BandedInception:
    """An inception block; its 3×3 and 5×5 branches may be convolutional spatial transformers.

    Attributes:
        width: number of output channels.
    """

    def __init__(self, block: JoinedInception) -> None:
        """Takes the weights of a folded block."""
        own, *self._widths = block.widths
        # The reductions are read beyond their band, the 1×1 branch is not.
        self._own, self._reduce = (
            _slice_outputs(block.entry, part) for part in (slice(own), slice(own, None))
        )
        self._projection = block.pool_projection
        self._branches = [_make_branch(branch) for branch in (block.conv_3x3, block.conv_5x5)]
        widths = [self._own.out_channels, self._projection.out_channels]
        self.width = sum(widths) + sum(branch.out_channels for branch in self._branches)

    def prepare(self, read: _ReadRows, h: int, w: int) -> Callable[[int, int, Tensor], None]:
        """Reduces the whole input; returns a function that writes rows first..stop-1 of the output."""
        margins = (1, 2)
        reduced = [
            allocate_map(h, w, width, margin) for width, margin in zip(self._widths, margins, strict=True)
        ]

        def reduce(first: int, stop: int) -> None:
            parts = torch.split(_convolve(self._reduce, read(first, stop)), self._widths, dim=-1)
            for part, rows, margin in zip(parts, reduced, margins, strict=True):
                torch.clamp_min(part, 0, out=rows[first + margin : stop + margin])

        for_each_band(reduce, h, w)
        read_branches = [
            _prepare_branch(branch, rows, margin)
            for branch, rows, margin in zip(self._branches, reduced, margins, strict=True)
        ]

        def write(first: int, stop: int, target: Tensor) -> None:
            rows = read(first - 1, stop + 1)
            parts = [_convolve(self._own, rows[1:-1])]
            parts += [read_branch(first, stop) for read_branch in read_branches]
            parts.append(_convolve(self._projection, _pool(rows)))
            end = 0
            for part in parts:
                torch.clamp_min(part, 0, out=target[..., end : end + part.shape[-1]])
                end += part.shape[-1]

        return write


def _freeze(weight: Tensor) -> nn.Parameter:
    memory_format = torch.channels_last if weight.ndim == 4 else torch.preserve_format
    return nn.Parameter(weight.contiguous(memory_format=memory_format), requires_grad=False)


def _slice_outputs(convolution: nn.Conv2d, part: slice) -> nn.Conv2d:
    """A slice of the outputs of a 1×1 convolution."""
    assert convolution.bias is not None
    weight, bias = convolution.weight[part], convolution.bias[part]
    part_convolution = nn.Conv2d(weight.shape[1], weight.shape[0], 1)
    part_convolution.weight, part_convolution.bias = _freeze(weight), _freeze(bias)
    return part_convolution


def _make_branch(branch: nn.Module) -> nn.Conv2d | BandedTransformer:
    if isinstance(branch, ConvolutionalSpatialTransformer):
        return BandedTransformer(branch)
    assert isinstance(branch, nn.Conv2d)
    return branch


def _prepare_branch(branch: nn.Conv2d | BandedTransformer, rows: Tensor, margin: int) -> _ReadRows:
    """A reader of a branch over reduced rows with margins; a transformer needs all rows at once."""
    if isinstance(branch, BandedTransformer):
        transformed = branch(rows[margin : len(rows) - margin])
        return lambda first, stop: transformed[first:stop]
    return lambda first, stop: _convolve(branch, rows[first : stop + 2 * margin])


def _convolve(convolution: nn.Conv2d, rows: Tensor) -> Tensor:
    """Convolution of rows that are padded above and below, but not at the sides."""
    sides = convolution.padding[1]
    assert isinstance(sides, int)
    image = as_image(rows)
    return as_rows(
        F.conv2d(image, convolution.weight, convolution.bias, convolution.stride, padding=(0, sides))
    )


def _pool(rows: Tensor) -> Tensor:
    """Maximum (n, w, C) over 3×3 cells of non-negative rows (n + 2, w, C), with zeros at the sides."""
    columns = torch.maximum(rows[:-2], rows[1:-1])
    torch.maximum(columns, rows[2:], out=columns)
    if columns.shape[1] == 1:
        return columns
    pairs = torch.maximum(columns[:, :-1], columns[:, 1:])
    torch.maximum(pairs[:, :-1], pairs[:, 1:], out=columns[:, 1:-1])
    columns[:, 0] = pairs[:, 0]
    columns[:, -1] = pairs[:, -1]
    return columns


def _count_pooled(size: int) -> int:
    """Windows of three cells at stride 2, of which the last may extend beyond the edge."""
    return max(0, -(-(size - 3) // 2)) + 1


def _pool_by_two(rows: Tensor) -> Tensor:
    """Max pooling over 3×3 cells at stride 2 of rows (n, w, C), sizes rounded up."""
    for axis in (0, 1):
        count = _count_pooled(rows.shape[axis])
        parts = [rows[start::2] if axis == 0 else rows[:, start::2] for start in range(3)]
        pooled = parts[0].narrow(axis, 0, count).clone(memory_format=torch.contiguous_format)
        for part in parts[1:]:
            length = min(count, part.shape[axis])  # the last window may be cut off by the edge
            target = pooled.narrow(axis, 0, length)
            torch.maximum(target, part.narrow(axis, 0, length), out=target)
        rows = pooled
    return rows


def _normalise_responses(rows: Tensor) -> Tensor:
    """`local_response_norm` of rows (n, w, C), in place."""
    flat = rows.view(-1, rows.shape[-1])
    squares = flat.new_zeros(flat.shape[0], flat.shape[1] + 4)
    torch.mul(flat, flat, out=squares[:, 2:-2])
    pairs = squares[:, :-1] + squares[:, 1:]
    scale = (pairs[:, :-3] + pairs[:, 2:-1]).add_(squares[:, 4:])
    scale.mul_(1e-4 / 5).add_(1.0)
    flat.mul_(scale.mul_(scale.sqrt()).rsqrt_())
    return rows
