"""Maps cut into bands of rows, which threads work through: what a layer writes, the next reads from a cache.

On a processor most of the time of an eager network goes neither into products nor into arithmetic, but into
memory: each layer writes a map of tens of megabytes to pages that are new to the process, and the next one
fetches it from afar. A band of some thousand cells stays in the caches of the core that works on it.

Maps are (h, w, C) here, the memory of one channels-last image.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ucn.runtime.threads import share

ROWS_MULTIPLE = 4
"""Bands begin at multiples of so many rows, so that pools of as many can be taken of each alone."""

# Fewer make convolutions slow, more leave the caches; 1000 to 2500 measured alike. The fewer, the more
# threads find work: with so many, an image of 640 × 480 has 16 bands, so that 16 threads are of use.
_BAND_CELLS = 1280
_LINE = 16  # float32 numbers in a line of a cache


def for_each_band(work: Callable[[int, int], None], h: int, w: int) -> None:
    """Calls `work(first, stop)` for bands of rows of a map of (h, w) cells, in threads.

    Which bands there are hangs on the size alone, so the number of threads changes no result; but for a map
    of one band, which torch's own threads share: how many they are may change its last digits.
    """
    share(lambda band: work(*band), cut_bands(h, w))


def cut_bands(h: int, w: int) -> list[tuple[int, int]]:
    """First rows, and those behind the last, of the bands of a map of (h, w) cells."""
    step = max(1, _BAND_CELLS // (w * ROWS_MULTIPLE)) * ROWS_MULTIPLE
    bands = [(first, min(h, first + step)) for first in range(0, h, step)]
    if len(bands) > 1 and len(bands) % 2:  # two threads, or four, would wait for one with the odd band
        first, stop = bands.pop()
        middle = first + max(1, (stop - first) // (2 * ROWS_MULTIPLE)) * ROWS_MULTIPLE
        bands += [(first, middle), (middle, stop)] if middle < stop else [(first, stop)]
    return bands


def make_map(h: int, w: int, channels: int, margin: int = 0) -> Tensor:
    """A map (h + 2 * margin, w, channels) of any values, but for rows of zeros above and below."""
    # NumPy asks the system for large pages, torch does not; small ones cost as much as a convolution.
    size = (h + 2 * margin) * w * channels
    memory = np.empty(size + _LINE, np.float32)
    # Products of numbers that lie otherwise in cache lines are slower, and rounded otherwise.
    first = -memory.ctypes.data % (4 * _LINE) // 4
    rows = torch.from_numpy(memory[first : first + size]).view(h + 2 * margin, w, channels)
    rows[:margin] = 0
    rows[margin + h :] = 0
    return rows


def as_image(rows: Tensor) -> Tensor:
    """(h, w, C) as a channels-last image (1, C, h, w) over the same memory."""
    return rows[None].permute(0, 3, 1, 2)


def as_rows(image: Tensor) -> Tensor:
    """A channels-last image (1, C, h, w) as (h, w, C), over the same memory where it is one."""
    return image[0].permute(1, 2, 0)
