"""Many pairs and images: as one by one, with each image encoded once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

from ucn.config import Calibration, ModelConfig
from ucn.data.io import to_tensor
from ucn.errors import DataError, ImageReadError
from ucn.matching.many import SharedFeatures, iterate_images
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.types import FeatureMap, Features, ImageLike
from ucn.weights import LoadedWeights, WeightsInfo


def make_image(seed: int, height: int = 40, width: int = 48) -> np.ndarray[Any, np.dtype[np.uint8]]:
    noise = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(ModelConfig(dim=8, transformer="none"))
    info = WeightsInfo.of_file(Path("random"), "0" * 64, 0)
    loaded = LoadedWeights(model, Calibration(), info, {})
    return Matcher(loaded, device="cpu", consensus=False, max_keypoints=50, min_score=0.0)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    names = ["a10.png", "a2.png", "b.png"]
    for seed, name in enumerate(names):
        PIL.Image.fromarray(make_image(seed)).save(tmp_path / name)
    return [tmp_path / name for name in names]


class Counter:
    """Stands for `Matcher.extract`; remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[ImageLike] = []

    def __call__(self, image: ImageLike) -> Features:
        self.given.append(image)
        values = torch.full((1, 1, 5, 5), float(len(self.given)))  # 100 bytes
        return Features(FeatureMap(values, 4, 2.0, (20, 20)), (20, 20), torch.zeros(0, 2))


class TestSharedFeatures:
    def test_an_image_is_encoded_once(self, paths: list[Path]) -> None:
        counter = Counter()
        shared = SharedFeatures(counter, 10**6)
        first = shared.get(paths[0])
        assert shared.get(str(paths[0])) is first
        pixels = make_image(0)
        second = shared.get(pixels)
        for same in (pixels.copy(), PIL.Image.fromarray(pixels), to_tensor(pixels)):
            assert shared.get(same) is second
        assert len(counter.given) == 2

    def test_an_array_that_is_filled_anew_is_another_image(self) -> None:
        counter, pixels = Counter(), make_image(0)
        shared = SharedFeatures(counter, 10**6)
        first = shared.get(pixels)
        pixels[:] = make_image(1)
        assert shared.get(pixels) is not first
        assert shared.get(make_image(0)[:, ::-1]) is not first  # not contiguous
        assert len(counter.given) == 3

    @pytest.mark.parametrize(("limit", "count"), [(0, 4), (250, 4), (300, 3)])
    def test_memory_is_bounded_and_the_last_two_stay(self, paths: list[Path], limit: int, count: int) -> None:
        counter = Counter()
        shared = SharedFeatures(counter, limit)
        for path in (*paths, paths[2], paths[1], paths[0]):
            shared.get(path)
        assert len(counter.given) == count

    def test_features_are_taken_as_they_are(self) -> None:
        features = Counter()(make_image(0))
        assert SharedFeatures(Counter(), 0).get(features) is features

    def test_negative_memory(self) -> None:
        with pytest.raises(ValueError, match="cache_bytes must be at least 0, got -1"):
            SharedFeatures(Counter(), -1)


class TestMatchPairs:
    def test_as_one_by_one(
        self, matcher: Matcher, paths: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pairs: list[tuple[ImageLike, ImageLike]]
        pairs = [(paths[0], paths[1]), (paths[1], make_image(2)), (paths[0], paths[1])]
        expected = [matcher.match(*pair) for pair in pairs]
        encode, calls = matcher._encoder.encode, []

        def count(images: Tensor) -> FeatureMap:
            calls.append(images)
            return encode(images)

        monkeypatch.setattr(matcher._encoder, "encode", count)
        done: list[tuple[int, int]] = []
        found = list(matcher.match_pairs(pairs, progress=lambda *given: done.append(given)))
        assert len(calls) == 3
        assert done == [(1, 3), (2, 3), (3, 3)]
        assert any(len(matches) > 5 for matches in found)
        for matches, other in zip(found, expected, strict=True):
            for name in ("points0", "points1", "scores", "is_mutual"):
                np.testing.assert_array_equal(getattr(matches, name), getattr(other, name))
            assert matches.pair_score == other.pair_score
        assert found[0].sources == (paths[0], paths[1])
        assert found[0].draw(width=100).shape[1] == 100

    def test_lazily_and_without_a_length(self, matcher: Matcher, paths: list[Path]) -> None:
        asked: list[int] = []

        def make_pairs() -> Iterator[tuple[Path, Path]]:
            for i in range(3):
                asked.append(i)
                yield paths[i], paths[0]

        done: list[tuple[int, int]] = []
        found = matcher.match_pairs(make_pairs(), progress=lambda *given: done.append(given))
        assert asked == []
        next(found)
        assert asked == [0]
        assert done == [(1, 1)]
        assert list(matcher.match_pairs([])) == []

    def test_features_in_a_pair(self, matcher: Matcher, paths: list[Path]) -> None:
        features = matcher.extract(paths[0])
        (matches,) = matcher.match_pairs([(features, paths[1])])
        assert matches.sources == (None, paths[1])
        np.testing.assert_array_equal(matches.points1, matcher.match(*paths[:2]).points1)

    def test_wrong_pairs_and_images(self, matcher: Matcher, paths: list[Path], tmp_path: Path) -> None:
        for wrong, words in (("ab", "a str as pair 1"), ((paths[0],), "a tuple of 1 as pair 1")):
            with pytest.raises(TypeError, match=rf"pairs must hold \(image0, image1\), got {words}"):
                next(matcher.match_pairs([wrong]))  # type: ignore[list-item]
        with pytest.raises(ImageReadError, match=r"no\.png: no such file"):
            next(matcher.match_pairs([(paths[0], tmp_path / "no.png")]))
        PIL.Image.new("RGB", (8, 8)).save(tmp_path / "small.png")
        with pytest.raises(ImageReadError, match=r"image \(.*small\.png\) must be at least 32 px a side"):
            next(matcher.match_pairs([(paths[0], tmp_path / "small.png")]))


def test_extract_many_as_one_by_one(matcher: Matcher, paths: list[Path]) -> None:
    done: list[tuple[int, int]] = []
    images: list[ImageLike] = [paths[0], paths[1], paths[0]]
    found = list(matcher.extract_many(images, progress=lambda *given: done.append(given)))
    assert found[2] is found[0]
    assert done == [(1, 3), (2, 3), (3, 3)]
    expected = matcher.extract(paths[1])
    assert torch.equal(found[1].map.features, expected.map.features)
    assert torch.equal(found[1].keypoints, expected.keypoints)
    assert list(matcher.extract_many([])) == []


class TestIterateImages:
    def test_a_folder_in_natural_order(self, paths: list[Path], tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("no image")
        found = list(iterate_images(tmp_path))
        assert [path.name for path, _ in found] == ["a2.png", "a10.png", "b.png"]
        torch.testing.assert_close(found[1][1], to_tensor(paths[0]))
        assert len(list(iterate_images(str(tmp_path), max_images=2))) == 2

    def test_a_video(self, tmp_path: Path) -> None:
        writer = cv2.VideoWriter(str(tmp_path / "v.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (48, 40))
        for level in (30, 120, 220):
            writer.write(np.full((40, 48, 3), level, np.uint8))
        writer.release()
        found = list(iterate_images(tmp_path / "v.mp4"))
        assert [path for path, _ in found] == [tmp_path / "v.mp4" / f"{i:06d}" for i in range(3)]
        levels = [float(image.mean()) for _, image in found]
        np.testing.assert_allclose(levels, np.array([30, 120, 220]) / 255, atol=0.03)
        assert len(list(iterate_images(tmp_path / "v.mp4", max_images=1))) == 1

    def test_errors_come_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no frames"):
            iterate_images(tmp_path)
        with pytest.raises(DataError, match="cannot read video"):
            iterate_images(tmp_path / "no.mp4")
        with pytest.raises(DataError, match=r"a\.png is an image; give a video, or a folder of images"):
            iterate_images(tmp_path / "a.png")
        with pytest.raises(ValueError, match="max_images must be at least 1, got 0"):
            iterate_images(tmp_path, max_images=0)
