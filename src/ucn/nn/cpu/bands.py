"""Feature maps in bands of rows, which threads process in parallel.

On a CPU most of the time of an eager network goes into memory traffic and not into arithmetic: each layer
writes a map of tens of megabytes to pages that are new to the process, and the next layer reads it back from
main memory. A band of some thousand cells stays in the caches of the core that works on it.

Maps are (h, w, C) here: the memory layout of one channels-last image.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ucn.runtime.threads import share

ROWS_MULTIPLE = 4
"""Bands start at multiples of this many rows, so that each can be pooled 4×4 on its own."""

# Smaller bands make convolutions slow, larger ones exceed the caches; 1000 to 2500 cells took the same time.
# At this size an image of 640 × 480 has 16 bands, enough for 16 threads.
_BAND_CELLS = 1280
_CACHE_LINE = 16  # float32 values


def for_each_band(work: Callable[[int, int], None], h: int, w: int) -> None:
    """Calls `work(first, stop)` for bands of rows of a map of (h, w) cells, in threads.

    Bands depend on the size alone, so the number of threads does not change the result. The exception is a
    map of a single band: torch's own threads share it, and their number may change the last digits.
    """
    share(lambda band: work(*band), cut_bands(h, w))


def cut_bands(h: int, w: int) -> list[tuple[int, int]]:
    """Bands of a map of (h, w) cells, as (first row, row after the last)."""
    step = max(1, _BAND_CELLS // (w * ROWS_MULTIPLE)) * ROWS_MULTIPLE
    bands = [(first, min(h, first + step)) for first in range(0, h, step)]
    if len(bands) > 1 and len(bands) % 2:  # an odd last band would leave all but one thread idle
        first, stop = bands.pop()
        middle = first + max(1, (stop - first) // (2 * ROWS_MULTIPLE)) * ROWS_MULTIPLE
        bands += [(first, middle), (middle, stop)] if middle < stop else [(first, stop)]
    return bands


def allocate_map(h: int, w: int, channels: int, margin: int = 0) -> Tensor:
    """An uninitialised map (h + 2 * margin, w, channels) whose margins above and below are zero."""
    # NumPy asks the system for huge pages, torch does not; page faults cost as much as a convolution.
    size = (h + 2 * margin) * w * channels
    memory = np.empty(size + _CACHE_LINE, np.float32)
    # Products of values that straddle cache lines are slower, and rounded differently.
    first = -memory.ctypes.data % (4 * _CACHE_LINE) // 4
    rows = torch.from_numpy(memory[first : first + size]).view(h + 2 * margin, w, channels)
    rows[:margin] = 0
    rows[margin + h :] = 0
    return rows


def as_image(rows: Tensor) -> Tensor:
    """(h, w, C) as a channels-last image (1, C, h, w) over the same memory."""
    return rows[None].permute(0, 3, 1, 2)


def as_rows(image: Tensor) -> Tensor:
    """A channels-last image (1, C, h, w) as (h, w, C) over the same memory."""
    return image[0].permute(1, 2, 0)
