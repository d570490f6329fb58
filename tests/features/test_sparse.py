"""Keypoints of hand-made features: where they lie, and which of them match."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ucn.features.classical import DenseDaisy, DenseKaze
from ucn.features.sparse import (
    GridDescriptorsAtKeypoints,
    Keypoints,
    SiftKeypoints,
    match_keypoints,
)

EXTRACTORS = [
    SiftKeypoints(max_count=300),
    GridDescriptorsAtKeypoints(DenseDaisy(), SiftKeypoints(max_count=300)),
    GridDescriptorsAtKeypoints(DenseKaze(), SiftKeypoints(max_count=300)),
]
each = pytest.mark.parametrize("extractor", EXTRACTORS, ids=["sift", "daisy", "kaze"])


def texture(height: int = 96, width: int = 128) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(1, 1, height // 3, width // 3, generator=generator)
    grey = torch.nn.functional.interpolate(noise, (height, width), mode="bicubic", align_corners=False)
    return grey[0].clamp(0, 1).expand(3, -1, -1)


@pytest.mark.parametrize("sigma", [2.5, 4.0, 8.0])
def test_a_blob_is_found_at_its_centre(sigma: float) -> None:
    y, x = np.mgrid[:121, :131]
    blob = 0.2 + 0.7 * np.exp(-((x - 60.5) ** 2 + (y - 50.25) ** 2) / (2 * sigma**2))
    image = torch.from_numpy(blob).float().expand(3, -1, -1)
    points = SiftKeypoints().extract(image).points
    assert points[0].tolist() == pytest.approx([60.5, 50.25], abs=0.06)


@each
def test_the_strongest_are_kept_and_each_has_a_descriptor(
    extractor: SiftKeypoints | GridDescriptorsAtKeypoints,
) -> None:
    found = extractor.extract(texture())
    assert 50 < len(found.points) <= 300
    assert found.points.shape[1] == 2
    assert found.descriptors.shape[0] == len(found.points)
    assert found.descriptors.isfinite().all()


def test_fewer_are_the_strongest_of_more() -> None:
    many, few = (SiftKeypoints(max_count=count).extract(texture()) for count in (300, 40))
    assert len(few.points) == 40
    places = {tuple(point) for point in many.points.tolist()}
    assert {tuple(point) for point in few.points.tolist()} <= places


@each
def test_a_moved_image_matches(extractor: SiftKeypoints | GridDescriptorsAtKeypoints) -> None:
    image = texture(110, 150)
    found = match_keypoints(extractor.extract(image[:, :, 10:]), extractor.extract(image[:, 6:]))
    shifts = found.points1 - found.points0
    right = (shifts - torch.tensor([10.0, -6.0])).norm(dim=1) < 0.5
    assert len(found.points0) > 50
    assert right.float().mean() > 0.8
    assert (found.scores[:-1] >= found.scores[1:]).all()
    assert right[: len(right) // 2].all()  # the nearest are right


@each
def test_blank_images_have_no_keypoints(extractor: SiftKeypoints | GridDescriptorsAtKeypoints) -> None:
    blank = extractor.extract(torch.full((3, 64, 64), 0.5))
    assert blank.points.shape == (0, 2)
    for pair in ((blank, blank), (blank, extractor.extract(texture()))):
        found = match_keypoints(*pair)
        assert found.points0.shape == found.points1.shape == (0, 2)
        assert found.scores.shape == (0,)


def make(descriptors: list[list[float]]) -> Keypoints:
    rows = torch.arange(float(len(descriptors)))
    return Keypoints(torch.stack([rows, 10 * rows], dim=1), torch.tensor(descriptors))


def test_mutual_matches_by_hand() -> None:
    # 0 and 1 of image 0 are both nearest to 0 of image 1, which is nearer to 1; 2 belongs to 1.
    keypoints0 = make([[0.0, 0.0], [0.9, 0.0], [5.0, 4.0]])
    keypoints1 = make([[1.0, 0.0], [5.0, 5.0]])
    found = match_keypoints(keypoints0, keypoints1)
    assert found.points0.tolist() == [[1, 10], [2, 20]]
    assert found.points1.tolist() == [[0, 0], [1, 10]]
    assert found.scores.tolist() == pytest.approx([-0.1, -1.0], abs=1e-6)


def test_ratio_test_by_hand() -> None:
    # Distances of point 0: 1 and 2; of point 1: 1 and 10.
    keypoints0, keypoints1 = make([[0.0], [12.0]]), make([[-1.0], [2.0], [11.0], [22.0]])
    kept = {ratio: match_keypoints(keypoints0, keypoints1, ratio) for ratio in (0.4, 0.5, 0.05)}
    assert kept[0.4].points0.tolist() == [[1, 10]]
    assert kept[0.5].points0.tolist() == [[1, 10], [0, 0]]  # by the ratio, not by the distance
    assert kept[0.5].scores.tolist() == pytest.approx([-0.1, -0.5])
    assert kept[0.05].points0.tolist() == []


def test_one_candidate_passes_the_ratio_test() -> None:
    found = match_keypoints(make([[0.0]]), make([[1.0]]), ratio=0.8)
    assert found.scores.tolist() == [0.0]


def test_matches_equal_a_slow_search() -> None:
    rng = np.random.default_rng(5)
    first, second = rng.normal(size=(2, 60, 8)).astype(np.float32)
    found = match_keypoints(make(first.tolist()), make(second.tolist()), ratio=0.9)
    distances = np.linalg.norm(first[:, None].astype(np.float64) - second[None], axis=2)
    expected = []
    for i in range(60):
        order = np.argsort(distances[i])
        share = distances[i, order[0]] / distances[i, order[1]]
        if np.argmin(distances[:, order[0]]) == i and share <= 0.9:
            expected.append((share, i, int(order[0])))
    rows = [(int(a[0]), int(b[0])) for a, b in zip(found.points0, found.points1, strict=True)]
    assert rows == [(i, j) for _, i, j in sorted(expected)]
