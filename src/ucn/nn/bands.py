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

from ucn.threads import share

ROWS_MULTIPLE = 4
"""Bands begin at multiples of so many rows, so that pools of as many can be taken of each alone."""

# Fewer make convolutions slow, more leave the caches; 1000 to 2500 measured alike.
_BAND_CELLS = 2048
_LINE = 16  # float32 numbers in a line of a cache


def for_each_band(work: Callable[[int, int], None], h: int, w: int) -> None:
    """Calls `work(first, stop)` for bands of rows of a map of (h, w) cells, in threads.

    Which bands there are hangs on the size alone, so the number of threads changes no result; but for a map
    of one band, which torch's own threads share: how many they are may change its last digits.
    """
    step = max(1, _BAND_CELLS // (w * ROWS_MULTIPLE)) * ROWS_MULTIPLE
    bands = [(first, min(h, first + step)) for first in range(0, h, step)]
    share(lambda band: work(*band), bands)


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
