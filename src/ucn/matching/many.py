"""Many images: features shared between pairs in bounded memory, and the images of a folder or a video."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any

from torch import Tensor

from ucn.data.io import to_tensor
from ucn.files.recent import RecentItems
from ucn.matching.tracking import open_frames
from ucn.types import Features, ImageLike

CACHE_BYTES = 2**30
"""Memory for shared features: about 40 images of 1024 × 768 pixels."""
MAX_IMAGES = 1_000_000
"""The most images of a folder, or frames of a video, that `iterate_images` yields."""

CountReport = Callable[[int, int], None]
"""Called with the numbers of items done and in all."""


class SharedFeatures:
    """Features of the images used last, so that one that recurs is not encoded again.

    Files are told apart by their paths, images in memory by their pixels: an array may be filled anew.
    """

    def __init__(self, extract: Callable[[ImageLike], Features], max_bytes: int) -> None:
        """Holds nothing yet.

        Args:
            extract: as `Matcher.extract`.
            max_bytes: of features; the last two are kept whatever their size.

        Raises:
            ValueError: `max_bytes` is below 0.
        """
        if max_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, got {max_bytes}")
        self._extract = extract
        self._held: RecentItems[Hashable, Features] = RecentItems(
            max_bytes=max_bytes, count_bytes=_count_bytes, min_items=2
        )

    def get(self, image: ImageLike | Features) -> Features:
        """The features of an image, extracted where they are not held; given ones as they are."""
        if isinstance(image, Features):
            return image
        if isinstance(image, (str, Path)):
            return self._held.get_or_make(str(Path(image)), lambda: self._extract(image))
        pixels = to_tensor(image)
        return self._held.get_or_make(_digest(pixels), lambda: self._extract(pixels))


def _digest(pixels: Tensor) -> Hashable:
    content = pixels.detach().cpu().contiguous().numpy()
    return tuple(pixels.shape), hashlib.blake2b(content.data.cast("B"), digest_size=16).digest()


def _count_bytes(features: Features) -> int:
    tensors = (features.map.features, features.keypoints, features.grey, features.image)
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def split_pair(item: Any, number: int) -> tuple[ImageLike | Features, ImageLike | Features]:
    """The two images of a pair; `number` counts pairs from 1.

    Raises:
        TypeError: it is not a pair.
    """
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        count = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
        raise TypeError(
            f"pairs must hold (image0, image1), got a {type(item).__name__}{count} as pair {number}"
        )
    return item[0], item[1]


def count_items(items: Iterable[Any], done: int) -> int:
    """Number of items; `done` where they have no length, or another one than their number."""
    return max(len(items), done) if isinstance(items, Sized) else done


def iterate_images(path: str | Path, *, max_images: int = MAX_IMAGES) -> Iterator[tuple[Path, Tensor]]:
    """Reads the images of a folder, in the natural order of their names, or the frames of a video.

    Each is read when it is asked for. Sub-folders are not searched.

    Args:
        path: a folder or a video file.
        max_images: stops after so many.

    Yields:
        The file, or for a frame its number below the video's path, and the image (3, H, W) float32 in [0, 1].

    Raises:
        DataError: there are no images, the video is damaged, or an image is too small or too large.
        ImageReadError: an image cannot be read.
        ValueError: `max_images` is below 1.
    """
    if max_images < 1:
        raise ValueError(f"max_images must be at least 1, got {max_images}")
    frames = open_frames(Path(path), max_images)
    return ((frames.frame_path(i), frames.read(i)) for i in range(min(len(frames), max_images)))
