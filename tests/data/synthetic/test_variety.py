"""Variety from one image: poses, blending, other borders, other colours."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.photo_cases import make_photo, write_photos
from ucn.config import SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs, views
from ucn.data.synthetic import generator as pairs
from ucn.geometry.sampling import sample_image
from ucn.types import PairBatch

PLAIN = SyntheticConfig(side=64, points=200, photometric=0.0, max_scale=1.2, stretch=1.2)
KINDS: dict[str, dict[str, Any]] = {
    "homography": {},
    "affine": {"affine_share": 1.0},
    "spline": {"spline_share": 1.0},
    "parallax": {"parallax_share": 1.0},
}
POSE: dict[str, Any] = {"mirror": 0.5, "crop_degrees": 40.0, "crop_stretch": 1.3}
OPTIONS: dict[str, dict[str, Any]] = {
    "mirror": {"mirror": 1.0},
    "pose": POSE,
    "blend": {"blend_share": 1.0},
    "border": {"border": "other", "crop_degrees": 40.0},
    "colours": {"recolour": 1.0},
    "all": POSE | {"blend_share": 0.5, "border": "other", "recolour": 0.5},
}
ALL = replace(PLAIN, **OPTIONS["all"], affine_share=0.25, spline_share=0.25, parallax_share=0.25)


@pytest.fixture
def bank(tmp_path: Path) -> ImageBank:
    sizes_hw = [(80, 100), (70, 73), (120, 75), (91, 91)]
    return ImageBank(write_photos(tmp_path / "photos", sizes_hw), 128, "cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(bank: ImageBank, config: SyntheticConfig, batch: int = 8, seed: int = 0) -> PairBatch:
    return make_pairs(bank, batch, config, seeded(seed))


def read(images: Tensor, points: Tensor) -> Tensor:
    return sample_image(images, points.nan_to_num()[:, :, None], "border")[..., 0].transpose(
        1, 2
    )  # (B, N, C)


def touch(images: Tensor, others: Tensor, points: Tensor) -> Tensor:
    """Bool (B, N): which points are read from pixels in which the images differ."""
    is_changed = (images != others).any(dim=1, keepdim=True).float()
    return read(is_changed, points)[..., 0] > 0


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_ground_truth_shows_in_the_colours(bank: ImageBank, kind: str, options: str) -> None:
    config = replace(PLAIN, **KINDS[kind], **OPTIONS[options])
    batch = draw(bank, config, batch=12)
    keep = batch.is_valid
    if config.border == "other":
        # Where a photograph ends, a pixel of it and one of the other are mixed when a point is read.
        mirrored = draw(bank, replace(config, border="mirror"), batch=12)
        torch.testing.assert_close(batch.points1, mirrored.points1, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(keep, mirrored.is_valid) and not torch.equal(batch.image0, mirrored.image0)
        keep = keep & ~touch(batch.image0, mirrored.image0, batch.points0)
        keep = keep & ~touch(batch.image1, mirrored.image1, batch.points1)
        assert keep.sum() > 0.8 * batch.is_valid.sum()
    colours0, colours1 = read(batch.image0, batch.points0), read(batch.image1, batch.points1)
    difference = (colours0 - colours1)[keep].abs().mean().item()
    shuffled = (colours0 - colours1.roll(1, dims=1))[keep & keep.roll(1, dims=1)].abs().mean().item()
    assert keep.sum() > 800
    assert difference < 0.015
    assert shuffled > 6 * difference


def test_hard_light_leaves_the_geometry_alone(bank: ImageBank) -> None:
    dark = draw(bank, replace(ALL, illumination=1.0))
    plain = draw(bank, ALL)
    torch.testing.assert_close(dark.points1, plain.points1, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(dark.points0, plain.points0) and torch.equal(dark.is_valid, plain.is_valid)
    for before, after in ((plain.image0, dark.image0), (plain.image1, dark.image1)):
        assert after.min() >= 0 and after.max() <= 1
        assert (after - before).abs().mean() > 0.02


def test_both_views_are_lit_on_their_own(bank: ImageBank) -> None:
    # Without motion the views would be equal.
    still = replace(
        PLAIN, upright_share=1.0, upright_degrees=0.0, max_scale=1.0, perspective=0.0, illumination=1.0
    )
    batch = draw(bank, still)
    means0, means1 = (image.mean(dim=(1, 2, 3)) for image in (batch.image0, batch.image1))
    assert (means0 - means1).abs().mean() > 0.03


@pytest.mark.parametrize("config", [ALL, replace(ALL, illumination=1.5, photometric=1.0)])
def test_strength_zero_gives_equal_views(bank: ImageBank, config: SyntheticConfig) -> None:
    batch = make_pairs(bank, 8, config, seeded(), strength=0.0)
    # On the very edge of a photograph, rounding may put a pixel of one view beyond it.
    is_equal = (batch.image0 - batch.image1).abs().amax(dim=1) < 2e-3
    assert is_equal.double().mean() > 0.995
    torch.testing.assert_close(
        batch.points0[batch.is_valid], batch.points1[batch.is_valid], atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("batch", [1, 8])
def test_a_seed_fixes_the_pairs(bank: ImageBank, batch: int) -> None:
    config = replace(ALL, illumination=0.7, photometric=1.0)
    first, again, other = (draw(bank, config, batch, seed) for seed in (3, 3, 4))
    assert first.names == again.names
    for name in ("image0", "image1", "points0", "points1"):
        torch.testing.assert_close(getattr(first, name), getattr(again, name), rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(first.image0, other.image0)


@pytest.mark.parametrize("size_hw", [(20, 30), (33, 200), (1, 40), (1, 1)])
def test_images_smaller_than_the_view(tmp_path: Path, size_hw: tuple[int, int]) -> None:
    paths = write_photos(tmp_path / "photos", [size_hw, (7, 5)], grain=5)
    batch = draw(ImageBank(paths, 192, "cpu"), replace(ALL, illumination=1.0, photometric=1.0))
    for image in (batch.image0, batch.image1):
        assert image.isfinite().all() and image.min() >= 0 and image.max() <= 1
    assert batch.points1[batch.is_valid].isfinite().all()


def test_a_mirrored_image_by_hand(tmp_path: Path) -> None:
    # Zoom 1 of a photograph as large as the view has one place to go: the photograph itself.
    bank = ImageBank(write_photos(tmp_path / "photos", [(64, 64)]), 64, "cpu")
    batch = draw(bank, replace(PLAIN, zoom=(1.0, 1.0), mirror=1.0), batch=2)
    source = (bank.canvases.float() / 255).flip(-1)
    torch.testing.assert_close(batch.image0, source.expand(2, -1, -1, -1), atol=1e-4, rtol=0)


def test_a_mirror_has_a_negative_determinant() -> None:
    sizes = torch.tensor([[300.0, 200.0]]).repeat(400, 1)
    for share in (0.0, 0.3, 1.0):
        config = replace(PLAIN, mirror=share, crop_degrees=20.0, crop_stretch=1.5)
        determinants = torch.linalg.det(views.sample_crops(sizes, config, seeded())[:, :2, :2])
        assert (determinants < 0).double().mean().item() == pytest.approx(share, abs=0.07)


def test_poses_turn_and_stretch_about_the_centre_of_view_0() -> None:
    sizes = torch.tensor([[300.0, 200.0]]).repeat(500, 1)
    upright = views.sample_crops(sizes, PLAIN, seeded())
    crops = views.sample_crops(
        sizes, replace(PLAIN, crop_degrees=30.0, crop_stretch=1.8, mirror=0.5), seeded()
    )
    # The numbers for poses are drawn last, so zoom and centre are those of the upright crops.
    centre = torch.tensor([31.5, 31.5, 1.0])
    torch.testing.assert_close(crops @ centre, upright @ centre, atol=1e-3, rtol=0)
    zoom = upright[:, 0, 0]
    linear = crops[:, :2, :2] / zoom[:, None, None]
    torch.testing.assert_close(torch.linalg.det(linear).abs(), torch.ones(500), atol=1e-4, rtol=0)
    assert (crops[:, 2] == torch.tensor([0.0, 0.0, 1.0])).all()
    # A turn, mirrored or not, and then a stretch s along x and 1 / s along y: rows of lengths s and 1 / s.
    ratios = linear[:, 0].norm(dim=1) / linear[:, 1].norm(dim=1)
    assert 1 / 1.801 < ratios.min() < 0.65 and 1.55 < ratios.max() < 1.801
    turns = torch.rad2deg(torch.atan2(-linear[:, 0, 1] / ratios, linear[:, 1, 1]))
    assert turns.abs().max() <= 30.01 and turns.min() < -25 and turns.max() > 25


def test_a_pose_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # A quarter turn, a stretch of 2, a mirror: (x, y) from the centre goes to (√2 · -y, -x / √2).
    drawn = iter([math.pi / 2, math.log(2) / 2, 0.0])
    monkeypatch.setattr(views, "uniform", lambda shape, *_: torch.full(shape, next(drawn)))
    (pose,) = views._sample_poses(
        1, replace(PLAIN, mirror=1.0, crop_degrees=90.0, crop_stretch=2.0), seeded()
    )
    moved = pose @ torch.tensor([31.5 + 10, 31.5 + 20, 1.0])
    expected = [31.5 - math.sqrt(2) * 20, 31.5 - 10 / math.sqrt(2), 1.0]
    assert moved.tolist() == pytest.approx(expected, abs=1e-3)


def test_without_poses_nothing_is_sampled_for_them() -> None:
    sizes, generator = torch.full((3, 2), 200.0), seeded()
    views.sample_crops(sizes, PLAIN, generator)
    expected = seeded()
    torch.rand(3, generator=expected)
    torch.rand(3, 2, generator=expected)
    assert torch.equal(generator.get_state(), expected.get_state())


def fold(place: float, size: int) -> float:
    """Where a place beyond the pixel centres of a photograph lies on it, as in a mirror at its ends."""
    place = math.fmod(abs(place), 2 * (size - 1))
    return 2 * (size - 1) - place if place > size - 1 else place


def read_slowly(bank: ImageBank, photograph: int, x: float, y: float, step: float) -> list[float]:
    """The colour at a place where pixels of a view lie so many pixels apart."""
    width, height = (int(size) for size in bank.sizes[photograph].tolist())
    x, y = fold(x, width), fold(y, height)
    image = bank.canvases[photograph, :, :height, :width].double() / 255
    block = 2 ** max(0, min(2, round(math.log2(step))))
    if block > 1:  # from afar, means of blocks are seen
        width, height = width // block, height // block
        image = image[:, : height * block, : width * block]
        image = image.reshape(3, height, block, width, block).mean(dim=(2, 4))
        x = min(max((x + 0.5) / block - 0.5, 0), width - 1)
        y = min(max((y + 0.5) / block - 0.5, 0), height - 1)
    left, top = min(int(x), width - 2), min(int(y), height - 2)
    colour = []
    for channel in image:
        upper = channel[top, left] * (left + 1 - x) + channel[top, left + 1] * (x - left)
        lower = channel[top + 1, left] * (left + 1 - x) + channel[top + 1, left + 1] * (x - left)
        colour.append(float(upper * (top + 1 - y) + lower * (y - top)))
    return colour


def follow(homography: Tensor, x: float, y: float) -> tuple[float, float]:
    """Where a homography takes a point."""
    a, b, c = (homography @ torch.tensor([x, y, 1.0]).double()).tolist()
    return a / c, b / c


def show_slowly(
    bank: ImageBank, planes: pairs._Planes, plane: int, view: int, x: int, y: int
) -> tuple[list[float], bool]:
    """What a plane shows at a pixel without the rule of borders, and whether that is its own photograph."""
    to_source = planes.view0_to_source[plane].double()
    if view == 1:
        to_source = to_source @ planes.view1_to_view0[plane].double()
    source_x, source_y = follow(to_source, x, y)
    (x0, y0), (x1, y1), (x2, y2) = (
        follow(to_source, 31.5 + dx, 31.5 + dy) for dx, dy in ((0, 0), (1, 0), (0, 1))
    )
    step = math.sqrt(abs((x1 - x0) * (y2 - y0) - (y1 - y0) * (x2 - x0)))
    own, second = (int(rows[plane]) for rows in (planes.sources, planes.blended))
    colours = [read_slowly(bank, photograph, source_x, source_y, step) for photograph in (own, second)]
    width, height = bank.sizes[own].tolist()
    is_on = 0 <= source_x <= width - 1 and 0 <= source_y <= height - 1
    return [(first + other) / 2 for first, other in zip(*colours, strict=True)], is_on


@pytest.mark.parametrize("count", [5, 8])
@pytest.mark.parametrize("border", ["mirror", "other"])
def test_blends_and_borders_equal_a_slow_reference(bank: ImageBank, border: str, count: int) -> None:
    config = replace(PLAIN, **POSE, blend_share=0.6, max_scale=2.5, affine_share=0.5, zoom=(1.1, 1.25))
    planes = pairs._sample_planes(bank, count, config, 1.0, seeded(2))
    images = pairs._render(bank, planes, 64, border)
    is_blended = planes.blended != planes.sources
    assert is_blended.any() and not is_blended.all()
    generator, beyond = seeded(2), 0
    for _ in range(600):
        view, plane, x, y = (int(torch.randint(high, (), generator=generator)) for high in (2, count, 64, 64))
        expected, is_on = show_slowly(bank, planes, plane, view, x, y)
        other = (plane - count // 2) % count
        if border == "other" and not is_on and planes.sources[other] != planes.sources[plane]:
            expected, _ = show_slowly(bank, planes, other, 0, x, y)
            beyond += 1
        assert images[view, plane, :, y, x].tolist() == pytest.approx(expected, abs=3e-3)
    assert border == "mirror" or 25 < beyond < 400


def test_the_share_of_double_exposures() -> None:
    photographs = torch.arange(1000) % 100
    blended = pairs._sample_blended(photographs, 100, 0.4, seeded())
    # One in a hundred of the second photographs is the first.
    assert (blended != photographs).double().mean().item() == pytest.approx(0.396, abs=0.05)
    assert blended.min() == 0 and blended.max() == 99
    assert pairs._sample_blended(photographs, 100, 0.0, seeded()) is photographs
    assert (pairs._sample_blended(photographs % 2, 2, 1.0, seeded()) < 2).all()


def test_a_double_exposure_by_hand(tmp_path: Path) -> None:
    # Two photographs as large as the view: each view 0 is one of them or the mean of both.
    bank = ImageBank(write_photos(tmp_path / "photos", [(64, 64), (64, 64)]), 64, "cpu")
    batch = draw(bank, replace(PLAIN, zoom=(1.0, 1.0), blend_share=1.0), batch=24)
    photos = [(make_photo(64, 64, seed=seed) * 255).round() / 255 for seed in (0, 1)]
    found = {"alone": 0, "both": 0}
    for image, name in zip(batch.image0, batch.names, strict=True):
        is_alone = (image - photos[int(name[:2])]).abs().max() < 1e-3
        is_both = (image - sum(photos) / 2).abs().max() < 1e-3
        assert is_alone or is_both
        found["alone" if is_alone else "both"] += 1
    assert min(found.values()) > 4


BEYOND = replace(PLAIN, crop_degrees=180.0, max_scale=2.0)


def differs(bank: ImageBank, config: SyntheticConfig, batch: int) -> bool:
    mirrored, other = (draw(bank, replace(config, border=border), batch) for border in ("mirror", "other"))
    return not torch.equal(mirrored.image1, other.image1)


def test_nothing_is_shown_twice_for_want_of_another_image(bank: ImageBank, tmp_path: Path) -> None:
    # A lone pair, flat or a scene, has no other; nor has a bank of one photograph.
    assert not differs(bank, BEYOND, 1)
    assert not differs(bank, replace(BEYOND, parallax_share=1.0, parallax_planes=4), 1)
    lone = ImageBank(write_photos(tmp_path / "lone", [(80, 80)]), 128, "cpu")
    assert not differs(lone, BEYOND, 6)
    assert differs(bank, BEYOND, 6)
    assert differs(bank, replace(BEYOND, parallax_share=1.0), 6)


def test_the_pair_of_each_plane(bank: ImageBank) -> None:
    config = replace(PLAIN, parallax_share=0.5, parallax_planes=3)
    planes = pairs._sample_planes(bank, 4, config, 1.0, seeded())
    assert planes.pairs.tolist() == [0, 1, 2, 2, 2, 3, 3, 3]
    assert pairs._sample_planes(bank, 3, PLAIN, 1.0, seeded()).pairs.tolist() == [0, 1, 2]
