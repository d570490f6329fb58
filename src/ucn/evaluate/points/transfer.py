"""NN transfer on the benchmarks whose data sets have training images with named parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ucn.data.catalogue import Option, find_info, list_data, open_data
from ucn.data.io import read_image
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair, PreparedPair
from ucn.evaluate.core.cache import PredictionCache, Record, digest_data
from ucn.evaluate.core.predictions import Progress, Task, predict_missing
from ucn.evaluate.points.predictions import FinderMethod
from ucn.features.extractor import Extractor
from ucn.features.method import DenseMethod, LoadedMethods
from ucn.geometry.coords import resize_points, resize_scale
from ucn.paper.transfer import (
    SIDE,
    SQUARES,
    Box,
    PartGallery,
    UnboundTransfer,
    compute_object_descriptor,
    from_relative,
    to_relative,
)

VERSION = 1
"""Part of every key: raise it where code changes what is described or copied."""

# Data sets with bounding boxes of objects; in the others an image is the object.
_WITH_BOXES: Mapping[str, Mapping[str, Option]] = {"cub": {"crop": True}}


@dataclass(frozen=True, eq=False)
class PartTransfer:
    """Finds points by copying parts of training images; a `PointFinder`.

    Attributes:
        extractor: extracts features of objects.
        gallery: the training images.
        boxes: (left, top, right, bottom) of test images by name; those without are whole objects.
        images: of a pair whose features it extracts: image 1 only.
    """

    extractor: Extractor
    gallery: PartGallery
    boxes: Mapping[str, Box]
    images: int = 1

    @torch.no_grad()
    def find(self, pair: BenchmarkPair, prepared: PreparedPair) -> Tensor:
        """The parts of a pair in its image 1, in pixels of the prepared image: (N, 2)."""
        parts, data = prepared.sample.parts, pair.data
        if parts is None or not isinstance(data, KeypointData):
            raise DataError(f"{pair.name}: its points are not named parts, so they cannot be copied")
        name = data.pair_name(pair.index).split("--")[-1]
        image = pair.read().image1
        size_hw = (image.shape[-2], image.shape[-1])
        box = self.boxes.get(name, whole_box(size_hw))
        kind = _name_kind(data, data.pair_class(pair.index))
        descriptor = compute_object_descriptor(self.extractor, image, box)
        found = self.gallery.transfer(descriptor, kind, parts)
        left, top, right, bottom = prepared.content1
        scale = resize_scale(size_hw, (bottom - top, right - left))
        moved = resize_points(from_relative(found, box), scale)
        return moved + moved.new_tensor([left, top])


def whole_box(size_hw: tuple[int, int]) -> Box:
    """The box of an image that is all object."""
    return 0.0, 0.0, float(size_hw[1] - 1), float(size_hw[0] - 1)


def add_training_images(
    loaded: LoadedMethods[DenseMethod],
    benchmark: str,
    pairs: Sequence[BenchmarkPair],
    cache: Path,
    progress: Progress | None = None,
) -> LoadedMethods[DenseMethod]:
    """Gives NN transfer the training images of a benchmark; where there are none, the method is skipped.

    Args:
        loaded: of `Registry.load_dense`.
        benchmark: its name.
        pairs: all its pairs.
        cache: folder of predictions, in which descriptors of training images are kept too.
        progress: called with (done, all) after each training image.
    """
    reason = _explain_unavailable(benchmark, pairs)
    bound: LoadedMethods[DenseMethod] = LoadedMethods(skipped=dict(loaded.skipped))
    for method in loaded.methods:
        if not isinstance(method.matcher, UnboundTransfer):
            bound.methods.append(method)
        elif reason:
            bound.skipped[method.name] = reason
        else:
            bound.methods.append(_bind(method, benchmark, pairs[0].data.root, cache, progress))
    return bound


def _explain_unavailable(benchmark: str, pairs: Sequence[BenchmarkPair]) -> str:
    """Why parts cannot be copied on a benchmark; empty where they can."""
    data = pairs[0].data if pairs else None
    if not isinstance(data, KeypointData) or benchmark not in {info.name for info in list_data()}:
        return f"{benchmark} has no named parts that could be copied"
    if benchmark == "own" or "train" not in find_info(benchmark).splits:
        return f"{benchmark} has no training images to copy parts from"
    if data.mirror_table(data.pair_class(pairs[0].index)) is None:
        return f"{benchmark} does not name its parts"
    return ""


def _bind(
    method: DenseMethod, benchmark: str, root: Path, cache: Path, progress: Progress | None
) -> DenseMethod:
    """The method with its gallery; the training images become a part of its key."""
    options = _WITH_BOXES.get(benchmark, {})
    training = _open(benchmark, root, "train", options)
    boxes: dict[str, Box] = {}
    if options:
        test = _open(benchmark, root, "test", options)
        found = ((example.name, test.keypoints(example).box) for example in test.examples)
        boxes = {name: box for name, box in found if box is not None}
    settings = {"version": VERSION, "side": SIDE, "squares": SQUARES}
    key = {**method.key, **settings, "training": _digest_training(training)}
    records = PredictionCache(cache / benchmark, "training", key)
    gallery = _build_gallery(method.extractor, training, records, bool(options), progress)
    finder = PartTransfer(method.extractor, gallery, boxes)
    metadata = {**method.metadata(), "key": key}
    return FinderMethod(**metadata, extractor=method.extractor, finder=finder)


def _digest_training(data: KeypointData) -> str:
    """A hash of names and sizes of the training images, and of their parts and boxes."""
    digest = hashlib.sha256(digest_data((e.name, (e.image,)) for e in data.examples).encode())
    for example in data.examples:
        keypoints = data.keypoints(example)
        digest.update(keypoints.points.tobytes() + keypoints.is_visible.tobytes())
        digest.update(repr(keypoints.box).encode())
    return digest.hexdigest()


def _open(benchmark: str, root: Path, split: str, options: Mapping[str, Option]) -> KeypointData:
    data = open_data(benchmark, root, split, dict(options))
    if not isinstance(data, KeypointData):
        raise DataError(f"{root}: expected images with parts, got {type(data).__name__}")
    return data


def _build_gallery(
    extractor: Extractor,
    data: KeypointData,
    cache: PredictionCache,
    use_boxes: bool,
    progress: Progress | None,
) -> PartGallery:
    rows = range(len(data.examples))
    predict_missing(partial(_describe, extractor, data, use_boxes), rows, [cache], progress=progress)
    records = [cache.get(row) for row in rows]
    count = max(len(record["is_visible"]) for record in records)
    parts = torch.zeros(len(records), count, 2)
    is_visible = torch.zeros(len(records), count, dtype=torch.bool)
    for row, record in enumerate(records):
        own = len(record["is_visible"])
        parts[row, :own] = torch.from_numpy(record["parts"])
        is_visible[row, :own] = torch.from_numpy(record["is_visible"])
    return PartGallery(
        descriptors=torch.from_numpy(np.stack([record["descriptor"] for record in records])).float(),
        parts=parts,
        is_visible=is_visible,
        kinds=[_name_kind(data, example.category) for example in data.examples],
    )


@torch.no_grad()
def _describe(extractor: Extractor, data: KeypointData, use_boxes: bool, task: Task) -> list[Record]:
    """The descriptor and the parts of a training image."""
    example = data.examples[task.pair]
    if use_boxes:
        image, keypoints = read_image(example.image), data.keypoints(example)
    else:
        view = data.read_view(example)
        image, keypoints = view.image, replace(view.keypoints, box=None)
    box = keypoints.box or whole_box((image.shape[-2], image.shape[-1]))
    points = torch.from_numpy(np.nan_to_num(keypoints.points).astype(np.float32))
    descriptor = compute_object_descriptor(extractor, image, box).numpy().astype(np.float16)
    parts = to_relative(points, box).numpy()
    return [{"descriptor": descriptor, "parts": parts, "is_visible": keypoints.is_visible}]


def _name_kind(data: KeypointData, category: str) -> str:
    """Classes with the same part names are one kind: all birds are, but a car is no aeroplane."""
    return "/".join(data.part_names_of(category)) or category
