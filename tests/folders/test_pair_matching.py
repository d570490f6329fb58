"""Keypoints of pairs matched with neighbourhood consensus, against a slow reference and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ucn.folders import pair_matching
from ucn.folders.pair_matching import (
    _measure_consensus,
    _to_cells,
    build_match_key,
    match_image_features,
)
from ucn.formats.hloc import CoarseMap, ImageFeatures
from ucn.matching.cells import CONSENSUS_GAP, CONSENSUS_RADIUS, CONSENSUS_WEIGHT
from ucn.matching.consensus import measure_support
from ucn.matching.guided import find_guided

Array = NDArray[np.float64]
Pair = tuple[ImageFeatures, ImageFeatures]
FIRST, STEP = (11.5, 15.0), (24.0, 32.0)
"""Of a map whose cells of 16 px lie in an image enlarged by 1.5 along x and 2 along y."""


def normalise(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=0, keepdims=True))


def make_features(cells: Array, places: Array, descriptors: Array) -> ImageFeatures:
    """Keypoints at places (N, 2) in coarse cells of a map (D, h, w)."""
    points = (np.asarray(places) * STEP + FIRST).astype(np.float32)
    coarse = CoarseMap(cells.astype(np.float32), FIRST, STEP)
    scores = np.ones(len(points), np.float32)
    return ImageFeatures(points, descriptors.astype(np.float32), scores, (300, 400), None, coarse)


def make_pair(seed: int, count: int = 60, hw: tuple[int, int] = (7, 8)) -> Pair:
    """Two views whose maps agree up to a shift, with descriptors that are ambiguous."""
    rng = np.random.default_rng(seed)
    scene = normalise(rng.normal(size=(6, 1, 1)) + rng.normal(size=(6, hw[0], hw[1] + 1)))

    def make(shift: int) -> ImageFeatures:
        cells = normalise(scene[:, :, shift : shift + hw[1]] + 0.3 * rng.normal(size=(6, *hw)))
        places = rng.uniform(-0.8, np.array(hw[::-1]) - 0.2, (count, 2))
        near = np.clip(places.round().astype(int), 0, np.array(hw[::-1]) - 1)
        descriptors = normalise(cells[:, near[:, 1], near[:, 0]] + 0.5 * rng.normal(size=(6, count))).T
        return make_features(cells, places, descriptors)

    return make(0), make(1)


def place(features: ImageFeatures) -> Array:
    return (features.keypoints.astype(np.float64) - FIRST) / STEP


def read_support(support: Array, place0: Array, place1: Array) -> float:
    """Support (h0, w0, h1, w1) between cells, bilinear in both images, clamped to their borders."""
    total = 0.0
    corners = []
    for (x, y), (h, w) in ((place0, support.shape[:2]), (place1, support.shape[2:])):
        x, y = min(max(x, 0), w - 1), min(max(y, 0), h - 1)
        left, top = int(x), int(y)
        corners.append(
            [
                (row, column, abs(1 - abs(y - row)) * abs(1 - abs(x - column)))
                for row in (top, min(top + 1, h - 1))[: 1 if y == top else 2]
                for column in (left, min(left + 1, w - 1))[: 1 if x == left else 2]
            ]
        )
    for row0, column0, weight0 in corners[0]:
        for row1, column1, weight1 in corners[1]:
            total += weight0 * weight1 * support[row0, column0, row1, column1]
    return total


def match_slowly(features: Pair, support: Array, cells: int) -> tuple[list[int], int]:
    """The guided match of each keypoint of the first image, and how many differ from the most similar one."""
    first, second = features
    found, changed = [], 0
    for place0, descriptor in zip(place(first), first.descriptors, strict=True):
        similarity = second.descriptors @ descriptor
        best = int(similarity.argmax())
        distances = np.linalg.norm(place(second) - place(second)[best], axis=1) * 16
        others = similarity[distances > CONSENSUS_RADIUS]
        lead = similarity[best] - (others.max() if len(others) else -1)
        weight = CONSENSUS_WEIGHT * np.exp(-lead / CONSENSUS_GAP)
        coarse0, coarse1 = ((points + 0.5) / cells - 0.5 for points in (place0, place(second)))
        guided = [
            value + weight * read_support(support, coarse0, place1)
            for value, place1 in zip(similarity, coarse1, strict=True)
        ]
        chosen = int(np.argmax(guided))
        chosen = chosen if distances[chosen] > CONSENSUS_RADIUS else best
        found.append(chosen)
        changed += chosen != best
    return found, changed


@pytest.mark.parametrize("cells", [1, 2])
@pytest.mark.parametrize("memory_bytes", [1, 2**28])
def test_against_the_slow_reference(cells: int, memory_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_matching, "MAX_SUPPORT_ENTRIES", 56**2 if cells == 1 else 56**2 - 1)
    features = make_pair(seed=1)
    maps = [item.coarse for item in features]
    assert maps[0] is not None and maps[1] is not None
    consensus = _measure_consensus(maps[0], maps[1], torch.device("cpu"))
    assert consensus.cells == cells
    points = [
        _to_cells(item, coarse, torch.device("cpu"))
        for item, coarse in zip(features, maps, strict=True)
        if coarse is not None
    ]
    both = [torch.from_numpy(item.descriptors) for item in features]
    support = consensus.support.numpy()
    expected, changed = match_slowly(features, support, cells)
    assert changed > 3
    forward = find_guided(both[0], both[1], points[0], points[1], consensus, 1.0, memory_bytes)
    assert forward.tolist() == expected
    back, _ = match_slowly((features[1], features[0]), support.transpose(2, 3, 0, 1), cells)
    swapped = consensus.swap()
    backward = find_guided(both[1], both[0], points[1], points[0], swapped, 1.0, memory_bytes)
    assert backward.tolist() == back
    mutual = [[row, column] for row, column in enumerate(expected) if back[column] == row]
    found = match_image_features(*features)
    assert found.rows.tolist() == mutual
    cosines = [features[0].descriptors[row] @ features[1].descriptors[column] for row, column in mutual]
    np.testing.assert_allclose(found.scores, (1 + np.array(cosines)) / 2, atol=1e-6)


def test_pooled_support_is_that_of_means_of_cells() -> None:
    rng = np.random.default_rng(0)
    cells = normalise(rng.normal(size=(4, 4, 6)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_matching, "MAX_SUPPORT_ENTRIES", 24**2 - 1)
        coarse = CoarseMap(cells.astype(np.float32), FIRST, STEP)
        found = _measure_consensus(coarse, coarse, torch.device("cpu"))
    pooled = torch.from_numpy(normalise(cells.reshape(4, 2, 2, 3, 2).mean(axis=(2, 4)))).float()
    assert found.support.shape == (2, 3, 2, 3)
    torch.testing.assert_close(found.support, measure_support(pooled, pooled))


def make_repeated() -> Pair:
    """Cells with descriptors of their own but for two equal ones; each image has keypoints in these two."""
    cells = np.eye(49)[:, np.arange(48)].reshape(49, 6, 8)
    cells[:, 4, 6] = cells[:, 1, 1]
    places = np.array([[1.0, 1.0], [6.0, 4.0]])
    descriptors = np.stack([cells[:, 1, 1]] * 2)
    return make_features(cells, places, descriptors), make_features(cells, places[::-1], descriptors)


def test_surroundings_decide_between_equal_descriptors() -> None:
    features = make_repeated()
    assert match_image_features(*features).rows.tolist() == [[0, 1], [1, 0]]
    plain = [[0, 0]]  # of equally similar ones the first
    assert match_image_features(*features, consensus=False).rows.tolist() == plain
    assert match_image_features(features[0], replace(features[1], coarse=None)).rows.tolist() == plain


def test_no_keypoints_and_one() -> None:
    cells = np.eye(6).reshape(6, 2, 3)
    nothing = make_features(cells, np.zeros((0, 2)), np.zeros((0, 6)))
    one = make_features(cells, np.array([[1.0, 1]]), np.eye(6)[:1])
    assert match_image_features(nothing, one).rows.shape == (0, 2)
    assert match_image_features(one, nothing).rows.shape == (0, 2)
    assert match_image_features(one, one).rows.tolist() == [[0, 0]]


def test_key_tells_consensus() -> None:
    keys = [build_match_key({}, [("a", "b")], -1.0, use) for use in (True, False)]
    assert keys[0] != keys[1]


@pytest.mark.gpu
def test_a_gpu_gives_the_same() -> None:
    features = make_pair(seed=3, count=400)
    on_cpu, on_gpu = (match_image_features(*features, device=device) for device in ("cpu", "cuda"))
    assert on_gpu.rows.tolist() == on_cpu.rows.tolist()
    np.testing.assert_allclose(on_gpu.scores, on_cpu.scores, atol=1e-5)
