"""Parity of onnxruntime and torch at several image sizes, checked before an exported file is kept.

Rounding differs between the two, and sums over an image make it grow with the number of pixels: descriptors
of `geometric` differ by 1e-6 at 240 × 160 and by 2e-5 or more, depending on the machine, at 1024 × 683. So
the tolerance grows, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import MatchConfig
from ucn.data.example import example_pair
from ucn.data.io import read_image
from ucn.errors import OutputError
from ucn.matching.cells import match_points
from ucn.matching.keypoints import strongest_corners
from ucn.matching.scoring import score_matches
from ucn.nn import MIN_SIDE
from ucn.types import BoolArray, FloatArray
from ucn.weights import LoadedWeights

SIZES_HW = ((96, 128), (131, 165), (160, 240))
"""Tested image sizes: multiples of the stride, odd sides, and another aspect ratio."""
MAX_DIFFERENCE = 1e-4
"""Largest allowed difference of any value of unit descriptors of an image of 240 × 160; it grows with the
number of pixels."""
MAX_SCORE_DIFFERENCE = 0.01
"""Largest difference of the scores of equal matches."""
MAX_PAIR_BYTES = 2**29
"""Sizes at which the graph `pair` holds larger matrices of similarities are not tested."""
MIN_SAME_MATCHES = 0.995
"""Smallest allowed share of equal matches."""

_SAME_PIXELS = 0.5  # tolerance within which two matches are equal
_LARGEST_HW = SIZES_HW[-1]
_COMPARED_CELLS = 1000  # whose nearest cells are compared
_TIE = 1e-5  # cosine similarities that differ by no more are equal to within rounding


@dataclass(frozen=True)
class Parity:
    """Agreement of onnxruntime and torch at one image size.

    Attributes:
        size_hw: (H, W) of the images.
        max_difference: of unit descriptors for the graph `network`; of scores of equal matches for `pair`.
        same_matches: share of equal matches, in [0, 1].
        limit: the largest `max_difference` that is allowed at this size.
    """

    size_hw: tuple[int, int]
    max_difference: float
    same_matches: float
    limit: float


def list_sizes(max_side: int) -> tuple[tuple[int, int], ...]:
    """Sizes to test: `SIZES_HW`, and that of a photograph at the size at which weights match it."""
    return (*SIZES_HW, (max(MIN_SIDE, round(max_side * 2 / 3)), max_side))


def find_limit(size_hw: tuple[int, int]) -> float:
    """The largest difference of descriptors that is allowed at an image size."""
    area = _LARGEST_HW[0] * _LARGEST_HW[1]
    return MAX_DIFFERENCE * max(1.0, size_hw[0] * size_hw[1] / area)


def check_network(
    content: bytes, loaded: LoadedWeights, _k: int = 0, size_hw: tuple[int, int] | None = None
) -> Iterator[Parity]:
    """Compares descriptors, and the nearest cells of cells, of the example pair; raises `OutputError`.

    Args:
        content: of the file.
        loaded: the weights.
        size_hw: the only image size of the graph; None tests several, and several images at once.
    """
    session = open_session(content)
    for hw in list_sizes(loaded.max_side) if size_hw is None else (size_hw,):
        images = _read_pair(hw)
        with torch.no_grad():
            expected = np.concatenate([loaded.model(image).numpy() for image in images])
        found = np.concatenate([_run(session, image)[0] for image in images])
        _check_shape(found, expected.shape)
        differences = [np.abs(found - expected).max()]
        if size_hw is None and hw in SIZES_HW:
            both = _run(session, torch.cat(images))[0]
            _check_shape(both, expected.shape)
            differences.append(np.abs(both - expected).max())
        same = float(_is_nearest_alike(found, expected).mean())
        yield _check(Parity(hw, float(max(differences)), same, find_limit(hw)))


def check_pair(
    content: bytes, loaded: LoadedWeights, k: int, size_hw: tuple[int, int] | None = None
) -> Iterator[Parity]:
    """Compares matches of the example pair with those of `match_points`; raises `OutputError`.

    Args:
        content: of the file.
        loaded: the weights.
        k: number of matches.
        size_hw: the only image size of the graph; None tests several.
    """
    session, settings = open_session(content), MatchConfig()
    cell_bytes = 4 * k / loaded.model.stride**2
    for hw in list_sizes(loaded.max_side) if size_hw is None else (size_hw,):
        if size_hw is None and hw[0] * hw[1] * cell_bytes > MAX_PAIR_BYTES:
            continue
        image0, image1 = _read_pair(hw)
        if size_hw is None:
            image1 = image1[..., 3:]  # both images may differ in size
        with torch.no_grad():
            points, strengths = strongest_corners(image0, k)
            corners = points[strengths > 0]
            map0, map1 = loaded.model.encode(image0), loaded.model.encode(image1)
            matches = match_points(map0, map1, corners, second_best_radius=settings.second_best_radius)
            scores = score_matches(matches, loaded.calibration).numpy()
        points0, points1, found_scores, is_mutual = _run(session, image0, image1)
        _check_shape(points0, (k, 2))
        found = {tuple(point): row for row, point in enumerate(points0.tolist())}
        rows = np.array([found.get(tuple(point), -1) for point in corners.tolist()], np.int64)
        errors = np.linalg.norm(points1[rows] - matches.points1.numpy(), axis=1)
        differences = np.abs(found_scores[rows] - scores)
        excess = matches.round_trip_errors.numpy() - settings.mutual_tolerance
        is_consistent = (is_mutual[rows] == (excess <= 0)) | (np.abs(excess) <= _SAME_PIXELS)
        is_same = (
            (rows >= 0) & (errors <= _SAME_PIXELS) & (differences <= MAX_SCORE_DIFFERENCE) & is_consistent
        )
        largest = float(differences[is_same].max(initial=0))
        yield _check(Parity(hw, largest, float(is_same.mean()), MAX_SCORE_DIFFERENCE))


def open_session(content: bytes) -> Any:
    """Opens an ONNX file's content in onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many exception classes of its own
        raise OutputError(f"onnxruntime cannot run the graph; no file was written: {error}") from error


def _run(session: Any, *images: Tensor) -> list[FloatArray]:
    names = [node.name for node in session.get_inputs()]
    feed = {name: image.contiguous().numpy() for name, image in zip(names, images, strict=True)}
    try:
        return list(session.run(None, feed))
    except Exception as error:  # as above
        sizes = ", ".join(str(tuple(image.shape)) for image in images)
        raise OutputError(f"the exported graph fails on {sizes}; no file was written: {error}") from error


def _read_pair(size_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The bundled photographs (1, 3, H, W), resized."""
    pair = example_pair()
    image0, image1 = (
        F.interpolate(
            read_image(path)[None], size_hw, mode="bilinear", antialias=True, align_corners=False
        ).clamp(0, 1)
        for path in (pair.image0_path, pair.image1_path)
    )
    return image0, image1


def _is_nearest_alike(found: FloatArray, expected: FloatArray) -> BoolArray:
    """Whether cells spread over the first image have the same most similar cell in the second, or a tie."""

    def compare(features: FloatArray) -> FloatArray:
        cells0, cells1 = features.reshape(*features.shape[:2], -1)
        similarities: FloatArray = cells0[:, :: -(-cells0.shape[1] // _COMPARED_CELLS)].T @ cells1
        return similarities

    similarities = compare(expected)
    chosen = np.take_along_axis(similarities, compare(found).argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.asarray(similarities.max(axis=1) - chosen <= _TIE)


def _check_shape(found: FloatArray, expected: tuple[int, ...]) -> None:
    if found.shape != expected:
        raise OutputError(
            f"the exported graph gives {found.shape} where torch gives {expected}; no file was written"
        )


def _check(parity: Parity) -> Parity:
    limit = parity.limit
    is_close = parity.max_difference <= limit  # False for NaN
    if not is_close or not parity.same_matches >= MIN_SAME_MATCHES:
        height, width = parity.size_hw
        raise OutputError(
            f"the exported graph differs from torch at {width} × {height}: expected values within {limit:g} "
            f"and {MIN_SAME_MATCHES:.1%} equal matches, got {parity.max_difference:g} and "
            f"{parity.same_matches:.1%}; no file was written"
        )
    return parity
