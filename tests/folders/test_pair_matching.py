"""Keypoints of pairs matched with neighbourhood consensus, against a slow reference and by hand."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ucn.data.example import disparity_errors, example_pair
from ucn.folders import pair_matching
from ucn.folders.pair_matching import (
    _choose_levels,
    _measure_consensus,
    _to_cells,
    build_match_key,
    match_image_features,
)
from ucn.folders.worker import BatchExtractor, ExtractSettings, ResizedImage, read_resized
from ucn.formats.hloc import CoarseMap, ImageFeatures
from ucn.geometry.coords import resize_points, resize_scale
from ucn.knn import mutual_nearest
from ucn.matching.cells import CONSENSUS_GAP, CONSENSUS_RADIUS, CONSENSUS_WEIGHT
from ucn.matching.consensus import measure_support
from ucn.matching.guided import find_guided
from ucn.matching.matcher import Matcher
from ucn.matching.views import Similarity
from ucn.nn.tiling import reduce_image

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


def make_scales(level_cells: list[Array], places: list[Array] | None = None) -> ImageFeatures:
    """Coarse maps of scales an octave apart, each with keypoints at its cells (x, y), or at all of them."""
    points, descriptors, levels, maps = [], [], [], []
    for level, cells in enumerate(level_cells):
        step = (16.0 * 2**level, 16.0 * 2**level)
        first = (step[0] / 2 - 0.5, step[1] / 2 - 0.5)
        maps.append(CoarseMap(cells.astype(np.float32), first, step))
        h, w = cells.shape[1:]
        grid = np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1).reshape(-1, 2)
        places_here = grid if places is None else places[level]
        points.append(places_here * step + first)
        descriptors.append(cells[:, places_here[:, 1], places_here[:, 0]].T)
        levels += [level] * len(places_here)
    return ImageFeatures(
        np.concatenate(points).astype(np.float32),
        np.concatenate(descriptors).astype(np.float32),
        np.ones(len(levels), np.float32),
        (512, 512),
        None,
        maps[0],
        np.array(levels, np.uint8),
        tuple(maps[1:]),
    )


def pool(cells: Array) -> Array:
    size, h, w = cells.shape
    return normalise(cells.reshape(size, h // 2, 2, w // 2, 2).mean(axis=(2, 4)))


def make_far_and_close(octaves: int) -> Pair:
    """A scene of 32 × 32 cells, and its middle at a closer distance, each at three scales."""
    rng = np.random.default_rng(5)
    scene = normalise(rng.normal(size=(32, 32, 32)))
    far = [scene, pool(scene), pool(pool(scene))]
    if octaves == 0:
        return make_scales(far), make_scales(far)
    margin = 16 - 16 // 2**octaves
    part = scene[:, margin : 32 - margin, margin : 32 - margin]
    close = [part.repeat(2**up, axis=1).repeat(2**up, axis=2) for up in range(octaves, 0, -1)]
    close = [*(normalise(cells + 0.05 * rng.normal(size=cells.shape)) for cells in close), part]
    close = close[:3] if octaves > 1 else [*close, pool(part)]
    return make_scales(far), make_scales(close)


def choose(features0: ImageFeatures, features1: ImageFeatures) -> tuple[int, int]:
    return _choose_levels(features0.coarse_maps, features1.coarse_maps, torch.device("cpu"))[:2]


@pytest.mark.parametrize("octaves", [0, 1, 2])
def test_scales_at_which_both_images_show_the_same_size(octaves: int) -> None:
    far, close = make_far_and_close(octaves)
    assert choose(far, close) == (0, octaves)
    level0, level1 = choose(close, far)
    assert (level0 > 0, level1) == (octaves > 0, 0)


def test_images_that_agree_on_nothing_are_matched_at_full_size() -> None:
    far, _ = make_far_and_close(1)
    rng = np.random.default_rng(6)
    other = make_scales([normalise(rng.normal(size=(32, side, side))) for side in (32, 16, 8)])
    assert choose(far, other) == (0, 0)


def answer(monkeypatch: pytest.MonkeyPatch, *answers: Similarity) -> None:
    found = iter(answers)
    monkeypatch.setattr(pair_matching, "estimate_similarity", lambda _: next(found))


def test_the_choice_among_scales_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the first pair, then (0, 1) and (0, 2), then (1, 0) and (2, 0) where it agrees on nothing."""
    pair = make_far_and_close(2)
    double, half, equal = (partial(Similarity, scale, 0.0) for scale in (2.0, 0.5, 1.0))
    for answers, expected in [
        ((Similarity(1.39, 0.0, 0.2),), (0, 0)),  # ordinary
        ((Similarity(1 / 1.39, 170.0, 0.2),), (0, 0)),
        ((double(0.2), double(0.6), equal(0.5)), (0, 1)),
        ((double(0.2), double(0.5), equal(0.6)), (0, 2)),
        ((double(0.5), equal(0.39), half(0.2)), (0, 0)),  # no pair keeps 0.8 of 0.5
        ((double(0.5), equal(0.41), half(0.2)), (0, 1)),
        ((half(0.2), half(0.5), equal(0.6)), (2, 0)),
        ((double(0.1), double(0.2), equal(0.2), equal(0.29), half(0.2)), (0, 0)),
        ((double(0.1), double(0.2), equal(0.2), equal(0.31), half(0.2)), (1, 0)),
    ]:
        answer(monkeypatch, *answers)
        assert choose(*pair) == expected, answers


@pytest.mark.parametrize("is_swapped", [False, True])
def test_all_scales_of_the_closer_image_are_matched_with_the_full_size_of_the_other(is_swapped: bool) -> None:
    far, close = make_far_and_close(1)
    pair = (close, far) if is_swapped else (far, close)
    rows = match_image_features(*pair).rows
    assert (np.diff(rows[:, 0]) > 0).all()
    rows = rows[:, ::-1] if is_swapped else rows
    assert far.levels is not None and close.levels is not None
    assert not far.levels[rows[:, 0]].any()
    # The 16 × 16 cells of the middle match those of half the size, whose full size has noise.
    is_middle = (np.abs(far.keypoints[rows[:, 0]] - 255.5) < 128).all(axis=1)
    assert close.levels[rows[is_middle, 1]].tolist() == [1] * 256
    expected = (close.keypoints[rows[is_middle, 1]] + 0.5) / 2 - 0.5 + 8 * 16
    np.testing.assert_allclose(far.keypoints[rows[is_middle, 0]], expected)


def test_an_ordinary_pair_has_the_matches_of_single_scale_features() -> None:
    single = make_pair(seed=1)
    rng = np.random.default_rng(2)
    several = []
    for features in single:
        assert features.coarse is not None
        further = normalise(rng.normal(size=(6, 20))).T.astype(np.float32)
        places = rng.uniform(0, 200, (20, 2)).astype(np.float32)
        small = CoarseMap(features.coarse.descriptors[:, :4, :4], FIRST, (48.0, 64.0))
        several.append(
            replace(
                features,
                keypoints=np.concatenate([features.keypoints, places]),
                descriptors=np.concatenate([features.descriptors, further]),
                levels=np.repeat(np.array([0, 1], np.uint8), [60, 20]),
                reduced=(small,),
            )
        )
    expected, found = match_image_features(*single), match_image_features(several[0], several[1])
    is_first = found.rows[:, 0] < 60
    assert (found.rows[is_first, 1] < 60).all() and (found.rows[~is_first] >= 60).all()
    np.testing.assert_array_equal(found.rows[is_first], expected.rows)
    np.testing.assert_array_equal(found.scores[is_first], expected.scores)


def test_without_consensus_keypoints_of_all_scales_are_matched() -> None:
    far, close = make_far_and_close(1)
    found = match_image_features(far, close, consensus=False).rows
    partners = mutual_nearest(torch.from_numpy(far.descriptors), torch.from_numpy(close.descriptors))
    assert found.tolist() == [[row, int(value)] for row, value in enumerate(partners) if value >= 0]
    without = replace(far, coarse=None, reduced=())
    assert match_image_features(without, close).rows.tolist() == found.tolist()


def test_photographs_of_which_one_is_a_third_as_large() -> None:
    """The example pair, of which the right image is reduced to a third: nearly all matches are new."""
    pair = example_pair()
    views = [read_resized(path, None) for path in (pair.image0_path, pair.image1_path)]
    views[1] = ResizedImage(reduce_image(views[1].pixels, 247), (views[1].hw[0] // 3, 247))
    counts = []
    for scales in ((1.0,), (1.0, 0.5, 0.25)):
        extractor = BatchExtractor(
            Matcher.from_pretrained("geometric-lite", device="cpu"),
            ExtractSettings(scales=scales),
        )
        features = [extractor.submit([extractor.detect(view)]).result()[0] for view in views]
        rows = match_image_features(features[0], features[1]).rows
        points0, points1 = (item.keypoints[rows[:, side]] for side, item in enumerate(features))
        scale = resize_scale(features[1].image_hw, (500, 741))
        grown = resize_points(torch.from_numpy(points1), scale).numpy()
        errors = disparity_errors(points0, grown, pair.disparity)
        counts.append(int((errors <= 3).sum()))  # a pixel of the small image
    assert counts[1] > 80
    assert counts[1] > 5 * counts[0]


def test_key_tells_consensus() -> None:
    keys = [build_match_key({}, [("a", "b")], -1.0, use) for use in (True, False)]
    assert keys[0] != keys[1]


@pytest.mark.gpu
def test_a_gpu_gives_the_same() -> None:
    features = make_pair(seed=3, count=400)
    on_cpu, on_gpu = (match_image_features(*features, device=device) for device in ("cpu", "cuda"))
    assert on_gpu.rows.tolist() == on_cpu.rows.tolist()
    np.testing.assert_allclose(on_gpu.scores, on_cpu.scores, atol=1e-5)
