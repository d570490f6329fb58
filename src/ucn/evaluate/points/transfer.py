"""NN transfer on the benchmarks whose sets have training images with named parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucn.data.catalogue import Option, find_info, list_data, open_data
from ucn.data.io import read_image
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.sets.semantic.parts import Example
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import Entry
from ucn.evaluate.core.cache import RecordStore, digest_data
from ucn.evaluate.core.methods import LoadedMethods, Method
from ucn.evaluate.core.preparation import Prepared
from ucn.features.extractor import Extractor
from ucn.geometry.coords import resize_points, resize_scale
from ucn.paper.transfer import (
    SIDE,
    SQUARES,
    Box,
    PartGallery,
    describe_object,
    from_relative,
    to_relative,
)

VERSION = 1
"""Goes into every key: raise it where code changes what is described or copied."""

# Sets that tell boxes of objects; in the others an image is the object.
_WITH_BOXES: Mapping[str, Mapping[str, Option]] = {"cub": {"crop": True}}


@dataclass(frozen=True, eq=False)
class PartTransfer:
    """Answers by copying parts of training images.

    Attributes:
        extractor: describes objects.
        gallery: the training images.
        boxes: (left, top, right, bottom) of test images by name; those without are objects as they are.
        images: that it describes of a pair: image 0 is not looked at.
    """

    extractor: Extractor
    gallery: PartGallery
    boxes: Mapping[str, Box]
    images: int = 1

    @torch.no_grad()
    def find(self, entry: Entry, prepared: Prepared) -> Tensor:
        """Where the parts of a pair lie in its image 1, in pixels as it is shown: (N, 2)."""
        shown, data = prepared.sample, entry.data
        if shown.parts is None or not isinstance(data, KeypointData):
            raise DataError(f"{entry.name}: its points are no named parts, so none can be copied")
        name = data.pair_name(entry.index).split("--")[-1]
        image = data.read(entry.index).image1
        size_hw = (image.shape[-2], image.shape[-1])
        box = self.boxes.get(name, whole_box(size_hw))
        kind = _name_kind(data, data.pair_class(entry.index))
        found = self.gallery.transfer(describe_object(self.extractor, image, box), kind, shown.parts)
        left, top, right, bottom = prepared.content1
        scale = resize_scale(size_hw, (bottom - top, right - left))
        moved = resize_points(from_relative(found, box), scale)
        return moved + moved.new_tensor([left, top])


def whole_box(size_hw: tuple[int, int]) -> Box:
    """The box of an image that is all object."""
    return 0.0, 0.0, float(size_hw[1] - 1), float(size_hw[0] - 1)


def bind_transfers(
    loaded: LoadedMethods,
    benchmark: str,
    entries: Sequence[Entry],
    cache: Path,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedMethods:
    """Gives methods that copy parts the training images of a benchmark; where it has none, they are skipped.

    Args:
        loaded: of `load_methods`.
        benchmark: its name.
        entries: all its pairs.
        cache: folder of predictions, in which descriptions of training images are kept.
        progress: called with (done, all) after each training image.
    """
    bound = LoadedMethods(skipped=dict(loaded.skipped))
    for method in loaded.methods:
        reason = _find_obstacle(benchmark, entries) if method.is_transfer else ""
        if reason:
            bound.skipped[method.name] = reason
        else:
            is_bound = not method.is_transfer
            bound.methods.append(method if is_bound else _bind(method, benchmark, entries, cache, progress))
    return bound


def _find_obstacle(benchmark: str, entries: Sequence[Entry]) -> str:
    """Why parts cannot be copied on a benchmark; empty where they can."""
    data = entries[0].data if entries else None
    if not isinstance(data, KeypointData) or benchmark not in {info.name for info in list_data()}:
        return f"{benchmark} has no named parts that could be copied"
    if "train" not in find_info(benchmark).splits:
        return f"{benchmark} has no training images to copy parts from"
    if data.mirror_table(data.pair_class(entries[0].index)) is None:
        return f"{benchmark} does not say which part is which"
    return ""


def _bind(
    method: Method,
    benchmark: str,
    entries: Sequence[Entry],
    cache: Path,
    progress: Callable[[int, int], None] | None,
) -> Method:
    """The method with its gallery; the training images become a part of its key."""
    root = entries[0].data.root
    options = _WITH_BOXES.get(benchmark, {})
    training = _open(benchmark, root, "train", options)
    boxes: dict[str, Box] = {}
    if options:
        test = _open(benchmark, root, "test", options)
        found = ((example.name, test.keypoints(example).box) for example in test.examples)
        boxes = {name: box for name, box in found if box is not None}
    settings = {"version": VERSION, "side": SIDE, "squares": SQUARES}
    key = {**method.key, **settings, "training": _digest_training(training)}
    store = RecordStore(cache / benchmark, "training", key)
    gallery = _build_gallery(method.extractor, training, store, bool(options), progress)
    return replace(method, key=key, answerer=PartTransfer(method.extractor, gallery, boxes))


def _digest_training(data: KeypointData) -> str:
    """Of names and sizes of the training images, and of their parts and boxes."""
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
    store: RecordStore,
    use_boxes: bool,
    progress: Callable[[int, int], None] | None,
) -> PartGallery:
    """Describes all training images; those that a store has from before are not described again."""
    records: list[dict[str, Any]] = []
    try:
        for row, example in enumerate(data.examples):
            if row not in store:
                store.put(row, _describe(extractor, data, example, use_boxes))
            records.append(store.get(row))
            if progress is not None:
                progress(row + 1, len(data.examples))
    finally:
        store.flush()
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
def _describe(extractor: Extractor, data: KeypointData, example: Example, use_boxes: bool) -> dict[str, Any]:
    """What the gallery keeps of a training image."""
    if use_boxes:
        image, keypoints = read_image(example.image), data.keypoints(example)
    else:
        view = data.read_view(example)
        image, keypoints = view.image, replace(view.keypoints, box=None)
    box = keypoints.box or whole_box((image.shape[-2], image.shape[-1]))
    points = torch.from_numpy(np.nan_to_num(keypoints.points).astype(np.float32))
    return {
        "descriptor": describe_object(extractor, image, box).numpy().astype(np.float16),
        "parts": to_relative(points, box).numpy(),
        "is_visible": keypoints.is_visible,
    }


def _name_kind(data: KeypointData, category: str) -> str:
    """Classes with the same names of parts are one kind: all birds are, but a car is no aeroplane."""
    return "/".join(data.part_names_of(category)) or category
