"""Pairs rendered from single images: their ground truth holds, and a seed fixes them."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.photo_cases import make_photo, write_photos
from ucn.config import SyntheticConfig
from ucn.data.synthetic import ImageBank, list_images, make_pairs
from ucn.errors import DataError, ImageReadError
from ucn.geometry.coords import is_inside
from ucn.geometry.sampling import sample_image
from ucn.geometry.warp import homography_from_points, warp_points
from ucn.types import PairBatch

PLAIN = SyntheticConfig(side=64, points=200, photometric=0.0)
KINDS = {
    "homography": PLAIN,
    "affine": replace(PLAIN, affine_share=1.0),
    "spline": replace(PLAIN, spline_share=1.0),
    "parallax": replace(PLAIN, parallax_share=1.0),
    "mixed": replace(PLAIN, affine_share=0.25, spline_share=0.25, parallax_share=0.25),
}


@pytest.fixture
def bank(tmp_path: Path) -> ImageBank:
    """Photographs of different sizes, the second reduced to fit the canvas."""
    return ImageBank(write_photos(tmp_path / "photos", [(130, 150), (300, 200), (120, 120)]), 192, "cpu")


def draw(bank: ImageBank, config: SyntheticConfig = PLAIN, batch: int = 8, seed: int = 0) -> PairBatch:
    return make_pairs(bank, batch, config, torch.Generator().manual_seed(seed))


def read_colours(images: Tensor, points: Tensor) -> Tensor:
    return sample_image(images, points[:, :, None], "border")[..., 0].transpose(1, 2)  # (B, N, 3)


def fit(pair: PairBatch) -> Tensor:
    """The homography (3, 3) from view 0 to view 1 that a pair's valid points follow."""
    is_valid = pair.is_valid[0]
    return homography_from_points(pair.points0[0][is_valid].double(), pair.points1[0][is_valid].double())


def test_bank_holds_each_image_in_a_corner_of_its_canvas(tmp_path: Path) -> None:
    paths = write_photos(tmp_path / "photos", [(100, 60), (200, 400)])
    bank = ImageBank(paths, 128, "cpu")
    assert len(bank) == 2
    assert bank.names == ["00.png", "01.png"]
    assert bank.canvases.shape == (2, 3, 128, 128)
    assert bank.canvases.dtype == torch.uint8
    assert bank.sizes.tolist() == [[60, 100], [128, 64]]  # (width, height); the second at 0.32 of its size
    expected = (make_photo(100, 60) * 255).round().byte()
    assert torch.equal(bank.canvases[0, :, :100, :60], expected)
    assert bank.canvases[0, :, 100:].max() == bank.canvases[0, :, :, 60:].max() == 0
    assert bank.canvases[1, :, 64:].max() == 0
    assert bank.canvases[1, :, :64].float().std() > 20


def test_bank_of_nothing_and_of_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images to make pairs from"):
        ImageBank([], 128, "cpu")
    (tmp_path / "a.png").write_text("not an image")
    with pytest.raises(ImageReadError, match=r"a\.png"):
        ImageBank([tmp_path / "a.png"], 128, "cpu")


def test_images_are_listed_by_path_from_sub_folders_too(tmp_path: Path) -> None:
    names = ["b/z.JPG", "a.png", "c.txt", "b/a.webp", ".hidden"]
    (tmp_path / "b").mkdir()
    (tmp_path / "album.jpg").mkdir()  # a folder is no image, whatever its name
    for name in names:
        (tmp_path / name).touch()
    assert list_images(tmp_path) == [tmp_path / "a.png", tmp_path / "b/a.webp", tmp_path / "b/z.JPG"]


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder .*missing: check the path"):
        list_images(tmp_path / "missing")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"holds no images \(looked for \.avif, \.bmp, .*\.jpeg, \.jpg, "):
        list_images(tmp_path)
    with pytest.raises(DataError, match=r"notes\.txt is a file; expected a folder of images"):
        list_images(tmp_path / "notes.txt")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("a.png", b"")
    with pytest.raises(DataError, match=r"photos\.zip is an archive; unpack it and give the folder"):
        list_images(tmp_path / "photos.zip")


def test_a_bank_leaves_out_what_could_not_be_read(tmp_path: Path) -> None:
    paths = write_photos(tmp_path / "photos", [(30, 20), (20, 40), (25, 25)])
    images = [make_photo(30, 20), None, make_photo(25, 25)]
    bank = ImageBank(paths, 64, "cpu", images)
    assert bank.names == ["00.png", "02.png"]
    assert bank.sizes.tolist() == [[20, 30], [25, 25]] and len(bank.canvases) == 2
    with pytest.raises(DataError, match="none of 3 images could be read"):
        ImageBank(paths, 64, "cpu", [None] * 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("B", [1, 2])
def test_shapes(bank: ImageBank, B: int, kind: str) -> None:
    batch = draw(bank, replace(KINDS[kind], points=37), batch=B)
    assert batch.image0.shape == batch.image1.shape == (B, 3, 64, 64)
    assert batch.points0.shape == batch.points1.shape == (B, 37, 2)
    assert batch.is_valid.shape == (B, 37)
    assert batch.is_valid.dtype == torch.bool
    assert len(batch.names) == B
    assert {part for name in batch.names for part in name.split(" + ")} <= set(bank.names)
    assert batch.pck_length is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("photometric", [0.0, 1.0])
def test_a_seed_fixes_the_pairs(bank: ImageBank, photometric: float, kind: str) -> None:
    config = replace(KINDS[kind], photometric=photometric)
    first, again, other = (draw(bank, config, seed=seed) for seed in (3, 3, 4))
    assert first.names == again.names
    for name in ("image0", "image1", "points0", "points1", "is_valid"):
        values, repeated = getattr(first, name), getattr(again, name)
        torch.testing.assert_close(values, repeated, rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(first.image0, other.image0)
    assert not torch.equal(first.points0, other.points0)


def test_a_generator_yields_further_pairs(bank: ImageBank) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (make_pairs(bank, 2, PLAIN, generator) for _ in range(2))
    assert not torch.equal(first.image0, second.image0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ground_truth_shows_in_the_colours(bank: ImageBank, kind: str) -> None:
    # A view that sees much less detail shows other colours.
    config = replace(KINDS[kind], max_scale=1.2, stretch=1.2)
    batch = draw(bank, config, batch=16)
    colours0 = read_colours(batch.image0, batch.points0)
    colours1 = read_colours(batch.image1, batch.points1.nan_to_num())
    is_valid = batch.is_valid
    difference = (colours0 - colours1)[is_valid].abs().mean().item()
    shuffled = (colours0 - colours1.roll(1, dims=1))[is_valid & is_valid.roll(1, dims=1)].abs().mean().item()
    assert is_valid.sum() > 1000
    assert difference < 0.01
    assert shuffled > 10 * difference


@pytest.mark.parametrize("kind", KINDS)
def test_the_ground_truth_is_good_to_a_fraction_of_a_pixel(bank: ImageBank, kind: str) -> None:
    batch = draw(bank, replace(KINDS[kind], max_scale=1.2, stretch=1.2), batch=16)
    colours0 = read_colours(batch.image0, batch.points0)

    def cost(shift: list[float]) -> float:
        colours1 = read_colours(batch.image1, batch.points1.nan_to_num() + torch.tensor(shift))
        return (colours0 - colours1)[batch.is_valid].abs().mean().item()

    shifts = [[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5], [0.0, -0.5]]
    assert 2 * cost([0.0, 0.0]) < min(map(cost, shifts))


@pytest.mark.parametrize("kind", KINDS)
def test_valid_points_lie_in_both_views(bank: ImageBank, kind: str) -> None:
    config = replace(KINDS[kind], max_scale=3.0, perspective=0.4)
    batch = draw(bank, config, batch=32)
    size_hw = (64, 64)
    assert is_inside(batch.points0, size_hw)[batch.is_valid].all()
    assert is_inside(batch.points1, size_hw)[batch.is_valid].all()
    assert batch.points1[batch.is_valid].isfinite().all()
    counts = batch.is_valid.sum(dim=1)
    assert (counts < config.points).any() and (counts == config.points).any()
    # Valid rows come first.
    assert (batch.is_valid == (torch.arange(config.points) < counts[:, None])).all()


def test_points_of_a_pair_follow_one_homography(bank: ImageBank) -> None:
    for pair in draw(bank, batch=8):
        is_valid = pair.is_valid[0]
        points0, points1 = pair.points0[:, is_valid].double(), pair.points1[:, is_valid].double()
        assert len(points0[0]) > 20
        H = homography_from_points(points0[0, ::2], points1[0, ::2])
        torch.testing.assert_close(warp_points(points0, H[None]), points1, atol=1e-2, rtol=0)


def turns_and_scales(bank: ImageBank, config: SyntheticConfig, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Degrees and scales of the pairs of a config without perspective."""
    H = torch.stack([fit(pair) for pair in draw(bank, config, batch)])
    torch.testing.assert_close(H[:, 2, :2], torch.zeros_like(H[:, 2, :2]), atol=1e-5, rtol=0)
    torch.testing.assert_close(H[:, 0, 0], H[:, 1, 1], atol=1e-3, rtol=0)
    torch.testing.assert_close(H[:, 0, 1], -H[:, 1, 0], atol=1e-3, rtol=0)
    return torch.rad2deg(torch.atan2(H[:, 1, 0], H[:, 0, 0])), torch.linalg.det(H[:, :2, :2]).sqrt()


@pytest.mark.parametrize("degrees", [0.0, 20.0])
def test_upright_pairs_turn_little(bank: ImageBank, degrees: float) -> None:
    config = replace(PLAIN, upright_share=1.0, upright_degrees=degrees, max_scale=1.0, perspective=0.0)
    turns, scales = turns_and_scales(bank, config)
    assert turns.abs().max().item() <= degrees + 0.1
    assert turns.min().item() <= -0.7 * degrees and turns.max().item() >= 0.7 * degrees
    torch.testing.assert_close(scales, torch.ones_like(scales), atol=1e-3, rtol=0)


def test_other_pairs_turn_by_any_angle_and_scale_both_ways(bank: ImageBank) -> None:
    turns, scales = turns_and_scales(bank, replace(PLAIN, upright_share=0.0, max_scale=2.0, perspective=0.0))
    assert turns.min().item() < -120 and turns.max().item() > 120
    assert 0.499 <= scales.min().item() < 0.7
    assert 1.4 < scales.max().item() <= 2.001


def test_half_of_the_pairs_are_upright(bank: ImageBank) -> None:
    config = replace(PLAIN, upright_share=0.5, upright_degrees=10.0, max_scale=1.0, perspective=0.0)
    turns, _ = turns_and_scales(bank, config, batch=200)
    # Half of all, and of the rest one in eighteen: 0.53, with a standard deviation of 0.035.
    assert (turns.abs() <= 10).double().mean().item() == pytest.approx(0.53, abs=0.12)


def test_view_0_is_a_zoomed_crop(tmp_path: Path) -> None:
    # Zoom 1 of a photograph as large as the view has one place to go: the photograph itself.
    bank = ImageBank(write_photos(tmp_path / "photos", [(64, 64)]), 64, "cpu")
    batch = draw(bank, replace(PLAIN, zoom=(1.0, 1.0)), batch=2)
    source = bank.canvases.float() / 255
    torch.testing.assert_close(batch.image0, source.expand(2, -1, -1, -1), atol=1e-4, rtol=0)


def test_view_0_at_half_size_averages_two_by_two_pixels(tmp_path: Path) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [(128, 128)]), 128, "cpu")
    batch = draw(bank, replace(PLAIN, zoom=(2.0, 2.0)), batch=1)
    torch.testing.assert_close(batch.image0, F.avg_pool2d(bank.canvases.float() / 255, 2), atol=1e-4, rtol=0)


def test_points_lie_on_the_image_not_on_its_mirror_image(tmp_path: Path) -> None:
    # View 0 begins where the photograph does and reaches 4 px beyond its last pixels, 59.
    bank = ImageBank(write_photos(tmp_path / "photos", [(60, 60)]), 64, "cpu")
    batch = draw(bank, replace(PLAIN, zoom=(1.0, 1.0)))
    valid = batch.points0[batch.is_valid]
    assert 0 <= valid.min().item() < 1
    assert 58 < valid.max().item() <= 59.001


@pytest.mark.parametrize("kind", ["homography", "affine", "spline"])
@pytest.mark.parametrize("size_hw", [(20, 30), (33, 200), (1, 40), (1, 1)])
def test_images_smaller_than_the_view(tmp_path: Path, size_hw: tuple[int, int], kind: str) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [size_hw], grain=5), 192, "cpu")
    batch = draw(bank, KINDS[kind], batch=4)
    assert batch.names == ("00.png",) * 4
    for image in (batch.image0, batch.image1):
        assert image.isfinite().all()
        assert image.min() >= 0 and image.max() <= 1
    assert batch.points1[batch.is_valid].isfinite().all()
    if min(size_hw) > 1:
        assert batch.is_valid.any(dim=1).all()


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_photometric_changes_keep_colours_in_range(bank: ImageBank, strength: float) -> None:
    plain, changed = draw(bank), draw(bank, replace(PLAIN, photometric=strength))
    for before, after in ((plain.image0, changed.image0), (plain.image1, changed.image1)):
        assert after.isfinite().all()
        assert after.min() >= 0 and after.max() <= 1
        assert (after - before).abs().mean() > 0.01
    # The geometry is drawn before, so it stays.
    torch.testing.assert_close(plain.points1, changed.points1, rtol=0, atol=0, equal_nan=True)
