"""The worker: features of batches, and shards as a stream, in order, in the batches that names give."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.batch_cases import make_texture, write_images
from ucn.config import ModelConfig
from ucn.errors import ConfigError, ImageReadError, OutputError
from ucn.features.classical import DenseSift
from ucn.features.lightglue import LearnedKeypoints, SizedKeypoints
from ucn.folders.shards import Shard, write_shard
from ucn.folders.worker import (
    BatchExtractor,
    ExtractSettings,
    FeatureExtractionWorker,
    ResizedImage,
    _run_ahead,
    read_resized,
)
from ucn.formats.hloc import ImageFeatures, open_features
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.nn.tiling import reduce_image
from ucn.runtime.threads import start_threads
from ucn.types import FeatureMap, Features, ImageLike
from ucn.weights import LoadedWeights, WeightsInfo

STREAM_SETTINGS = ExtractSettings(max_side=None, max_keypoints=30, batch=2)


def make_resized(hw: tuple[int, int], seed: int, scale: int = 1) -> ResizedImage:
    pixels = torch.from_numpy(make_texture(hw, seed)).permute(2, 0, 1) / 255
    return ResizedImage(pixels, (hw[0] * scale, hw[1] * scale))


def extract(extractor: BatchExtractor, images: Sequence[ResizedImage]) -> list[ImageFeatures]:
    """Features of images of one size, in one batch."""
    return extractor.submit([extractor.detect(image) for image in images]).result()


class OwnKeypoints:
    has_own_keypoints = True

    def extract(self, image: ImageLike) -> Features:
        found = DenseSift().extract(image)
        return Features(found.map, found.image_hw, torch.tensor([[3.0, 4.0], [10.5, 20.0], [7.0, 7.0]]))


class Counting:
    """Has `encode`, and notes how many images came together."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def extract(self, image: ImageLike) -> Features:
        raise AssertionError("encode is to be called")

    def encode(self, images: Tensor) -> FeatureMap:
        self.sizes.append(len(images))
        pooled = F.avg_pool2d(images, 4)
        return FeatureMap(F.normalize(pooled - 0.5, dim=1), 4, 1.5, (images.shape[-2], images.shape[-1]))


def test_points_come_back_in_pixels_of_the_file() -> None:
    settings = ExtractSettings(max_keypoints=50)
    images = [make_resized((48, 64), 0), make_resized((48, 64), 0, 2)]
    once, twice = extract(BatchExtractor(DenseSift(), settings), images)
    assert (once.image_hw, twice.image_hw) == ((48, 64), (96, 128))
    np.testing.assert_allclose(twice.keypoints, (once.keypoints + 0.5) * 2 - 0.5, atol=1e-4)
    np.testing.assert_array_equal(once.descriptors, twice.descriptors)


def test_descriptors_are_those_at_the_keypoints() -> None:
    image = make_resized((48, 64), 1)
    found = extract(BatchExtractor(DenseSift(), ExtractSettings(max_keypoints=20)), [image])[0]
    feature_map = DenseSift().extract(image.pixels).map
    expected = sample_descriptors(feature_map, torch.from_numpy(found.keypoints)[None])[0].numpy()
    np.testing.assert_allclose(found.descriptors, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-5)
    mean = feature_map.features[0].flatten(1).mean(dim=1)
    assert found.global_descriptor is not None
    np.testing.assert_allclose(found.global_descriptor, mean / mean.norm(), atol=1e-6)


def test_coarse_maps_are_placed_in_pixels_of_the_file() -> None:
    images = [make_resized((48, 64), 2), make_resized((48, 64), 2, 2)]
    once, twice = (item.coarse for item in extract(BatchExtractor(Counting(), ExtractSettings()), images))
    assert once is not None and twice is not None
    # Four cells of 4 px, at 1.5, 5.5, 9.5 and 13.5, make a coarse one at 7.5.
    assert (once.first, once.step) == ((7.5, 7.5), (16.0, 16.0))
    assert (twice.first, twice.step) == ((15.5, 15.5), (32.0, 32.0))
    assert once.descriptors.shape == (3, 3, 4)
    cells = Counting().encode(images[0].pixels[None]).features[0].numpy()
    mean = cells[:, 8:12, 4:8].mean(axis=(1, 2))
    np.testing.assert_allclose(once.descriptors[:, 2, 1], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_array_equal(once.descriptors, twice.descriptors)


def test_a_batch_gives_what_single_images_give() -> None:
    counting = Counting()
    images = [make_resized((32, 40), seed) for seed in range(3)]
    together = extract(BatchExtractor(counting, ExtractSettings(batch=3, max_keypoints=9)), images)
    assert counting.sizes == [3]
    alone = BatchExtractor(Counting(), ExtractSettings(batch=1, max_keypoints=9))
    for image, found in zip(images, together, strict=True):
        expected = extract(alone, [image])[0]
        np.testing.assert_array_equal(found.keypoints, expected.keypoints)
        np.testing.assert_allclose(found.descriptors, expected.descriptors, atol=1e-6)
        assert found.coarse is not None and expected.coarse is not None
        np.testing.assert_allclose(found.coarse.descriptors, expected.coarse.descriptors, atol=1e-6)


def test_images_of_a_batch_have_as_many_keypoints_as_they_have() -> None:
    """Descriptors are read for all images at once; one with none, or with few, gets no more than that."""
    blank = ResizedImage(torch.full((3, 32, 40), 0.5), (32, 40))
    images = [make_resized((32, 40), 0), blank, make_resized((32, 40), 1)]
    images[2].pixels[:, :, 12:] = 0.5
    extractor = BatchExtractor(Counting(), ExtractSettings(batch=3, max_keypoints=50))
    found = extract(extractor, images)
    counts = [len(item) for item in found]
    assert counts[0] > counts[2] > counts[1] == 0
    for image, item in zip(images, found, strict=True):
        (alone,) = extract(extractor, [image])
        assert item.descriptors.shape == (len(item), 3)
        np.testing.assert_array_equal(item.keypoints, alone.keypoints)
        np.testing.assert_array_equal(item.descriptors, alone.descriptors)
        assert item.global_descriptor is not None and alone.global_descriptor is not None
        np.testing.assert_array_equal(item.global_descriptor, alone.global_descriptor)
    assert [len(item) for item in extract(extractor, [blank, blank])] == [0, 0]


def test_network_gives_the_same_in_a_batch() -> None:
    info = WeightsInfo("w", "0", "geometric", "none", "none", "none", "none")
    loaded = LoadedWeights(
        build_model(ModelConfig()), calibration=Matcher.from_pretrained()._calibration, info=info, training={}
    )
    matcher = Matcher(loaded, device="cpu")
    images = [make_resized((32, 48), seed) for seed in range(2)]
    together = extract(BatchExtractor(matcher, ExtractSettings(batch=2, max_keypoints=9)), images)
    for image, found in zip(images, together, strict=True):
        expected = matcher.extract(image.pixels).map
        points = torch.from_numpy(found.keypoints)[None]
        np.testing.assert_allclose(found.descriptors, sample_descriptors(expected, points)[0], atol=1e-5)


def test_own_keypoints() -> None:
    settings = ExtractSettings(detector="own", max_keypoints=2)
    found = extract(BatchExtractor(OwnKeypoints(), settings), [make_resized((48, 64), 0)])[0]
    np.testing.assert_array_equal(found.keypoints, [[3.0, 4.0], [10.5, 20.0]])
    assert found.scores[0] > found.scores[1] > 0
    with pytest.raises(ConfigError, match="no keypoints of its own"):
        BatchExtractor(DenseSift(), ExtractSettings(detector="own"))


class Sparse:
    """Has keypoints with descriptors, and no feature map, as the detectors of LightGlue."""

    has_own_keypoints = True

    def extract(self, image: Tensor) -> SizedKeypoints:
        points = torch.tensor([[3.0, 4.0], [10.5, 20.0], [7.0, 7.0]])
        descriptors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        return SizedKeypoints(points, descriptors, torch.tensor([9.0, 5.0, 1.0]), (48, 64))


def test_keypoints_without_a_feature_map() -> None:
    extractor: Any = Sparse()
    settings = ExtractSettings(detector="own", max_keypoints=2)
    found = extract(BatchExtractor(extractor, settings), [make_resized((48, 64), 0, scale=2)])[0]
    np.testing.assert_array_equal(found.keypoints, [[6.5, 8.5], [21.5, 40.5]])  # pixels of the file
    np.testing.assert_array_equal(found.descriptors, np.array([[1, 0], [0.6, 0.8]], np.float32))
    assert (found.image_hw, len(found.scores)) == ((96, 128), 2)
    assert found.global_descriptor is not None and found.coarse is None
    assert found.global_descriptor.tolist() == pytest.approx([0.8944, 0.4472], abs=1e-4)


SCALES = (1.0, 0.5, 0.25)


def test_settings_in_files_name_scales_only_where_there_are_several() -> None:
    assert ExtractSettings().to_key() == {
        "max_side": 1024,
        "max_keypoints": 4096,
        "detector": "corners",
        "batch": 4,
    }
    assert ExtractSettings(scales=SCALES).to_key()["scales"] == [1.0, 0.5, 0.25]


def test_keypoints_of_a_reduced_image_are_in_pixels_of_the_file() -> None:
    """The corners of a white square of 32 px are found again in the image of half the size."""
    pixels = torch.zeros(3, 96, 128)
    pixels[:, 32:64, 48:80] = 1
    settings = ExtractSettings(max_keypoints=80, scales=SCALES)
    (found,) = extract(BatchExtractor(Counting(), settings), [ResizedImage(pixels, (96, 128))])
    corners = np.array([[x, y] for x in (47.5, 79.5) for y in (31.5, 63.5)])
    assert found.levels is not None and found.levels.tolist() == [0] * 4 + [1] * 4  # 24 px are too few
    for level, limit in ((0, 2.0), (1, 4.0)):  # detected corners lie 1.3 px inside, in x and y
        points = found.keypoints[found.list_rows(level)]
        distances = np.linalg.norm(points[:, None] - corners, axis=2)
        assert distances.min(axis=0).max() < limit
        np.testing.assert_allclose(points.mean(axis=0), [63.5, 47.5], atol=0.01)
    assert [(item.first, item.step) for item in found.coarse_maps] == [
        ((7.5, 7.5), (16.0, 16.0)),
        ((15.5, 15.5), (32.0, 32.0)),
    ]


def test_each_scale_is_that_of_its_image_alone() -> None:
    images = [make_resized((128, 160), seed, scale=2) for seed in range(2)]
    counting = Counting()
    settings = ExtractSettings(max_keypoints=160, scales=SCALES)
    together = extract(BatchExtractor(counting, settings), images)
    assert counting.sizes == [2, 2, 2]
    for image, found in zip(images, together, strict=True):
        assert found.levels is not None
        assert np.bincount(found.levels).tolist() == [160, 40, 10]  # as dense at each scale
        for level, scale in enumerate(SCALES):
            reduced = ResizedImage(reduce_image(image.pixels, round(160 * scale)), image.image_hw)
            alone = ExtractSettings(max_keypoints=round(160 * scale**2))
            (expected,) = extract(BatchExtractor(Counting(), alone), [reduced])
            rows = found.list_rows(level)
            np.testing.assert_array_equal(found.keypoints[rows], expected.keypoints)
            np.testing.assert_array_equal(found.scores[rows], expected.scores)
            np.testing.assert_allclose(found.descriptors[rows], expected.descriptors, atol=1e-6)
            own, coarse = found.coarse_maps[level], expected.coarse
            assert coarse is not None
            assert (own.first, own.step) == (coarse.first, coarse.step)
            np.testing.assert_allclose(own.descriptors, coarse.descriptors, atol=1e-6)
        (single,) = extract(BatchExtractor(Counting(), ExtractSettings(max_keypoints=160)), [image])
        assert found.global_descriptor is not None and single.global_descriptor is not None
        np.testing.assert_allclose(found.global_descriptor, single.global_descriptor, atol=1e-6)


def test_an_image_too_small_to_be_reduced_has_one_scale() -> None:
    settings = ExtractSettings(max_keypoints=9, scales=SCALES)
    (found,) = extract(BatchExtractor(DenseSift(), settings), [make_resized((48, 64), 0)])
    assert (found.levels, found.reduced) == (None, ())


def test_own_keypoints_at_several_scales() -> None:
    settings = ExtractSettings(detector="own", max_keypoints=3, scales=(1.0, 0.5))
    (found,) = extract(BatchExtractor(OwnKeypoints(), settings), [make_resized((96, 128), 0)])
    np.testing.assert_array_equal(found.keypoints, [[3, 4], [10.5, 20], [7, 7], [6.5, 8.5]])
    assert found.levels is not None and found.levels.tolist() == [0, 0, 0, 1]


def test_lightglue_has_one_scale() -> None:
    extractor = LearnedKeypoints.__new__(LearnedKeypoints)  # without its network
    with pytest.raises(ConfigError, match=r"LightGlue matches keypoints of one scale.*leave them out"):
        BatchExtractor(extractor, ExtractSettings(detector="own", scales=SCALES))


def test_no_images() -> None:
    assert extract(BatchExtractor(DenseSift(), ExtractSettings()), []) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"detector": "x"},
        {"max_keypoints": 0},
        {"batch": 0},
        {"max_side": 31},
        {"max_keypoints": 10**7},
        {"scales": ()},
        {"scales": (0.5, 0.25)},
        {"scales": (1.0, 0.5, 0.5)},
        {"scales": (1.0, float("nan"))},
        {"scales": (1.0, 0.0)},
        {"scales": (1.0, 0.8, 0.6, 0.4, 0.2)},
    ],
)
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ExtractSettings(**wrong)  # type: ignore[arg-type]


class Noting:
    """Notes how many images came together, in which thread, and how many threads torch had there."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, int]] = []

    def extract(self, image: ImageLike) -> Features:
        raise AssertionError("encode is to be called")

    def encode(self, images: Tensor) -> FeatureMap:
        self.calls.append((len(images), threading.current_thread().name, torch.get_num_threads()))
        found = [DenseSift().extract(image).map for image in images]
        return FeatureMap(
            torch.cat([item.features for item in found]),
            found[0].stride,
            found[0].offset,
            found[0].image_hw,
        )


def make_shards(folder: Path, names: list[str], size: int) -> list[Shard]:
    starts = range(0, len(names), size)
    return [Shard(folder / f"{start}.h5", tuple(names[start : start + size])) for start in starts]


@pytest.mark.parametrize("threads", [1, 3])
def test_files_are_those_of_one_image_after_another(tmp_path: Path, threads: int) -> None:
    names = write_images(tmp_path / "images", 7)
    (tmp_path / "images" / names[1]).write_bytes(b"no image")
    noting = Noting()
    worker = FeatureExtractionWorker(tmp_path / "images", BatchExtractor(noting, STREAM_SETTINGS), threads)
    shards = make_shards(tmp_path, names, 4)
    assert list(worker.run(shards)) == shards
    # Three readable images of the first shard, then three of the second: no batch crosses shards.
    assert [count for count, _, _ in noting.calls] == [2, 1, 2, 1]
    assert {(name, count) for _, name, count in noting.calls} == {
        (threading.current_thread().name, torch.get_num_threads())
    }
    alone = BatchExtractor(Noting(), STREAM_SETTINGS)
    for shard in shards:
        good = [name for name in shard.names if name != names[1]]
        found = [extract(alone, [read_resized(tmp_path / "images" / name, None)])[0] for name in good]
        with open_features(shard.path) as file:
            failures = file.meta["failures"]
        write_shard(tmp_path / "alone.h5", dict(zip(good, found, strict=True)), failures)
        assert shard.path.read_bytes() == (tmp_path / "alone.h5").read_bytes()
        assert list(failures) == [name for name in shard.names if name == names[1]]


def test_images_of_another_size_begin_a_batch(tmp_path: Path) -> None:
    first = write_images(tmp_path / "images", 2)
    write_images(tmp_path / "images" / "z", 2, (64, 48))
    noting = Noting()
    settings = ExtractSettings(max_side=None, max_keypoints=30, batch=9)
    worker = FeatureExtractionWorker(tmp_path / "images", BatchExtractor(noting, settings), 2)
    (shard,) = make_shards(tmp_path, [*first, "z/000.png", "z/001.png"], 9)
    assert [item.path for item in worker.run([shard])] == [shard.path]
    assert [count for count, _, _ in noting.calls] == [2, 2]


def test_no_shards_and_a_shard_without_readable_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    worker = FeatureExtractionWorker(tmp_path, BatchExtractor(DenseSift(), STREAM_SETTINGS), 2)
    assert list(worker.run([])) == []
    (shard,) = make_shards(tmp_path, ["a.png"], 1)
    assert list(worker.run([shard])) == [shard]
    with open_features(shard.path) as file:
        assert (len(file), list(file.meta["failures"])) == (0, ["a.png"])


def test_threads_compute_alone_and_torch_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write_images(tmp_path / "images", 4)
    seen: set[int] = set()

    def note(path: Path, max_side: int | None) -> ResizedImage:
        seen.add(torch.get_num_threads())
        return read_resized(path, max_side)

    monkeypatch.setattr("ucn.folders.worker.read_resized", note)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        worker = FeatureExtractionWorker(tmp_path / "images", BatchExtractor(DenseSift(), STREAM_SETTINGS), 2)
        shards = make_shards(tmp_path, names, 2)
        assert list(worker.run(shards)) == shards
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (seen, torch.get_num_threads(), later) == ({1}, 3, [3])
    finally:
        torch.set_num_threads(before)


def test_threads_end_with_the_work_and_with_an_error(tmp_path: Path) -> None:
    names = write_images(tmp_path / "images", 6)
    before = threading.active_count()
    worker = FeatureExtractionWorker(tmp_path / "images", BatchExtractor(DenseSift(), STREAM_SETTINGS), 3)
    shards = make_shards(tmp_path, names, 2)
    stream = worker.run(shards)
    next(stream)
    stream.close()
    assert threading.active_count() == before
    (tmp_path / "2.h5").unlink(missing_ok=True)
    (tmp_path / "2.h5").mkdir()
    with pytest.raises(OutputError, match=r"2\.h5"):
        list(worker.run(shards))
    assert threading.active_count() == before


def test_only_so_many_are_worked_on_ahead() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item * item

    with start_threads(2) as pool:
        stream = _run_ahead(pool, work, range(20), 5)
        assert next(stream) == 0
        time.sleep(0.05)
        assert len(begun) <= 6
        assert list(stream) == [item * item for item in range(1, 20)]


@pytest.mark.gpu
def test_a_gpu_gives_what_it_gives_step_by_step(tmp_path: Path) -> None:
    """Copies that nobody waits for must be complete when they are read."""
    from ucn.matching.matcher import Matcher

    matcher = Matcher.from_pretrained("geometric-lite", device="cuda")
    images = [make_resized((96, 128), seed) for seed in range(4)]
    extractor = BatchExtractor(matcher, ExtractSettings(max_side=None, max_keypoints=200, batch=4))
    found = extract(extractor, images)
    together = matcher.encode(torch.stack([image.pixels for image in images]))
    for row, item in enumerate(found):
        points = torch.from_numpy(item.keypoints).cuda()
        expected = sample_descriptors(together[row], points[None])[0].cpu().numpy()
        np.testing.assert_allclose(item.descriptors, expected, atol=1e-6)


def test_size_of_the_file_is_kept(tmp_path: Path) -> None:
    name = write_images(tmp_path, 1, (48, 96))[0]
    found = read_resized(tmp_path / name, 64)
    assert (found.hw, found.image_hw) == ((32, 64), (48, 96))


def test_small_image_is_refused(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (40, 31)).save(tmp_path / "s.png")
    with pytest.raises(ImageReadError, match=r"s\.png must be at least 32 px a side, got 40 × 31"):
        read_resized(tmp_path / "s.png", None)
