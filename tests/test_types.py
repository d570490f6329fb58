"""The values that modules hand to each other."""

import copy
import gc
import inspect
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

from ucn.data.io import read_image
from ucn.errors import DataError, OutputError
from ucn.geometry.fundamental import estimate_fundamental
from ucn.geometry.homography import estimate_homography
from ucn.geometry.pose import estimate_pose
from ucn.types import FeatureMap, Features, Flow, LazyNames, Matches, PairBatch, ViewChange, refer_to_image


def make_batch(B: int, N: int = 4) -> PairBatch:
    """Pairs whose every value tells which pair and which field it belongs to."""

    def fill(*shape: int) -> Tensor:
        return torch.arange(B, dtype=torch.float32).view(B, *[1] * len(shape)).expand(B, *shape).clone()

    return PairBatch(
        image0=fill(3, 5, 6),
        image1=fill(3, 5, 6) + 10,
        points0=fill(N, 2) + 20,
        points1=fill(N, 2) + 30,
        is_valid=fill(N) > 0,
        names=tuple(f"pair {b}" for b in range(B)),
        pck_length=fill() + 40,
    )


def test_a_batch_yields_its_pairs_one_by_one() -> None:
    pairs = list(make_batch(2))
    assert [pair.names for pair in pairs] == [("pair 0",), ("pair 1",)]
    second = pairs[1]
    assert second.image0.shape == second.image1.shape == (1, 3, 5, 6)
    assert second.points0.shape == second.points1.shape == (1, 4, 2)
    assert second.pck_length is not None
    fields = (second.image0, second.image1, second.points0, second.points1, second.pck_length)
    assert [set(field.flatten().tolist()) for field in fields] == [{1}, {11}, {21}, {31}, {41}]
    assert pairs[0].is_valid.tolist() == [[False] * 4]
    assert second.is_valid.tolist() == [[True] * 4]


def test_a_batch_without_pck_length_and_an_empty_one() -> None:
    (pair,) = replace(make_batch(1), pck_length=None)
    assert pair.pck_length is None
    assert list(make_batch(0)) == []


@pytest.mark.parametrize("has_length", [True, False])
def test_a_batch_moves_as_a_whole(has_length: bool) -> None:
    batch = make_batch(2) if has_length else replace(make_batch(2), pck_length=None)
    moved = batch.to("meta")
    assert moved.names == batch.names
    tensors = [value for value in vars(moved).values() if isinstance(value, Tensor)]
    assert len(tensors) == 5 + has_length
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.points1.shape == (2, 4, 2)
    assert batch.image0.device.type == "cpu"


def make_matches() -> Matches:
    return Matches(
        points0=np.array([[0, 1], [2, 3], [4, 5]], np.float32),
        points1=np.array([[10, 11], [12, 13], [14, 15]], np.float32),
        scores=np.array([0.5, 0.25, 1.0], np.float32),
        is_mutual=np.array([True, False, True]),
        pair_score=0.75,
        image0_hw=(20, 30),
        image1_hw=(40, 50),
    )


def test_matches_are_selected_by_mask_or_by_index_in_order() -> None:
    matches = make_matches()
    assert len(matches) == 3
    by_mask = matches.select(matches.is_mutual)
    assert by_mask.points0.tolist() == [[0, 1], [4, 5]]
    by_index = matches.select(np.array([2, 0]))
    assert by_index.points0.tolist() == [[4, 5], [0, 1]]
    assert by_index.points1.tolist() == [[14, 15], [10, 11]]
    assert by_index.scores.tolist() == [1.0, 0.5]
    assert by_index.is_mutual.tolist() == [True, True]
    assert (by_index.pair_score, by_index.image0_hw, by_index.image1_hw) == (0.75, (20, 30), (40, 50))
    assert len(matches) == 3


def test_no_matches_can_be_selected() -> None:
    nothing = make_matches().select(np.zeros(3, np.bool_))
    assert len(nothing) == 0
    assert nothing.points0.shape == nothing.points1.shape == (0, 2)


K = np.array([[500.0, 0.0, 320.0], [0.0, 500.0, 240.0], [0.0, 0.0, 1.0]])


def make_scene_matches() -> Matches:
    """Points at several depths before a camera that moves to the right and turns; two matches are wrong."""
    space = np.random.default_rng(0).uniform([-2, -1.5, 5], [2, 1.5, 12], (60, 3))
    R = cv2.Rodrigues(np.array([0.0, 0.1, 0.02]))[0]
    moved = space @ R.T - [1.0, 0.0, 0.0]
    points0, points1 = ((points @ K.T / points[:, 2:])[:, :2].astype(np.float32) for points in (space, moved))
    points1[:2] += [0, 60]
    ones = np.ones(60, np.float32)
    return Matches(points0, points1, ones, ones > 0, 0.9, (480, 640), (480, 640))


class TestMatches:
    def test_repr_is_one_short_line(self) -> None:
        text = repr(make_matches())
        assert text == "Matches(3 matches, pair score 0.75, images 30 × 20 and 50 × 40)"
        assert repr(make_matches().select(np.array([0]))).startswith("Matches(1 match, ")

    def test_flow_prints_no_values(self) -> None:
        flow = Flow(np.zeros((4, 5, 2), np.float32), np.full((4, 5), 0.25, np.float32))
        assert repr(flow) == "Flow(5 × 4, mean confidence 0.25)"

    def test_fundamental_and_pose_tell_inliers(self) -> None:
        matches = make_scene_matches()
        fundamental, pose = matches.fundamental(threshold=0.5), matches.pose(K)
        assert fundamental.F_0to1 is not None
        assert pose.t is not None
        np.testing.assert_allclose(pose.t, [-1, 0, 0], atol=1e-3)
        for estimate in (fundamental, pose):
            assert np.flatnonzero(~estimate.is_inlier).tolist() == [0, 1]
            kept = matches.inliers(estimate)
            np.testing.assert_array_equal(kept.points1, matches.points1[2:])
            assert kept.pair_score == 0.9

    def test_homography(self) -> None:
        points = np.random.default_rng(0).uniform(0, 100, (40, 2)).astype(np.float32)
        ones = np.ones(40, np.float32)
        matches = Matches(
            points, points * 2 + np.array([1, 0], np.float32), ones, ones > 0, 1.0, (100, 100), (200, 200)
        )
        found = matches.homography()
        assert found.H_0to1 is not None
        np.testing.assert_allclose(found.H_0to1, [[2, 0, 1], [0, 2, 0], [0, 0, 1]], atol=1e-4)
        assert len(matches.inliers(found)) == 40

    def test_a_failed_estimate_has_no_inliers(self) -> None:
        matches = make_matches()
        for estimate in (matches.homography(), matches.fundamental(), matches.pose(K)):
            assert estimate.failure
            assert len(matches.inliers(estimate)) == 0

    def test_an_estimate_of_other_matches_is_refused(self) -> None:
        estimate = make_scene_matches().pose(K)
        with pytest.raises(ValueError, match="must be of these 3 matches, got one of 60"):
            make_matches().inliers(estimate)

    @pytest.mark.parametrize(
        ("method", "function"),
        [
            (Matches.homography, estimate_homography),
            (Matches.fundamental, estimate_fundamental),
            (Matches.pose, estimate_pose),
        ],
    )
    def test_defaults_are_those_of_the_estimators(self, method: object, function: object) -> None:
        given, expected = (inspect.signature(each).parameters for each in (method, function))  # type: ignore[arg-type]
        for name in given.keys() - {"self"}:
            assert given[name].default == expected[name].default, name

    def test_arrays_and_tensors_by_name(self) -> None:
        matches = make_matches()
        arrays, tensors = matches.to_numpy(), matches.to_torch()
        assert list(arrays) == list(tensors) == ["points0", "points1", "scores", "is_mutual"]
        assert arrays["points1"] is matches.points1
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(tensor.numpy(), arrays[name])
        tensors["scores"][0] = 9
        assert matches.scores[0] == 0.5

    @pytest.mark.parametrize("suffix", [".npz", ".h5"])
    def test_files_hold_everything(self, tmp_path: Path, suffix: str) -> None:
        for change in (None, ViewChange(2.0, -90.0, 3, is_searched=True)):
            matches = replace(make_matches(), view_change=change)
            matches.save(tmp_path / f"m{suffix}", overwrite=True)
            found = Matches.load(tmp_path / f"m{suffix}")
            for name, array in found.to_numpy().items():
                np.testing.assert_array_equal(array, matches.to_numpy()[name])
            assert (found.pair_score, found.image0_hw, found.image1_hw) == (0.75, (20, 30), (40, 50))
            assert found.view_change == change
            assert found.sources == (None, None)

    def test_csv_holds_rounded_rows(self, tmp_path: Path) -> None:
        matches = replace(make_matches(), points1=np.array([[0.12345, 1], [np.nan] * 2, [3, 4]], np.float32))
        matches.save(tmp_path / "m.csv")
        found = Matches.load(str(tmp_path / "m.csv"))
        np.testing.assert_allclose(found.points1, matches.points1, atol=5e-4)
        np.testing.assert_array_equal(found.points0, matches.points0)
        np.testing.assert_array_equal(found.is_mutual, matches.is_mutual)
        assert found.points0.dtype == found.scores.dtype == np.float32
        assert np.isnan(found.pair_score)
        assert (found.image0_hw, found.image1_hw) == ((0, 0), (0, 0))

    def test_files_are_kept_and_errors_name_them(self, tmp_path: Path) -> None:
        make_matches().save(tmp_path / "m.csv")
        with pytest.raises(OutputError, match="exists already"):
            make_matches().save(tmp_path / "m.csv")
        with pytest.raises(OutputError, match=r"must end in \.npz, \.csv, \.h5"):
            make_matches().save(tmp_path / "m.pkl")
        with pytest.raises(DataError, match=r"no\.npz"):
            Matches.load(tmp_path / "no.npz")


class TestDraw:
    def test_given_images(self, tmp_path: Path) -> None:
        images = np.zeros((20, 30, 3), np.uint8), np.zeros((40, 50), np.uint8)
        pixels = make_matches().draw(*images, tmp_path / "m.png", width=200, max_lines=1)
        assert pixels.shape[1] == 200
        assert read_image(tmp_path / "m.png").shape == (3, *pixels.shape[:2])
        with pytest.raises(OutputError, match="exists already"):
            make_matches().draw(*images, tmp_path / "m.png", width=200)
        make_matches().draw(*images, tmp_path / "m.png", width=300, overwrite=True)
        assert read_image(tmp_path / "m.png").shape[2] == 300

    def test_known_images(self, tmp_path: Path) -> None:
        PIL.Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
        image1 = torch.zeros(3, 40, 50)
        sources = refer_to_image(str(tmp_path / "a.png")), refer_to_image(image1)
        matches = replace(make_matches(), sources=sources)
        assert matches.draw(width=200).shape[1] == 200
        assert matches.select(np.array([0])).draw(width=200).shape[1] == 200
        for other in (pickle.loads(pickle.dumps(matches)), copy.deepcopy(matches)):
            assert other.sources == (tmp_path / "a.png", None)
            assert other.draw(image1=image1, width=200).shape[1] == 200

    def test_pixels_are_not_kept(self) -> None:
        image = np.zeros((20, 30), np.uint8)
        matches = replace(make_matches(), sources=(refer_to_image(image), None))
        del image
        gc.collect()
        with pytest.raises(ValueError, match="image0 must be given: matches keep the paths of images"):
            matches.draw(image1=np.zeros((40, 50), np.uint8))
        with pytest.raises(ValueError, match="image1 must be given"):
            matches.draw(np.zeros((20, 30), np.uint8))

    def test_features_are_no_image(self) -> None:
        nothing = Features(FeatureMap(torch.zeros(1, 1, 1, 1), 4, 2.0, (4, 4)), (4, 4), torch.zeros(0, 2))
        assert refer_to_image(nothing) is None


def test_features_move_as_a_whole() -> None:
    feature_map = FeatureMap(torch.ones(1, 2, 1, 1, dtype=torch.bfloat16), 4, 2.0, (4, 4))
    byte = torch.zeros(3, 4, 4, dtype=torch.uint8)
    features = Features(feature_map, (4, 4), torch.zeros(1, 2), byte[0], byte, torch.eye(3)[:2])
    moved = features.to("meta")
    tensors = (moved.map.features, moved.keypoints, moved.grey, moved.image)
    assert all(tensor is not None and tensor.is_meta for tensor in tensors)
    assert moved.map.features.dtype == torch.bfloat16
    assert moved.view is features.view
    here = replace(features, grey=None, image=None).to("cpu")
    assert here.map.features.dtype == torch.float32  # half types are slow on a CPU
    assert (here.grey, here.image, here.map.stride) == (None, None, 4)


def test_features_print_on_one_line() -> None:
    features = Features(FeatureMap(torch.ones(1, 8, 5, 10), 4, 2.0, (20, 40)), (40, 80), torch.zeros(1200, 2))
    shown = "Features(image 80 × 40, 1,200 keypoints, map=FeatureMap(1 × 8 × 5 × 10, images 40 × 20))"
    assert repr(features) == shown


def test_one_image_of_a_feature_map() -> None:
    features = torch.arange(24.0).view(2, 2, 2, 3).requires_grad_()
    both = FeatureMap(features, 4, 2.0, (8, 12))
    assert both.grid_hw == (2, 3)
    one = both[1]
    assert (one.stride, one.offset, one.image_hw) == (4, 2.0, (8, 12))
    assert one.features.shape == (1, 2, 2, 3)
    assert one.features.flatten().tolist() == list(range(12, 24))
    assert one.features.requires_grad


def test_feature_map_indices_from_the_end_and_beyond_it() -> None:
    both = FeatureMap(torch.arange(24.0).view(2, 2, 2, 3), 4, 2.0, (8, 12))
    assert torch.equal(both[-1].features, both[1].features)
    with pytest.raises(IndexError):
        both[2]
    assert [one.features.shape[0] for one in both] == [1, 1]  # type: ignore[attr-defined]


class CountedNames:
    """Gives names, and counts how often it is asked.

    Attributes:
        calls: so often.
    """

    def __init__(self, *names: str) -> None:
        self.names, self.calls = names, 0

    def __call__(self) -> Iterator[str]:
        self.calls += 1
        yield from self.names


def test_lazy_names_are_read_once_and_only_when_one_is_requested() -> None:
    read = CountedNames("a", "b", "c")
    names = LazyNames(3, read)
    assert len(names) == 3
    assert read.calls == 0
    assert (names[0], names[-1]) == ("a", "c") and names[1:] == ("b", "c")
    assert list(names) == ["a", "b", "c"]
    assert "b" in names
    assert read.calls == 1
    with pytest.raises(IndexError):
        names[3]


def test_some_of_the_lazy_names_are_late_too() -> None:
    read = CountedNames("a", "b", "c", "d")
    names = LazyNames(4, read)
    parts = [names[:1], names[1:9], names[::-2], names[4:]]
    assert [len(part) for part in parts] == [1, 3, 2, 0]
    within = parts[1][1:]
    assert len(within) == 2 and read.calls == 0
    assert parts == [("a",), ("b", "c", "d"), ("d", "b"), ()]
    assert (within[0], within[-1]) == ("c", "d")
    assert read.calls == 1


def test_lazy_names_are_equal_to_the_names_they_hold() -> None:
    names = LazyNames(2, CountedNames("a", "b"))
    assert names == ("a", "b")
    assert names == ["a", "b"]
    assert names == LazyNames(2, CountedNames("a", "b"))
    assert names != LazyNames(2, CountedNames("b", "a"))
    assert names != ("a",)
    assert names != 2
    assert hash(names) == hash(("a", "b"))
    assert repr(names) == "('a', 'b')"


def test_no_lazy_names() -> None:
    names = LazyNames(0, CountedNames())
    assert (len(names), list(names), repr(names)) == (0, [], "()")


def test_a_batch_reads_lazy_names_only_where_they_are_looked_at() -> None:
    read = CountedNames("a", "b")
    images, points = torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 2)
    is_valid = torch.ones(2, 1, dtype=torch.bool)
    batch = PairBatch(images, images, points, points, is_valid, LazyNames(2, read))
    moved = batch.to("cpu")
    alone = list(moved)
    assert read.calls == 0
    assert [one.names for one in alone] == [("a",), ("b",)]
    assert read.calls == 1


def test_a_batch_is_split_in_order_without_copies() -> None:
    images, points = torch.rand(5, 3, 4, 4), torch.rand(5, 2, 2)
    is_valid, length = torch.rand(5, 2) < 0.5, torch.arange(5.0)
    batch = PairBatch(images, images + 1, points, points + 1, is_valid, tuple("abcde"), length)
    parts = list(batch.split(2))
    assert [part.names for part in parts] == [("a", "b"), ("c", "d"), ("e",)]
    for field in ("image0", "image1", "points0", "points1", "is_valid", "pck_length"):
        whole, pieces = getattr(batch, field), [getattr(part, field) for part in parts]
        assert torch.equal(torch.cat(pieces), whole)
        assert all(piece.is_contiguous() for piece in pieces)
        assert pieces[0].data_ptr() == whole.data_ptr()
    (same,) = batch.split(9)
    assert same.names == batch.names and torch.equal(same.image1, batch.image1)


@pytest.mark.parametrize("count", [0, -1])
def test_batches_are_split_into_at_least_one_pair(count: int) -> None:
    with pytest.raises(ValueError, match=f"count must be at least 1, got {count}"):
        next(make_batch(2).split(count))
