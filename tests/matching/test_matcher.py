"""The matcher on images whose answer is known; a network with random weights is enough for most of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import Calibration, MatchConfig, ModelConfig
from ucn.data.example import example_pair
from ucn.data.io import to_pixels, write_image
from ucn.errors import ConfigError, ImageReadError, PointsError, WeightsError
from ucn.matching.keypoints import Corners, detect_corners
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.types import FeatureMap, Features
from ucn.weights import LoadedWeights, WeightsInfo, save_weights


def _loaded() -> LoadedWeights:
    info = WeightsInfo.of_file(Path("random"), "0" * 64, 0)
    model = build_model(ModelConfig(dim=32, transformer="none"))
    return LoadedWeights(model, Calibration(), info, {})


def _matcher(**settings: object) -> Matcher:
    return Matcher(_loaded(), config=MatchConfig.from_dict(settings), device="cpu")


def _texture(height: int, width: int, seed: int = 0) -> Tensor:
    """Random blobs of several sizes, (3, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(1, 3, height, width)
    for step in (4, 9, 23):
        noise = torch.rand(1, 3, height // step + 2, width // step + 2, generator=generator)
        total += F.interpolate(noise, (height, width), mode="bicubic", align_corners=False)
    return (total[0] / 3).clamp(0, 1)


@pytest.fixture(scope="module")
def image() -> Tensor:
    return _texture(120, 168)


def test_an_image_matches_itself(image: Tensor) -> None:
    matches = _matcher().match(image, image)
    assert len(matches) > 50
    assert np.abs(matches.points0 - matches.points1).max() < 0.01
    assert matches.is_mutual.all()
    assert ((matches.scores >= 0) & (matches.scores <= 1)).all()
    assert (np.diff(matches.scores) <= 0).all()
    assert 0 <= matches.pair_score <= 1
    assert (matches.image0_hw, matches.image1_hw) == ((120, 168), (120, 168))


def test_without_alignment_a_border_cell_answers_for_points_beyond_it(image: Tensor) -> None:
    matches = _matcher(use_alignment=False).match(image, image)
    # The outermost cell centres are 2 px from the border.
    nearest_centre = matches.points0.clip([2, 2], [166, 118])
    assert np.abs(nearest_centre - matches.points1).max() < 0.75
    assert matches.points0.dtype == matches.points1.dtype == matches.scores.dtype == np.float32


def test_shift_is_found_in_the_callers_pixels() -> None:
    wide = _texture(128, 200)
    image0, image1 = wide[:, :, 16:], wide[:, :, :184]  # what lies at x in image 0 lies at x + 16 in image 1
    matches = _matcher().match(image0, image1)
    error = np.abs(matches.points1 - matches.points0 - [16, 0]).max(axis=1)
    assert np.median(error) < 0.5 and (error < 3).mean() > 0.9


def test_images_are_reduced_to_the_side_that_weights_were_made_for() -> None:
    loaded = replace(_loaded(), max_side=64)
    image = _texture(96, 128)
    assert Matcher(loaded, device="cpu").extract(image).map.image_hw == (48, 64)
    assert Matcher(loaded, device="cpu", max_side="auto").config.max_side == 64
    for max_side in (None, 1000):
        matcher = Matcher(loaded, config=MatchConfig(max_side=max_side), device="cpu")
        assert matcher.extract(image).map.image_hw == (96, 128)
        assert matcher.with_config(MatchConfig()).extract(image).map.image_hw == (48, 64)
        assert matcher.config.max_side == max_side


class TestSettings:
    def test_keywords_change_the_configuration(self) -> None:
        base = MatchConfig(ratio=0.9, max_side=64)
        matcher = Matcher(_loaded(), config=base, device="cpu", min_score=0.3, max_side=None)
        assert matcher.config == replace(base, min_score=0.3, max_side=None)
        other = matcher.with_config(ratio=0.8)
        assert other.config == replace(matcher.config, ratio=0.8)
        assert matcher.with_config(base, ratio=0.8).config == replace(base, ratio=0.8)
        assert matcher.config.ratio == 0.9

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"min_scor": 0.3}, "unknown setting 'min_scor'; did you mean 'min_score'.*max_keypoints"),
            ({"devise": "cpu"}, "unknown setting 'devise'; did you mean 'device'"),
            ({"min_score": 2.0}, r"min_score must be in \[0, 1\], got 2.0"),
            ({"max_side": 0}, r"max_side must be at least 32, 'auto' \(the side of the weights\) or None"),
        ],
    )
    def test_wrong_keywords(self, settings: dict[str, Any], message: str) -> None:
        for weights in (_loaded(), "no such weights"):
            with pytest.raises(ConfigError, match=message):
                Matcher(weights, device="cpu", **settings)

    def test_weights_by_path_and_by_name(self, tmp_path: Path) -> None:
        save_weights(tmp_path / "w.safetensors", _loaded().model, max_side=96)
        for path in (tmp_path / "w.safetensors", str(tmp_path / "w.safetensors")):
            assert Matcher(path, device="cpu").config.max_side == 96
        assert Matcher.from_pretrained(path, device="cpu", min_score=0.25).config.min_score == 0.25
        with pytest.raises(WeightsError, match="no weights 'geometrik'; did you mean 'geometric'"):
            Matcher("geometrik")


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    settings = {"consensus": False, "use_alignment": False, "use_mutual": False, "min_score": 0.0}
    return _matcher(max_keypoints=40, **settings)


class TestFeaturesAsImages:
    def test_match_and_flow_take_features(self, matcher: Matcher) -> None:
        image0, image1 = _texture(48, 64), _texture(40, 56, seed=1)
        features0, features1 = matcher.extract(image0), matcher.extract(image1)
        expected, dense = matcher.match(image0, image1), matcher.flow(image0, image1).flow_0to1
        assert len(expected) > 5
        for pair in ((features0, image1), (image0, features1), (features0, features1)):
            found = matcher.match(*pair)
            np.testing.assert_array_equal(found.points1, expected.points1)
            assert found.pair_score == expected.pair_score
            assert [each is None for each in found.sources] == [isinstance(each, Features) for each in pair]
            np.testing.assert_array_equal(matcher.flow(*pair).flow_0to1, dense)

    def test_results_refer_to_the_images(self, matcher: Matcher, tmp_path: Path) -> None:
        image = _texture(48, 64)
        write_image(tmp_path / "a.png", to_pixels(image))
        matches = matcher.match(tmp_path / "a.png", image)
        assert matches.sources[0] == tmp_path / "a.png"
        assert callable(matches.sources[1]) and matches.sources[1]() is image
        assert matches.draw(width=200).shape[1] == 200

    def test_features_from_a_file(self, matcher: Matcher, tmp_path: Path) -> None:
        image = _texture(48, 64)
        matcher.extract(image).save(tmp_path / "f.safetensors")
        loaded = Features.load(tmp_path / "f.safetensors")
        found, expected = matcher.match(loaded, loaded), matcher.match(image, image)
        np.testing.assert_array_equal(found.points1, expected.points1)
        np.testing.assert_array_equal(found.scores, expected.scores)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_features_of_another_type(self, matcher: Matcher, dtype: torch.dtype) -> None:
        image = _texture(48, 64)
        features = matcher.extract(image)
        other = replace(features, map=replace(features.map, features=features.map.features.to(dtype)))
        expected = matcher.match(features, features)
        for pair in ((other, image), (image, other), (other, other)):
            found = matcher.match(*pair)
            assert np.median(np.abs(found.points1 - expected.points1)) < 0.1

    def test_features_of_other_weights_are_refused(self, matcher: Matcher) -> None:
        features = matcher.extract(_texture(48, 64))
        other = replace(features, map=replace(features.map, features=features.map.features[:, :16]))
        message = "must be of the same weights, got descriptors of 32 and 16 dimensions"
        for call in (
            lambda: matcher.match(features, other),
            lambda: matcher.flow(features, other),
            lambda: matcher.pair_context(features, other),
            lambda: matcher.similarities(features, other, (3, 4)),
        ):
            with pytest.raises(ValueError, match=message):
                call()


class TestDescribe:
    def test_cells_have_their_own_descriptors(self, image: Tensor) -> None:
        matcher = _matcher(max_side=84)  # half of the image's
        features = matcher.extract(image)
        points = [[4.5, 4.5], [12.5, 20.5]]  # cells (0, 0) and (2, 1): (2 + 0.5) * 2 - 0.5
        found = matcher.describe(features, points)
        assert found.dtype == torch.float32
        expected = features.map.features[0][:, [0, 2], [0, 1]].T
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        between = matcher.describe(features, torch.tensor([[8.5, 4.5], [100.3, 60.7]]))
        torch.testing.assert_close(between.norm(dim=1), torch.ones(2))
        mean = features.map.features[0, :, 0, :2].mean(dim=1)
        torch.testing.assert_close(between[0], mean / mean.norm(), atol=1e-5, rtol=0)

    def test_half_precision_gives_unit_float32(self, image: Tensor) -> None:
        matcher = _matcher()
        features = matcher.extract(image)
        half = replace(features, map=replace(features.map, features=features.map.features.bfloat16()))
        found = matcher.describe(half, [[50.3, 60.2]])
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.norm(dim=1), torch.ones(1))
        torch.testing.assert_close(found, matcher.describe(features, [[50.3, 60.2]]), atol=0.02, rtol=0)

    def test_no_points_and_bad_points(self, image: Tensor) -> None:
        matcher = _matcher()
        features = matcher.extract(image)
        assert matcher.describe(features, []).shape == (0, 32)
        with pytest.raises(PointsError, match="lies outside the image"):
            matcher.describe(features, [[168.0, 3.0]])


def test_reduced_images_answer_in_the_callers_pixels() -> None:
    large = F.interpolate(_texture(96, 128)[None], (384, 512), mode="bicubic", align_corners=False)[0].clamp(
        0, 1
    )
    features = _matcher(max_side=128).extract(large)
    assert features.map.image_hw == (96, 128)
    assert features.image_hw == (384, 512)
    points = torch.tensor([[0.0, 0.0], [511.0, 383.0], [200.5, 100.25]])
    matches = _matcher(max_side=128).match(large, large, points=points)
    assert np.abs(matches.points1[2] - [200.5, 100.25]).max() < 2.5
    assert (matches.points1 >= -0.5).all() and (matches.points1 <= [511.5, 383.5]).all()


def test_images_of_different_sizes() -> None:
    small = _texture(96, 128)
    double = F.interpolate(small[None], scale_factor=2, mode="bilinear", align_corners=False)[0]
    matches = _matcher(max_side=128).match(small, double)
    expected = (matches.points0 + 0.5) * 2 - 0.5
    assert np.median(np.abs(matches.points1 - expected)) < 1.0


def test_every_query_is_answered_in_order(image: Tensor) -> None:
    points = np.array([[100.0, 60.0], [30.25, 80.5], [100.0, 60.0], [-0.5, 119.5]])
    matches = _matcher(min_score=1.0, ratio=0.01).match(image, image, points=points)
    np.testing.assert_allclose(matches.points0, points)
    assert np.abs(matches.points1[:3] - points[:3]).max() < 1.0
    np.testing.assert_array_equal(matches.points1[0], matches.points1[2])


def test_no_points(image: Tensor) -> None:
    matches = _matcher().match(image, image, points=np.zeros((0, 2)))
    assert len(matches) == 0 and matches.points1.shape == (0, 2)


@pytest.mark.slow
def test_pair_score_does_not_depend_on_the_callers_points(image: Tensor) -> None:
    free = _matcher(max_keypoints=500).match(image, image).pair_score
    for points in (np.zeros((0, 2)), [[1.0, 2.0]], [[80.0, 60.0], [0.0, 0.0]]):
        assert _matcher(max_keypoints=500).match(image, image, points=points).pair_score == pytest.approx(
            free
        )


@pytest.mark.parametrize("bad", [[[200.0, 5.0]], [[np.nan, 5.0]], [[1.0, 2.0, 3.0]]])
def test_bad_points(image: Tensor, bad: list[list[float]]) -> None:
    with pytest.raises(PointsError):
        _matcher().match(image, image, points=bad)


@pytest.mark.slow
def test_masks_keep_points_and_matches_inside(image: Tensor) -> None:
    mask0, mask1 = np.zeros((120, 168), bool), np.zeros((120, 168), bool)
    mask0[:, :84] = True
    mask1[:60] = True
    matches = _matcher().match(image, image, mask0=mask0, mask1=mask1)
    assert len(matches) > 5
    assert matches.points0[:, 0].max() <= 84
    assert matches.points1[:, 1].max() <= 59.5
    asked = _matcher().match(image, image, points=[[40.0, 100.0]], mask1=np.zeros((120, 168), bool))
    assert np.isnan(asked.points1).all() and asked.scores[0] == 0 and not asked.is_mutual[0]
    with pytest.raises(ValueError, match=r"mask must be \(H, W\) = \(120, 168\)"):
        _matcher().match(image, image, mask0=np.ones((5, 5), bool))


def test_masks_with_holes_on_both_sides() -> None:
    wide = _texture(120, 200)
    image0, image1 = wide[:, :, 24:], wide[:, :, :176]  # x in image 0 is x + 24 in image 1
    mask0, mask1 = np.zeros((120, 176), bool), np.zeros((120, 176), bool)
    mask0[40:80, 60:100] = True
    mask1[40:80, 84:124] = True  # the same place
    matches = _matcher(min_score=0.0).match(image0, image1, mask0=mask0, mask1=mask1)
    assert len(matches) > 10
    assert np.median(np.abs(matches.points1 - matches.points0 - [24, 0])) < 0.5
    column, row = matches.points1.round().astype(int).T
    assert mask1[row, column].all()
    # Looked up elsewhere, the backward match may end only where mask 0 allows.
    elsewhere = np.zeros((120, 176), bool)
    elsewhere[:30, 130:] = True
    asked = _matcher().match(image0, image1, points=[[80.0, 60.0]], mask0=elsewhere)
    assert np.abs(asked.points1[0] - [104, 60]).max() < 1 and not asked.is_mutual[0]


def test_a_mask_smaller_than_a_cell_still_names_its_place(image: Tensor) -> None:
    mask1 = np.zeros((120, 168), bool)
    mask1[52, 84] = True  # cell centres lie at 2, 6, 10, ...
    asked = _matcher().match(image, image, points=[[20.0, 20.0]], mask1=mask1)
    assert np.abs(asked.points1[0] - [84, 52]).max() <= 2.5


def test_mask_pixels_are_looked_up_to_the_pixel(image: Tensor) -> None:
    mask0 = np.zeros((120, 168), bool)
    mask0[10:110, 80] = True  # one column
    points = _matcher(keypoints="grid", grid_step=1, max_keypoints=30_000, use_mutual=False, min_score=0.0)
    assert set(points.match(image, image, mask0=mask0).points0[:, 0]) == {80.0}


def test_sides_reduced_by_different_factors() -> None:
    # 333 × 1001 at a longest side of 200 becomes 67 × 200: 0.2012 and 0.1998.
    image = F.interpolate(_texture(84, 250)[None], (333, 1001), mode="bilinear", align_corners=False)[0]
    matcher = _matcher(max_side=200)
    assert matcher.extract(image).map.image_hw == (67, 200)
    points = np.array([[900.0, 40.0], [40.0, 300.0], [960.0, 310.0], [500.0, 166.0]])
    found = matcher.match(image, image, points=points)
    assert np.abs(found.points1 - points).max() < 1.0  # the wrong factor moves x or y by 2 px and more
    flow = matcher.flow(image, image)
    assert np.abs(flow.flow_0to1[20:-20, 20:-20]).max() < 1.5


def test_flow_between_images_of_different_sizes() -> None:
    small = _texture(96, 128)
    double = F.interpolate(small[None], scale_factor=2, mode="bilinear", align_corners=False)[0]
    flow = _matcher(max_side=128).flow(small, double)
    rows, columns = np.mgrid[10:86, 10:118]
    expected = np.stack([(columns + 0.5) * 2 - 0.5 - columns, (rows + 0.5) * 2 - 0.5 - rows], axis=-1)
    assert np.median(np.abs(flow.flow_0to1[10:86, 10:118] - expected)) < 1.0


@pytest.mark.slow
def test_ratio_test_compares_with_the_second_best(image: Tensor) -> None:
    # An image against itself: best distance 0, so every ratio keeps all; against another, few survive.
    same = _matcher(min_score=0.0).match(image, image)
    assert len(_matcher(min_score=0.0, ratio=0.5).match(image, image)) > 0.9 * len(same)
    other = _texture(120, 168, seed=9)
    free = _matcher(min_score=0.0, use_mutual=False).match(image, other)
    strict = _matcher(min_score=0.0, use_mutual=False, ratio=0.9).match(image, other)
    assert 0 < len(strict) < 0.75 * len(free)


def test_all_kinds_of_images_give_the_same(image: Tensor, tmp_path: Path) -> None:
    array = (image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    PIL.Image.fromarray(array).save(tmp_path / "image.png")
    matcher = _matcher()
    first = matcher.extract(array)
    for other in (tmp_path / "image.png", str(tmp_path / "image.png"), PIL.Image.fromarray(array)):
        torch.testing.assert_close(matcher.extract(other).map.features, first.map.features)
    float_image = torch.from_numpy(array).permute(2, 0, 1).float() / 255
    torch.testing.assert_close(matcher.extract(float_image).map.features, first.map.features)


def test_extracted_features_are_reusable(image: Tensor) -> None:
    matcher = _matcher()
    features = matcher.extract(image)
    direct = matcher.match(image, image)
    reused = matcher.match_features(features, features)
    for name in ("points0", "points1", "scores"):
        np.testing.assert_array_equal(getattr(direct, name), getattr(reused, name))


@pytest.mark.slow
def test_tiles_give_the_same_matches() -> None:
    image = _texture(64, 700)
    tiled = _matcher(tile_side=256).match(image, image)
    whole = _matcher().match(image, image)
    assert len(tiled) == len(whole)
    np.testing.assert_allclose(np.sort(tiled.scores), np.sort(whole.scores), atol=1e-3)


@pytest.mark.slow
def test_checks_drop_matches(image: Tensor) -> None:
    other = _texture(120, 168, seed=9)
    everything = _matcher(use_mutual=False).match(image, other)
    mutual = _matcher().match(image, other)
    assert 0 < len(mutual) < len(everything)
    assert not everything.is_mutual.all()
    assert len(_matcher(ratio=0.8).match(image, other)) < len(mutual)
    threshold = float(np.median(everything.scores))
    assert (_matcher(use_mutual=False, min_score=threshold).match(image, other).scores >= threshold).all()


def test_pair_score_tells_same_from_other(image: Tensor) -> None:
    same = _matcher().match(image, image).pair_score
    other = _matcher().match(image, _texture(120, 168, seed=9)).pair_score
    assert same > other


def test_corners_are_sought_only_where_points_are_chosen(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = _matcher()
    sought: list[Tensor] = []

    def find(grey: Tensor, max_count: int) -> Corners:
        sought.append(grey)
        return detect_corners(grey, max_count)

    monkeypatch.setattr("ucn.matching.matcher.detect_corners", find)
    other = _texture(96, 128, seed=1)
    matcher.match(image, other)
    assert [tuple(grey.shape) for grey in sought] == [(120, 168)]
    matcher.flow(image, other)
    assert len(sought) == 1
    assert len(matcher.extract(other).keypoints) > 50
    assert len(sought) == 2


def test_both_images_are_encoded_before_corners_are_sought(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A GPU encodes them while the CPU detects corners.
    matcher = _matcher()
    done: list[str] = []
    encode = matcher._encoder.encode

    def record_encoding(images: Tensor) -> FeatureMap:
        done.append("encode")
        return encode(images)

    def record_corners(grey: Tensor, max_count: int) -> Corners:
        done.append("corners")
        return detect_corners(grey, max_count)

    monkeypatch.setattr(matcher._encoder, "encode", record_encoding)
    monkeypatch.setattr("ucn.matching.matcher.detect_corners", record_corners)
    matcher.match(image, image)
    assert done == ["encode", "encode", "corners"]


def test_grid_keypoints(image: Tensor) -> None:
    matches = _matcher(keypoints="grid", grid_step=8, use_mutual=False).match(image, image)
    assert len(matches) == 15 * 21
    few = _matcher(keypoints="grid", grid_step=8, max_keypoints=10).extract(image)
    # Evenly coarser until it fits: every 56 px, centred.
    assert sorted(set(few.keypoints[:, 0].tolist())) == [27, 83, 139]
    assert sorted(set(few.keypoints[:, 1].tolist())) == [3, 59, 115]


# With the random network the local affine prior would outweigh descriptors, so consensus has trained ones.
@pytest.mark.parametrize("is_trained", [False, True])
def test_flow_of_a_shift(is_trained: bool) -> None:
    wide = _texture(100, 150)
    trained = Matcher.from_pretrained("geometric-lite", device="cpu") if is_trained else None
    flow = (trained or _matcher(consensus=False)).flow(wide[:, :, 12:], wide[:, :, :138])
    assert flow.flow_0to1.shape == (100, 138, 2) and flow.confidence.shape == (100, 138)
    inner = flow.flow_0to1[20:80, 20:-30]
    assert np.abs(np.median(inner, axis=(0, 1)) - [12, 0]).max() < 0.3
    assert ((flow.confidence >= 0) & (flow.confidence <= 1)).all()


def test_blank_images_are_normal_input() -> None:
    blank = torch.full((3, 64, 64), 0.5)
    matches = _matcher().match(blank, blank)
    assert len(matches) == 0 and matches.pair_score == 0
    asked = _matcher().match(blank, blank, points=[[3.0, 3.0]])
    assert np.isfinite(asked.points1).all() and np.isfinite(asked.scores).all()
    assert np.isfinite(_matcher().flow(blank, blank).flow_0to1).all()


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (31, 200)])
def test_small_images_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ImageReadError, match=rf"at least 32 px a side, got {size[1]} × {size[0]}"):
        _matcher().extract(torch.zeros(3, *size))


def test_long_thin_images_stay_wide_enough() -> None:
    features = _matcher(max_side=64).extract(_texture(64, 512))
    assert features.map.image_hw == (32, 256)


def test_progress_names_each_stage(image: Tensor) -> None:
    phrases: list[str] = []
    _matcher().match(image, image, progress=phrases.append)
    assert phrases == ["encoding image 0", "encoding image 1", "matching"]


def _shift(image: Tensor, x: float) -> Tensor:
    """The image moved to the right by parts of a pixel, by the Fourier transform; it wraps."""
    ramp = torch.exp(-2j * torch.pi * torch.fft.rfftfreq(image.shape[-1]) * x)
    moved: Tensor = torch.fft.irfft(torch.fft.rfft(image) * ramp, n=image.shape[-1])
    return moved.clamp(0, 1)


def test_alignment_refines_matches_to_sub_pixel_positions(image: Tensor) -> None:
    moved = _shift(image, 1.3)
    medians = {}
    for use in (True, False):
        matches = _matcher(use_alignment=use, min_score=0.0).match(image, moved)
        errors = np.abs(matches.points1 - matches.points0 - np.array([1.3, 0]))[matches.points0[:, 0] < 150]
        medians[use] = float(np.median(errors))
    assert medians[True] < 0.02
    assert medians[True] < 0.2 * medians[False]


def test_alignment_serves_given_points_and_needs_refinement(image: Tensor) -> None:
    moved = _shift(image, 1.3)
    points = np.array([[60.0, 50.0], [90.5, 70.25]], np.float32)
    aligned = _matcher(min_score=0.0).match(image, moved, points=points)
    np.testing.assert_allclose(aligned.points1, points + np.array([1.3, 0]), atol=0.05)
    coarse = [
        _matcher(min_score=0.0, use_refinement=False, use_alignment=use).match(image, moved, points=points)
        for use in (True, False)
    ]
    np.testing.assert_array_equal(coarse[0].points1, coarse[1].points1)


def test_alignment_does_not_leave_the_mask(image: Tensor) -> None:
    mask = np.zeros((120, 168), np.uint8)
    mask[:, :81] = 1  # to x = 80.5; the true places are just beyond
    points = np.stack([np.full(20, 80.0), np.linspace(30, 90, 20)], axis=-1)
    matches = _matcher(min_score=0.0).match(image, _shift(image, 1.3), points=points, mask1=mask)
    assert np.nanmax(matches.points1[:, 0]) <= 80.6


def test_features_without_pixels_are_matched_without_alignment(image: Tensor) -> None:
    matcher = _matcher(min_score=0.0)
    features0, features1 = matcher.extract(image), matcher.extract(_shift(image, 1.3))
    bare = matcher.match_features(replace(features0, grey=None), features1)
    plain = _matcher(min_score=0.0, use_alignment=False).match_features(features0, features1)
    np.testing.assert_array_equal(bare.points1, plain.points1)
    assert features0.grey is not None
    assert features0.grey.shape == (120, 168)


def test_a_guide_changes_no_answer(image: Tensor) -> None:
    points = np.array([[60.0, 50.0], [90.5, 70.25]], np.float32)
    for settings in ({"min_score": 0.0}, {"min_score": 0.0, "use_alignment": False}):
        matcher = _matcher(**settings)
        features0, features1 = matcher.extract(image), matcher.extract(_shift(image, 1.3))
        context = matcher.pair_context(features0, features1)
        assert context.is_same_surface == matcher.config.use_alignment
        plain = matcher.match_features(features0, features1, points=points)
        guided = matcher.match_features(features0, features1, points=points, context=context)
        np.testing.assert_allclose(guided.points1, plain.points1, atol=1e-5)
        np.testing.assert_array_equal(guided.scores, plain.scores)
        assert guided.pair_score == plain.pair_score == context.matches.pair_score
        assert len(matcher.match_features(features0, features1, points=[], context=context)) == 0


def test_a_guide_of_images_without_corners() -> None:
    matcher, grey = _matcher(), torch.full((3, 64, 64), 0.5)
    features = matcher.extract(grey)
    context = matcher.pair_context(features, features)
    assert len(context.matches) == 0
    assert not context.is_same_surface
    assert len(matcher.match_features(features, features, points=[[3, 4]], context=context)) == 1


def test_similarities_say_where_their_cells_lie_in_the_given_image(image: Tensor) -> None:
    matcher = _matcher(max_side=84)  # half of the image's
    features = matcher.extract(image)
    found = matcher.similarities(features, features, (100.5, 60.5))
    assert found.similarities.shape == (15, 21)
    assert found.cell_step == (8.0, 8.0)
    assert found.first_cell == (4.5, 4.5)  # (2 + 0.5) * 2 - 0.5
    row, column = divmod(int(found.similarities.argmax()), 21)
    assert (4.5 + 8 * column, 4.5 + 8 * row) == (100.5, 60.5)
    assert found.similarities.max() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(PointsError, match="lies outside the image"):
        matcher.similarities(features, features, (168.0, 3.0))


@torch.no_grad()
def test_engines_give_the_same_descriptors(image: Tensor) -> None:
    found = {engine: Matcher(_loaded(), device="cpu", engine=engine) for engine in ("auto", "fast", "plain")}
    maps = {name: matcher.extract(image).map for name, matcher in found.items()}
    assert torch.equal(maps["auto"].features, maps["fast"].features)  # on a CPU
    torch.testing.assert_close(maps["fast"].features, maps["plain"].features, rtol=0, atol=1e-5)
    assert maps["fast"].stride == maps["plain"].stride


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="engine must be one of auto, fast, plain, got 'onnx'"):
        Matcher(_loaded(), device="cpu", engine="onnx")  # type: ignore[arg-type]


def test_the_radius_of_the_second_best_counts_with_consensus() -> None:
    pair = example_pair()
    matcher = Matcher.from_pretrained("geometric-lite", config=MatchConfig(max_side=320))
    features0, features1 = (matcher.extract(path) for path in (pair.image0_path, pair.image1_path))
    points = [[370.0, 250.0], [120.5, 80.0]]
    near, far = (
        matcher.with_config(MatchConfig(max_side=320, second_best_radius=radius))
        .match_features(features0, features1, points=points)
        .scores
        for radius in (4.0, 64.0)
    )
    assert (far > near).all()


def test_a_mask_of_one_pixel_makes_no_match_certain() -> None:
    pair = example_pair()
    matcher = Matcher.from_pretrained("geometric-lite", config=MatchConfig(max_side=320))
    mask = np.zeros(pair.disparity.shape, bool)
    mask[250, 300] = True
    points = [[370.0, 250.0], [120.5, 80.0], [600.0, 400.0]]
    found = matcher.match(pair.image0_path, pair.image1_path, points=points, mask1=mask)
    assert (found.scores < 0.5).all()


def test_flow_is_not_confident_where_there_is_nothing_to_see() -> None:
    matcher = Matcher.from_pretrained("geometric-lite")
    black = torch.zeros(3, 96, 128)
    assert matcher.flow(black, black).confidence.max() == 0
