"""Questions at SIFT's keypoints, and methods that are described there."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from support.driving_cases import DRIVE, HW, STEP, Wall
from support.evaluation_cases import make_method
from ucn.evaluate.core.benchmark_pairs import ORIGINAL_SIZE, BenchmarkPair
from ucn.evaluate.driving.sift_queries import MAX_DISTANCE, KeypointFinder, KeypointPairs, move_to_keypoints
from ucn.evaluate.points.predictions import FinderMethod
from ucn.features.extractor import to_grey
from ucn.features.sparse import GridDescriptorsAtKeypoints, Keypoints, SiftKeypoints
from ucn.paper.registry import METHODS
from ucn.types import PairSample


@pytest.fixture
def wall(tmp_path: Path) -> Wall:
    return Wall(tmp_path / "wall")


def find(finder: KeypointFinder, sample: PairSample) -> torch.Tensor:
    """Answers of a pair; which pair it is does not matter to keypoints."""
    return finder.find(BenchmarkPair(None, 0, "", "", ""), ORIGINAL_SIZE.apply(sample))  # type: ignore[arg-type]


def test_questions_are_keypoints_beside_known_points(wall: Wall) -> None:
    questions = KeypointPairs(wall)
    plain, asked = wall.read(0), questions.read(0)
    assert (len(questions), questions.pair_name(0)) == (3, f"{DRIVE}/0000000000-0000000001")
    assert questions.image_paths(1) == wall.image_paths(1)
    assert questions.pair_files(1) == wall.pair_files(1)
    assert len(asked) >= 10
    keypoints = torch.from_numpy(SiftKeypoints().detect(to_grey(plain.image0)))
    for point0, point1 in zip(asked.points0, asked.points1, strict=True):
        assert (keypoints - point0).norm(dim=1).min() == 0
        assert (plain.points0 - point0).norm(dim=1).min() <= MAX_DISTANCE
        torch.testing.assert_close(point1, point0 - torch.tensor([float(STEP), 0.0]))
    is_far = (torch.cdist(keypoints, plain.points0) > MAX_DISTANCE + 0.1).all(dim=1)
    assert is_far.any()
    assert not set(map(tuple, asked.points0.tolist())) & set(map(tuple, keypoints[is_far].tolist()))


def test_no_questions_without_keypoints_or_known_points(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = wall.read(0)
    monkeypatch.setattr(wall, "read", lambda _: sample.select(torch.zeros(0, dtype=torch.int64)))
    assert len(KeypointPairs(wall).read(0)) == 0
    blank = torch.zeros_like(sample.image0)
    blank_sample = PairSample(blank, blank, sample.points0, sample.points1, "")
    monkeypatch.setattr(wall, "read", lambda _: blank_sample)
    assert len(KeypointPairs(wall).read(0)) == 0


@pytest.mark.parametrize("name", ["sift", "daisy", "kaze"])
def test_keypoints_find_each_other(wall: Wall, name: str) -> None:
    (method,) = move_to_keypoints(METHODS.load_dense([name]).methods)
    assert method.name == f"{name} at keypoints"
    assert isinstance(method, FinderMethod)
    assert not method.is_nearest
    assert isinstance(method.finder, KeypointFinder)
    assert method.finder.images == 2
    sample = KeypointPairs(wall).read(0)
    found = find(pickle.loads(pickle.dumps(method.finder)), sample)
    is_right = (found - sample.points1).norm(dim=1) < 1.5
    assert is_right.float().mean() > 0.7
    own = method.finder.extractor.extract(sample.image1).points
    assert set(map(tuple, found.tolist())) <= set(map(tuple, own.tolist()))


def test_what_is_no_keypoint_has_no_answer(wall: Wall) -> None:
    sample = KeypointPairs(wall).read(0)
    moved = sample.points0.clone()
    moved[0] = torch.tensor([HW[1] - 1.0, 0.0])
    asked = PairSample(sample.image0, sample.image1, moved, sample.points1, "")
    found = find(KeypointFinder(SiftKeypoints()), asked)
    assert torch.isnan(found[0]).all()
    assert torch.isfinite(found[1:]).all()
    blank = PairSample(sample.image0, torch.zeros_like(sample.image1), moved, sample.points1, "")
    assert torch.isnan(find(KeypointFinder(SiftKeypoints()), blank)).all()
    nothing = sample.select(torch.zeros(0, dtype=torch.int64))
    assert find(KeypointFinder(SiftKeypoints()), nothing).shape == (0, 2)


def test_the_nearest_descriptor_by_hand(wall: Wall) -> None:
    class Known:
        """Two keypoints an image; those of image 1, which is brighter, come in the other order."""

        def extract(self, image: torch.Tensor) -> Keypoints:
            points = torch.tensor([[5.0, 6.0], [20.0, 30.0]])
            values = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
            is_second = bool(image.mean() > 0.5)
            return Keypoints(points, values.flip(0) if is_second else values)

    points = torch.tensor([[20.3, 30.0], [5.0, 6.0], [12.0, 12.0]])
    sample = PairSample(torch.zeros(3, 40, 40), torch.ones(3, 40, 40), points, points, "")
    found = find(KeypointFinder(Known()), sample)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.numpy(), [[5, 6], [20, 30], [np.nan, np.nan]])


def test_other_methods_stay_as_they_are() -> None:
    mine, hog = make_method("sift"), METHODS.load_dense(["hog"]).methods[0]
    assert move_to_keypoints([mine, hog]) == [mine, hog]
    assert move_to_keypoints([]) == []
    sift, daisy = move_to_keypoints(METHODS.load_dense(["sift", "daisy"]).methods)
    assert sift.key != daisy.key
    assert isinstance(daisy, FinderMethod)
    assert isinstance(daisy.finder, KeypointFinder)
    assert isinstance(daisy.finder.extractor, GridDescriptorsAtKeypoints)
