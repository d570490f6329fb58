import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.batch_cases import make_texture
from ucn.config import ModelConfig
from ucn.errors import ConfigError
from ucn.features import DenseSift
from ucn.folders.image_features import ExtractSettings, ImageDescriber, pool_features
from ucn.folders.images import Reduced
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.types import FeatureMap, Features, ImageLike
from ucn.weights import LoadedWeights, WeightsInfo


def make_reduced(hw: tuple[int, int], seed: int, scale: int = 1) -> Reduced:
    pixels = torch.from_numpy(make_texture(hw, seed)).permute(2, 0, 1) / 255
    return Reduced(pixels, (hw[0] * scale, hw[1] * scale))


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
    once, twice = ImageDescriber(DenseSift(), settings).describe(
        [make_reduced((48, 64), 0), make_reduced((48, 64), 0, 2)]
    )
    assert (once.image_hw, twice.image_hw) == ((48, 64), (96, 128))
    np.testing.assert_allclose(twice.keypoints, (once.keypoints + 0.5) * 2 - 0.5, atol=1e-4)
    np.testing.assert_array_equal(once.descriptors, twice.descriptors)


def test_descriptors_are_those_at_the_keypoints() -> None:
    image = make_reduced((48, 64), 1)
    found = ImageDescriber(DenseSift(), ExtractSettings(max_keypoints=20)).describe([image])[0]
    feature_map = DenseSift().extract(image.pixels).map
    expected = sample_descriptors(feature_map, torch.from_numpy(found.keypoints)[None])[0].numpy()
    np.testing.assert_allclose(found.descriptors, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-5)
    mean = feature_map.features[0].flatten(1).mean(dim=1)
    assert found.global_descriptor is not None
    np.testing.assert_allclose(found.global_descriptor, mean / mean.norm(), atol=1e-6)
    np.testing.assert_array_equal(pool_features(feature_map), found.global_descriptor)


def test_images_of_one_size_go_together() -> None:
    counting = Counting()
    sizes = [(32, 40)] * 5 + [(36, 40)] + [(32, 40)] * 2
    images = [make_reduced(hw, seed) for seed, hw in enumerate(sizes)]
    together = ImageDescriber(counting, ExtractSettings(batch=3, max_keypoints=9)).describe(images)
    assert counting.sizes == [3, 2, 1, 2]
    alone = ImageDescriber(Counting(), ExtractSettings(batch=1, max_keypoints=9))
    for image, found in zip(images, together, strict=True):
        expected = alone.describe([image])[0]
        np.testing.assert_array_equal(found.keypoints, expected.keypoints)
        np.testing.assert_allclose(found.descriptors, expected.descriptors, atol=1e-6)


def test_images_of_a_batch_have_as_many_keypoints_as_they_have() -> None:
    """Descriptors are read for all images at once; one with none, or with few, gets no more than that."""
    blank = Reduced(torch.full((3, 32, 40), 0.5), (32, 40))
    images = [make_reduced((32, 40), 0), blank, make_reduced((32, 40), 1)]
    images[2].pixels[:, :, 12:] = 0.5
    describer = ImageDescriber(Counting(), ExtractSettings(batch=3, max_keypoints=50))
    found = describer.describe(images)
    counts = [len(item) for item in found]
    assert counts[0] > counts[2] > counts[1] == 0
    for image, item in zip(images, found, strict=True):
        (alone,) = describer.describe([image])
        assert item.descriptors.shape == (len(item), 3)
        np.testing.assert_array_equal(item.keypoints, alone.keypoints)
        np.testing.assert_array_equal(item.descriptors, alone.descriptors)
        assert item.global_descriptor is not None and alone.global_descriptor is not None
        np.testing.assert_array_equal(item.global_descriptor, alone.global_descriptor)
    assert [len(item) for item in describer.describe([blank, blank])] == [0, 0]


def test_network_gives_the_same_in_a_batch() -> None:
    info = WeightsInfo("w", "0", "geometric", "none", "none", "none", "none")
    loaded = LoadedWeights(
        build_model(ModelConfig()), calibration=Matcher.from_pretrained()._calibration, info=info, training={}
    )
    matcher = Matcher(loaded, device="cpu")
    images = [make_reduced((32, 48), seed) for seed in range(2)]
    together = ImageDescriber(matcher, ExtractSettings(batch=2, max_keypoints=9)).describe(images)
    for image, found in zip(images, together, strict=True):
        expected = matcher.extract(image.pixels).map
        points = torch.from_numpy(found.keypoints)[None]
        np.testing.assert_allclose(found.descriptors, sample_descriptors(expected, points)[0], atol=1e-5)


def test_own_keypoints() -> None:
    found = ImageDescriber(OwnKeypoints(), ExtractSettings(detector="own", max_keypoints=2)).describe(
        [make_reduced((48, 64), 0)]
    )[0]
    np.testing.assert_array_equal(found.keypoints, [[3.0, 4.0], [10.5, 20.0]])
    assert found.scores[0] > found.scores[1] > 0
    with pytest.raises(ConfigError, match="no keypoints of its own"):
        ImageDescriber(DenseSift(), ExtractSettings(detector="own"))


def test_no_images() -> None:
    assert ImageDescriber(DenseSift(), ExtractSettings()).describe([]) == []


@pytest.mark.parametrize(
    "wrong",
    [{"detector": "x"}, {"max_keypoints": 0}, {"batch": 0}, {"max_side": 31}, {"max_keypoints": 10**7}],
)
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ExtractSettings(**wrong)  # type: ignore[arg-type]
