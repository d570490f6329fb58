"""The kornia module against kornia's own functions, and against the library's own reading of features."""

import pytest
import torch

from ucn.config import Calibration, ModelConfig
from ucn.formats.kornia import LocalFeature
from ucn.geometry.sampling import sample_descriptors
from ucn.nn import build_model
from ucn.weights import LoadedWeights, WeightsInfo, load_weights

kornia_feature = pytest.importorskip("kornia.feature", reason="needs the extra 'kornia'")


@pytest.fixture(scope="module")
def feature() -> LocalFeature:
    info = WeightsInfo("random", "", "", "", "", "", "")
    return LocalFeature(LoadedWeights(build_model(ModelConfig(dim=16)), Calibration(), info, {}), 60)


def make_images(batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.rand(batch, channels, 48, 64, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_what_comes_back(feature: LocalFeature) -> None:
    images = make_images()
    lafs, responses, descriptors = feature(images)
    assert (lafs.shape, responses.shape, descriptors.shape) == ((2, 60, 2, 3), (2, 60), (2, 60, 16))
    centres = kornia_feature.get_laf_center(lafs)
    scales = kornia_feature.get_laf_scale(lafs)
    is_filled = kornia_feature.laf_is_filled(lafs)
    torch.testing.assert_close(is_filled, responses > 0)
    assert is_filled.any()
    assert scales[is_filled].sub(16).abs().max() < 1e-3
    assert kornia_feature.get_laf_orientation(lafs)[is_filled].abs().max() < 1e-4
    expected = sample_descriptors(feature.network.encode(images), centres)
    torch.testing.assert_close(descriptors[is_filled], expected[is_filled])
    torch.testing.assert_close(descriptors[is_filled].norm(dim=-1), torch.ones(int(is_filled.sum())))


@torch.no_grad()
def test_batched_equals_single_and_grey_equals_three_channels(feature: LocalFeature) -> None:
    images = make_images()
    for one, both in zip(feature(images[1:]), feature(images), strict=True):
        torch.testing.assert_close(one[0], both[1], atol=1e-5, rtol=1e-4)
    grey = make_images(1, channels=1)
    for one, three in zip(feature(grey), feature(grey.expand(-1, 3, -1, -1)), strict=True):
        torch.testing.assert_close(one, three)


@torch.no_grad()
def test_pixel_frame_is_kornias() -> None:
    image = torch.zeros(1, 1, 40, 50)
    image[..., 17, 23] = 1
    frame = torch.tensor([[[[2.0, 0, 23], [0, 2.0, 17]]]])
    patch = kornia_feature.extract_patches_simple(image, frame, 5)[0, 0, 0]
    assert patch.argmax() == 12  # the middle of 5 × 5
    assert patch[2, 2] == pytest.approx(1.0, abs=1e-3)


@torch.no_grad()
def test_mask_and_blank_images(feature: LocalFeature) -> None:
    images = make_images(1)
    mask = torch.zeros(1, 1, 48, 64)
    mask[..., :24, :] = 1
    lafs, responses, _ = feature(images, mask)
    assert (kornia_feature.get_laf_center(lafs)[responses > 0][:, 1] < 24).all()
    for values in feature(torch.zeros(1, 3, 48, 64)):
        assert not values.any()


def test_gradients_reach_the_network(feature: LocalFeature) -> None:
    feature(make_images(1))[2].sum().backward()
    weight = feature.network.projection.weight
    assert isinstance(weight, torch.nn.Parameter)
    gradient = weight.grad
    assert gradient is not None
    assert gradient.abs().sum() > 0
    feature.zero_grad()


@torch.no_grad()
def test_kornias_matcher_finds_a_shift() -> None:
    from ucn.data.example import example_pair
    from ucn.data.io import read_image

    image = read_image(example_pair().image0_path)[None, :, 100:260, 200:440]
    data = {"image0": image[..., :-16], "image1": image[..., 16:]}
    feature = LocalFeature("geometric", 300)
    assert feature.max_side == load_weights("geometric").max_side
    matcher = kornia_feature.LocalFeatureMatcher(feature, kornia_feature.DescriptorMatcher("mnn"))
    found = matcher(data)
    shifts = found["keypoints0"] - found["keypoints1"] - torch.tensor([16.0, 0.0])
    assert len(shifts) > 50
    assert (shifts.norm(dim=1) <= 2).float().mean() > 0.8


@pytest.mark.parametrize(
    ("images", "mask", "error"),
    [
        (torch.zeros(3, 48, 64), None, r"images must be \(B, 3, H, W\)"),
        (torch.zeros(1, 2, 48, 64), None, r"got \(1, 2, 48, 64\)"),
        (torch.zeros(1, 3, 20, 64), None, "at least 32 px"),
        (torch.zeros(1, 3, 48, 64, dtype=torch.uint8), None, r"in \[0, 1\], got torch\.uint8"),
        (torch.zeros(1, 3, 48, 64), torch.ones(1, 48, 64), r"mask must be \(B, 1, H, W\)"),
    ],
)
def test_wrong_input(
    feature: LocalFeature, images: torch.Tensor, mask: torch.Tensor | None, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        feature(images, mask)


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="num_features must be at least 1"):
        LocalFeature(num_features=0)
    with pytest.raises(ValueError, match="laf_scale must be above 0"):
        LocalFeature(laf_scale=0)
