"""Stage 1 of `objects`: where points of each object land, and the mask that the flow carries over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.config import MatchConfig
from ucn.evaluate.core.cache import PredictionCache, Record, name_folder
from ucn.evaluate.core.predictions import Progress, Task, digest_image, predict_missing
from ucn.evaluate.objects.pairs import ObjectPair, ObjectView, digest_objects, read_view
from ucn.evaluate.objects.scoring import is_in_box, read_mask_at
from ucn.evaluate.points.predictions import cache_features, find_points, sample_points
from ucn.features.method import DenseMethod
from ucn.features.pair_matcher import align_features
from ucn.geometry.coords import cell_centres, pixel_grid, resize_points, resize_scale
from ucn.matching.cells import interpolate_to_pixels
from ucn.matching.matcher import Matcher
from ucn.types import Features

VERSION = 1
"""Part of every key: raise it where code changes what is predicted."""
POINTS = 200
"""Pixels sampled on an object, or all where it has fewer."""
HEAD_POINTS = 100
"""Pixels sampled on a head, likewise."""


def predict_objects(
    pairs: Sequence[ObjectPair],
    chosen: Sequence[int],
    methods: Sequence[DenseMethod],
    cache: Path,
    *,
    max_side: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    jobs: int = 1,
    progress: Progress | None = None,
) -> tuple[list[Record], dict[str, list[Record]]]:
    """Ground truth of each chosen pair, and what each method finds; cached pairs are not predicted again.

    Args:
        pairs: all pairs.
        chosen: rows of those to evaluate.
        methods: that are evaluated.
        cache: folder of predictions.
        max_side: larger images are reduced to this longest side.
        seed: of the sampling of points.
        device: where matching runs.
        jobs: processes that share the pairs; those of a GPU share it.
        progress: called after each pair.

    Raises:
        UcnError: a file of the data is wrong, or the cache cannot be used.
    """
    key = {
        "version": VERSION,
        "points": [POINTS, HEAD_POINTS],
        "max_side": max_side,
        "seed": seed,
        "data": digest_objects(pairs),
    }
    folder = cache / "objects"
    truths = PredictionCache(folder, "truths", key)
    caches = [
        PredictionCache(folder, name_folder(method.name), {**key, "method": method.key}) for method in methods
    ]
    predictor = _Predictor(pairs, methods, max_side, seed, torch.device(device))
    predict_missing(predictor, chosen, [truths, *caches], jobs, progress)
    found = {
        method.name: [held.get(row) for row in chosen] for method, held in zip(methods, caches, strict=True)
    }
    return [truths.get(row) for row in chosen], found


class _Predictor:
    """Reads a pair, samples its points, and matches it with each method; cache 0 holds the ground truth."""

    def __init__(
        self,
        pairs: Sequence[ObjectPair],
        methods: Sequence[DenseMethod],
        max_side: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self._pairs, self._methods, self._max_side, self._seed = pairs, methods, max_side, seed
        self._features = [cache_features(method.extractor, device) for method in methods]

    @torch.no_grad()
    def __call__(self, task: Task) -> list[Record]:
        pair = self._pairs[task.pair]
        view0, view1 = (read_view(image, self._max_side) for image in (pair.image0, pair.image1))
        truth = self._sample(pair, view0, view1)
        records = []
        for number in task.missing:
            if number == 0:
                records.append(truth)
                continue
            cache = self._features[number - 1]
            both = [cache.extract(view.image, digest_image(view.image)) for view in (view0, view1)]
            records.append(_carry(self._methods[number - 1], both[0], both[1], truth, view0.mask))
        return records

    def _sample(self, pair: ObjectPair, view0: ObjectView, view1: ObjectView) -> Record:
        """The mask of image 1 and the sampled pixels of image 0; none of the head where a box is missing."""
        pixels = np.argwhere(view0.mask)[:, ::-1].astype(np.float32)
        is_head = is_in_box(pixels, view0.head) & np.isfinite(view1.head).all()
        return {
            "points0": _draw(pixels, POINTS, self._seed, pair.name),
            "head_points0": _draw(pixels[is_head], HEAD_POINTS, self._seed, pair.name),
            "mask1": view1.mask,
            "head1": view1.head,
        }


def _draw(points: NDArray[np.float32], count: int, seed: int, name: str) -> NDArray[np.float32]:
    chosen = sample_points(len(points), count, seed, name)
    return np.take(points, chosen.numpy(), axis=0)


def _carry(
    method: DenseMethod, features0: Features, features1: Features, truth: Record, mask0: NDArray[np.bool_]
) -> Record:
    """Matches of the points of image 0, and its mask carried to image 1 by the flow from image 1 to it."""
    points0 = np.concatenate([truth["points0"], truth["head_points0"]])
    if isinstance(method.extractor, Matcher) and method.is_nearest:
        matcher = method.extractor.with_config(MatchConfig(consensus=method.uses_consensus))
        points1 = matcher.match_features(features0, features1, points=points0).points1
        flow = matcher.flow(features1, features0).flow_0to1
    else:
        points1 = _find(method, features0, features1, torch.from_numpy(points0)).cpu().numpy()
        flow = _interpolate_flow(method, features1, features0).cpu().numpy()
    height, width = flow.shape[:2]
    places = (flow + pixel_grid((height, width)).numpy()).reshape(-1, 2)
    count = len(truth["points0"])
    return {
        "points1": points1[:count].astype(np.float32),
        "head_points1": points1[count:].astype(np.float32),
        "carried": read_mask_at(mask0, places).reshape(height, width),
    }


def _find(method: DenseMethod, features0: Features, features1: Features, points0: Tensor) -> Tensor:
    height, width = features1.image_hw
    align = partial(align_features, method.matcher)
    return find_points(features0, features1, points0, (0, 0, width, height), True, align)


def _interpolate_flow(method: DenseMethod, features0: Features, features1: Features) -> Tensor:
    """Displacements (H, W, 2) of the cells of image 0, interpolated to its pixels."""
    map0 = features0.map
    starts = resize_points(cell_centres(map0), resize_scale(map0.image_hw, features0.image_hw))
    displacements = _find(method, features0, features1, starts) - starts
    weights = displacements.new_ones(len(starts))
    return interpolate_to_pixels(displacements, weights, map0, features0.image_hw)
