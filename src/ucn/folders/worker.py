"""What each process of `ucn extract` does: images in, shards of keypoints and descriptors out.

`FeatureExtractionWorker` streams shards, with its stages in parallel: threads read images and detect
keypoints, the calling thread runs the network, and one more thread writes. A GPU gets its next batch before
the last one ends. `BatchExtractor` is the stage of the network: it encodes images of one size together and
samples descriptors at their keypoints. With several scales it does so at each of them, and appends the
keypoints of the smaller ones.

Reader threads run torch single-threaded. Otherwise torch would split each of their operations over all cores,
and its helper threads, which spin while they wait, would take the cores from everyone else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.io import read_reduced_image
from ucn.errors import ConfigError, ImageReadError
from ucn.features.extractor import Extractor, has_own_keypoints
from ucn.features.lightglue import LearnedKeypoints, SizedKeypoints
from ucn.folders.detectors import (
    DEFAULT_DETECTOR,
    DETECTORS,
    PIXEL_DETECTORS,
    DetectedKeypoints,
    detect_keypoints,
)
from ucn.folders.shards import Shard, write_shard
from ucn.formats.hloc import CoarseMap, ImageFeatures, PackedFeatures, pack_features
from ucn.geometry.coords import cells_to_pixels, resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.consensus import CELL_PIXELS, pool_cells
from ucn.nn import MIN_SIDE
from ucn.nn.tiling import reduce_image
from ucn.runtime.threads import count_cores, start_threads
from ucn.types import FeatureMap, FloatArray

OWN_DETECTOR = "own"
"""The detector name for the keypoints that a method detects itself, where it does (DISK)."""
MAX_SCALES = 4
"""The most scales at which an image is encoded."""
MAX_THREADS = 16
"""The most reader threads; each holds an image of full size in memory."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ExtractSettings:
    """How features are extracted.

    Attributes:
        max_side: larger images are reduced to this longest side in pixels; None keeps them.
        max_keypoints: the most keypoints of an image.
        detector: one of `DETECTORS`, or `OWN_DETECTOR`.
        batch: images of one size that are encoded together.
        scales: sizes at which each image is encoded, relative to its first; they fall from 1.
    """

    max_side: int | None = 1024
    max_keypoints: int = 4096
    detector: str = DEFAULT_DETECTOR
    batch: int = 4
    scales: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        """Checks ranges."""
        legal = (*DETECTORS, OWN_DETECTOR)
        if self.detector not in legal:
            raise ConfigError(f"no detector '{self.detector[:80]}' (there are {', '.join(legal)})")
        for name, low in (("max_keypoints", 1), ("batch", 1), ("max_side", MIN_SIDE)):
            value = getattr(self, name)
            if value is not None and not low <= value <= 1_000_000:
                raise ConfigError(f"{name} must be in {low}..1,000,000, got {value}")
        falls = all(small < large for large, small in pairwise(self.scales))
        if not (
            1 <= len(self.scales) <= MAX_SCALES and self.scales[0] == 1 and falls and self.scales[-1] > 0
        ):
            raise ConfigError(
                f"scales must be at most {MAX_SCALES} positive numbers that fall from 1, such as 1, 0.5, "
                f"0.25, got {', '.join(f'{scale:g}' for scale in self.scales[:9]) or 'none'}"
            )

    def to_key(self) -> dict[str, Any]:
        """The settings as plain values, for files; without `scales` where there is one, as before them."""
        key = asdict(self)
        if key.pop("scales") != (1.0,):
            key["scales"] = [float(scale) for scale in self.scales]
        return key

    def count_keypoints(self, scale: float) -> int:
        """The most keypoints at a scale: they are as dense as at scale 1."""
        return max(1, round(self.max_keypoints * scale**2))


@dataclass(frozen=True)
class ResizedImage:
    """An image at the size at which it is encoded.

    Attributes:
        pixels: (3, H, W) in [0, 1]; in pinned memory where a GPU encodes it.
        image_hw: (H, W) of the file, upright.
        keypoints: in pixels of `pixels`; None before detection, and where the detector needs a feature map.
        scale: one of the settings' scales.
        reduced: the image at the smaller scales; empty before detection, and in a reduced image.
        orientation: with which EXIF stores it in the file.
    """

    pixels: Tensor
    image_hw: tuple[int, int]
    keypoints: DetectedKeypoints | None = None
    scale: float = 1.0
    reduced: tuple[ResizedImage, ...] = ()
    orientation: int = 1

    @property
    def hw(self) -> tuple[int, int]:
        """(H, W) of `pixels`."""
        return self.pixels.shape[-2], self.pixels.shape[-1]


def read_resized(path: Path, max_side: int | None) -> ResizedImage:
    """Reads an image and reduces it to a longest side in pixels; None keeps it.

    Raises:
        ImageReadError: it cannot be read, or a side is shorter than 32 px.
    """
    found = read_reduced_image(path, max_side)
    height, width = found.image_hw
    if min(height, width) < MIN_SIDE:
        raise ImageReadError(
            f"{path} must be at least {MIN_SIDE} px a side, got {width} × {height} (width × height); "
            "enlarge it first",
            path=path,
        )
    return ResizedImage(found.pixels, found.image_hw, orientation=found.orientation)


@dataclass
class _ShardInProgress:
    """A shard with its images by name, as far as they are done, and why others are missing."""

    shard: Shard
    packed: dict[str, Future[PackedFeatures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass
class _Batch:
    """Images of one size and one shard, by name."""

    target: _ShardInProgress
    images: dict[str, ResizedImage]
    is_last: bool


class FeatureExtractionWorker:
    """Extracts and writes shards, with its own threads while it runs."""

    def __init__(self, folder: Path, extractor: BatchExtractor, threads: int | None = None) -> None:
        """Starts nothing yet.

        Args:
            folder: of the images.
            extractor: runs in the thread that iterates over `run`.
            threads: that read images and detect keypoints; None takes one per core, up to `MAX_THREADS`.
        """
        self._folder, self._extractor = folder, extractor
        self._threads = threads or min(count_cores(), MAX_THREADS)

    def run(self, shards: Sequence[Shard]) -> Generator[Shard, None, None]:
        """Yields shards in order, each when its file is written."""
        readers, writer = start_threads(self._threads), ThreadPoolExecutor(1)
        try:
            writing: deque[Future[Shard]] = deque()
            for done in self._extract(shards, readers):
                writing.append(writer.submit(_write, done))
                if len(writing) > 1:  # bounds the finished shards in memory
                    yield writing.popleft().result()
            for shard in writing:
                yield shard.result()
        finally:
            for pool in (readers, writer):
                pool.shutdown(cancel_futures=True)

    def _extract(self, shards: Sequence[Shard], readers: ThreadPoolExecutor) -> Iterator[_ShardInProgress]:
        """Yields shards whose images are all encoded; each batch is submitted before the last is awaited."""
        previous: tuple[_Batch, PendingFeatures] | None = None
        for batch in self._make_batches(shards, readers):
            pending = self._extractor.submit(list(batch.images.values()))
            if previous is not None:
                yield from _collect_batch(*previous, readers)
            previous = batch, pending
        if previous is not None:
            yield from _collect_batch(*previous, readers)

    def _make_batches(self, shards: Sequence[Shard], readers: ThreadPoolExecutor) -> Iterator[_Batch]:
        """Yields batches: consecutive readable images of one size and one shard."""
        limit = self._extractor.settings.batch
        names = (name for shard in shards for name in shard.names)
        found = _run_ahead(readers, self._read, names, 2 * limit + self._threads)
        for shard in shards:
            target = _ShardInProgress(shard)
            images: dict[str, ResizedImage] = {}
            for name in shard.names:
                item = next(found)
                if isinstance(item, str):
                    target.failures[name] = item
                    continue
                first = next(iter(images.values()), item)
                if len(images) == limit or first.hw != item.hw:
                    yield _Batch(target, images, is_last=False)
                    images = {}
                images[name] = item
            yield _Batch(target, images, is_last=True)

    def _read(self, name: str) -> ResizedImage | str:
        """An image with keypoints, or why it cannot be read: one bad file must not stop a run."""
        try:
            image = read_resized(self._folder / name, self._extractor.settings.max_side)
        except ImageReadError as error:
            # With its name, not its path: the output must not depend on where the folder lies.
            return str(error).replace(str(self._folder / name), name)
        return self._extractor.detect(image)


def _run_ahead(
    pool: ThreadPoolExecutor, work: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int
) -> Iterator[_Result]:
    """Yields results in the order of items, with up to `ahead` items submitted before they are needed."""
    rest = iter(items)
    waiting = deque(pool.submit(work, item) for item in islice(rest, ahead))
    while waiting:
        first = waiting.popleft().result()
        waiting.extend(pool.submit(work, item) for item in islice(rest, 1))
        yield first


def _collect_batch(
    batch: _Batch, pending: PendingFeatures, pool: ThreadPoolExecutor
) -> Iterator[_ShardInProgress]:
    """Adds the features of a batch to its shard; yields the shard after its last batch."""
    for name, features in zip(batch.images, pending.result(), strict=True):
        batch.target.packed[name] = pool.submit(pack_features, features)
    if batch.is_last:
        yield batch.target


def _write(done: _ShardInProgress) -> Shard:
    packed = {name: item.result() for name, item in done.packed.items()}
    write_shard(done.shard.path, packed, done.failures)
    return done.shard


class PendingFeatures:
    """Features of a batch that a GPU may still be computing."""

    def __init__(self, levels: Sequence[Sequence[ImageFeatures]], device: torch.device | None) -> None:
        """Keeps features, by scale and image, whose arrays the work queued on the device so far will fill."""
        self._levels, self._event = levels, None
        if device is not None and device.type == "cuda":
            # A blocking event: otherwise waiting would keep a core busy that readers need.
            self._event = torch.cuda.Event(blocking=True)
            self._event.record(torch.cuda.current_stream(device))

    def result(self) -> list[ImageFeatures]:
        """Waits for the features and returns them."""
        if self._event is not None:
            self._event.synchronize()
        return [_join_levels(levels) for levels in zip(*self._levels, strict=True)]


class BatchExtractor:
    """Extracts features of batches of images with one extractor and one detector."""

    def __init__(self, extractor: Extractor | LearnedKeypoints, settings: ExtractSettings) -> None:
        """Keeps both.

        Raises:
            ConfigError: the detector is `OWN_DETECTOR`, and the extractor detects no keypoints; or there are
                several scales, and it has no feature map.
        """
        self._extractor, self.settings = extractor, settings
        if settings.detector == OWN_DETECTOR and not has_own_keypoints(extractor):
            raise ConfigError(
                f"detector '{OWN_DETECTOR}': this method has no keypoints of its own; choose "
                f"{', '.join(DETECTORS)}"
            )
        if len(settings.scales) > 1 and isinstance(extractor, LearnedKeypoints):
            raise ConfigError(
                "several scales need a method with a feature map, by which pairs choose theirs; LightGlue "
                f"matches keypoints of one scale: expected scales (1,), got {settings.scales}; leave them out"
            )
        self._encode_batch: Any = getattr(extractor, "encode", None)
        device = getattr(extractor, "device", None)
        is_cuda = isinstance(device, torch.device) and device.type == "cuda"
        self._gpu: torch.device | None = device if is_cuda and self._encode_batch is not None else None

    @torch.no_grad()
    def detect(self, image: ResizedImage) -> ResizedImage:
        """Reduces the image to all scales, and detects keypoints where that needs pixels alone.

        May run in other threads than `submit`. Images of one size have the same scales.
        """
        reduced = [
            self._detect_in_pixels(_reduce(image, scale))
            for scale in self.settings.scales[1:]
            if round(min(image.hw) * scale) >= MIN_SIDE
        ]
        return replace(self._detect_in_pixels(image), reduced=tuple(reduced))

    def _detect_in_pixels(self, image: ResizedImage) -> ResizedImage:
        if self.settings.detector in PIXEL_DETECTORS:
            count = self.settings.count_keypoints(image.scale)
            keypoints = detect_keypoints(self.settings.detector, image.pixels, None, count)
            image = replace(image, keypoints=keypoints)
        return image if self._gpu is None else replace(image, pixels=image.pixels.pin_memory())

    @torch.no_grad()
    def submit(self, images: Sequence[ResizedImage]) -> PendingFeatures:
        """Starts to extract features of images of one size, without waiting for a GPU where possible."""
        if not images:
            return PendingFeatures([], None)
        levels = [images, *zip(*(image.reduced for image in images), strict=True)]
        found = [self._extract_level(level) for level in levels]
        return PendingFeatures([features for features, _ in found], found[-1][1])

    def _extract_level(self, images: Sequence[ResizedImage]) -> tuple[list[ImageFeatures], torch.device]:
        """Features of images of one size at one scale, and the device that computes them."""
        if self._encode_batch is None:
            single = [self._extract_one(image) for image in images]
            return [features for features, _ in single], single[-1][1]
        maps: FeatureMap = self._encode_batch(self._stack([image.pixels for image in images]))
        keypoints = [
            image.keypoints or self._detect_in_map(image, maps[row], None) for row, image in enumerate(images)
        ]
        return _sample_features(maps, images, keypoints), maps.features.device

    def _extract_one(self, image: ResizedImage) -> tuple[ImageFeatures, torch.device]:
        """The same by an extractor that takes one image at a time, and may detect its own keypoints."""
        extracted = self._extractor.extract(image.pixels)
        if isinstance(extracted, SizedKeypoints):
            kept = extracted.select(slice(self.settings.max_keypoints))
            return _to_features(kept, image), kept.points.device
        own = resize_points(extracted.keypoints, resize_scale(extracted.image_hw, extracted.map.image_hw))
        keypoints = image.keypoints or self._detect_in_map(image, extracted.map, own)
        return _sample_features(extracted.map, [image], [keypoints])[0], extracted.map.features.device

    def _stack(self, images: Sequence[Tensor]) -> Tensor:
        """Images as a batch; on a GPU by asynchronous copies."""
        if self._gpu is None:
            return torch.stack(list(images))
        batch = torch.empty((len(images), *images[0].shape), device=self._gpu)
        for row, image in zip(batch, images, strict=True):
            row.copy_(image, non_blocking=True)
        return batch

    def _detect_in_map(
        self, image: ResizedImage, feature_map: FeatureMap, own: Tensor | None
    ) -> DetectedKeypoints:
        """Keypoints that need features; `own` are the extractor's, in pixels of the map's image."""
        count = self.settings.count_keypoints(image.scale)
        if self.settings.detector != OWN_DETECTOR or own is None:
            return detect_keypoints(self.settings.detector, image.pixels, feature_map, count)
        own = resize_points(own[:count], resize_scale(feature_map.image_hw, image.hw))
        points = np.ascontiguousarray(own.detach().float().cpu().numpy())
        return DetectedKeypoints(points, _score_ranks(len(points)))


def _reduce(image: ResizedImage, scale: float) -> ResizedImage:
    """An image at a smaller scale; its keypoints will be in pixels of the same file."""
    pixels = reduce_image(image.pixels, round(max(image.hw) * scale))
    return ResizedImage(pixels, image.image_hw, scale=scale, orientation=image.orientation)


def _join_levels(found: Sequence[ImageFeatures]) -> ImageFeatures:
    """The features of an image at all scales as one; the global descriptor is that of the first."""
    if len(found) == 1:
        return found[0]
    keypoints, descriptors, scores = (
        np.concatenate([getattr(features, name) for features in found])
        for name in ("keypoints", "descriptors", "scores")
    )
    return replace(
        found[0],
        keypoints=keypoints,
        descriptors=descriptors,
        scores=scores,
        levels=np.repeat(np.arange(len(found), dtype=np.uint8), [len(features) for features in found]),
        reduced=tuple(features.coarse for features in found[1:] if features.coarse is not None),
    )


def _score_ranks(count: int) -> FloatArray:
    """Scores of keypoints, strongest first, whose detector has other units."""
    return np.asarray(1 - 0.999 * np.arange(count, dtype=np.float32) / max(count, 1), np.float32)


def _to_features(found: SizedKeypoints, image: ResizedImage) -> ImageFeatures:
    """Keypoints of a method without a feature map; the mean of their descriptors is the image's."""
    points = resize_points(found.points, resize_scale(image.hw, image.image_hw))
    descriptors = found.descriptors.float()
    whole = F.normalize(descriptors.sum(dim=0), dim=0)
    arrays = (values.cpu().numpy() for values in (points, descriptors, whole))
    keypoints, own, global_descriptor = arrays
    return ImageFeatures(
        keypoints,
        own,
        _score_ranks(len(keypoints)),
        image.image_hw,
        global_descriptor,
        orientation=image.orientation,
    )


def _sample_features(
    maps: FeatureMap, images: Sequence[ResizedImage], keypoints: Sequence[DetectedKeypoints]
) -> list[ImageFeatures]:
    """Samples the descriptors of a batch at its keypoints, with one copy each to and from a GPU."""
    points = np.zeros((len(images), max(len(item.points) for item in keypoints), 2), np.float32)
    for row, item in zip(points, keypoints, strict=True):
        row[: len(item.points)] = item.points
    # Some extractors resize images themselves.
    encoded = resize_points(torch.from_numpy(points), resize_scale(images[0].hw, maps.image_hw))
    descriptors = _to_cpu(sample_descriptors(maps, _to_device(encoded, maps.features.device)))
    global_descriptors = _to_cpu(F.normalize(maps.features.float().mean(dim=(2, 3)), dim=1))  # (B, D)
    cells = max(1, round(CELL_PIXELS / maps.stride))
    coarse = _to_cpu(torch.stack([pool_cells(maps[row], cells) for row in range(len(images))]))
    return [
        ImageFeatures(
            resize_points(torch.from_numpy(item.points), resize_scale(image.hw, image.image_hw)).numpy(),
            descriptors[row, : len(item.points)],
            item.scores,
            image.image_hw,
            global_descriptors[row],
            _place_coarse(coarse[row], maps, cells, image.image_hw),
            orientation=image.orientation,
        )
        for row, (image, item) in enumerate(zip(images, keypoints, strict=True))
    ]


def _place_coarse(
    descriptors: FloatArray, maps: FeatureMap, cells: int, image_hw: tuple[int, int]
) -> CoarseMap:
    """Descriptors (D, h, w) of coarse cells, with their places in an image of another size."""
    scale = resize_scale(maps.image_hw, image_hw)
    middle = torch.full((2,), (cells - 1) / 2, dtype=torch.float64)  # of the first one, in feature cells
    first = resize_points(cells_to_pixels(middle, maps.stride, maps.offset), scale).tolist()
    step = maps.stride * cells
    return CoarseMap(descriptors, (first[0], first[1]), (step * scale[0], step * scale[1]))


def _to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copies values of the CPU to a device, asynchronously to a GPU."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _to_cpu(values: Tensor) -> FloatArray:
    """Copies values to an array of the CPU, asynchronously from a GPU: valid after its queued work."""
    values = values.detach().float()
    if values.is_cuda:
        target = torch.empty_like(values, device="cpu", pin_memory=True)  # with the same strides
        values = target.copy_(values, non_blocking=True)
    return values.cpu().numpy()
