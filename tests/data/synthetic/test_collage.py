"""Collages: every pixel against a reference, and the ground truth of their pairs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.photo_cases import write_photos
from ucn.config import SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.data.synthetic.collage import PIECES, sample_collages
from ucn.geometry.sampling import sample_image

ZOOM = (0.5, 1.2)
PLAIN = SyntheticConfig(side=64, points=200, photometric=0.0, max_scale=1.2, stretch=1.2, collage_share=1.0)


@pytest.fixture
def bank(tmp_path: Path) -> ImageBank:
    sizes_hw = [(24, 30), (32, 17), (20, 20), (31, 32)]
    return ImageBank(write_photos(tmp_path / "photos", sizes_hw, grain=5), 32, "cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fold(place: float, size: int) -> int:
    """The pixel of a row of `size` nearest to a place, beyond its ends as in a mirror."""
    if size == 1:
        return 0
    place = place % (2 * (size - 1))
    return round(2 * (size - 1) - place if place > size - 1 else place)


def test_collages_equal_a_slow_reference(bank: ImageBank) -> None:
    count, side = 3, 32
    found, chosen = sample_collages(bank, count, 1.0, ZOOM, seeded(3))
    generator = seeded(3)
    assert torch.equal(chosen, bank.sample_indices(count, generator))
    torch.rand(count, generator=generator)  # which become collages
    sites = (torch.rand(count, PIECES, 2, generator=generator) * side).tolist()
    waves = torch.rand(count, 18, generator=generator).tolist()
    others = torch.randint(PIECES, (count, PIECES), generator=generator).tolist()
    is_copy = (torch.rand(count, PIECES, generator=generator) < 0.35).tolist()
    shown = bank.sample_indices(count * PIECES, generator).view(count, PIECES).tolist()
    poses = torch.rand(count, PIECES, 4, generator=generator).tolist()
    is_equal = []
    for row in range(count):
        paces, phases = [1 + 3 * w for w in waves[row][:6]], [2 * math.pi * w for w in waves[row][6:12]]
        heights = [0.06 * side * w for w in waves[row][12:]]
        for y in range(side):
            for x in range(side):
                at = [float(x), float(y)]
                for wave in range(6):  # of x and of y in turn, each along the other
                    along = (y, x)[wave % 2] * 2 * math.pi / side
                    at[wave % 2] += heights[wave] * math.sin(paces[wave] * along + phases[wave])
                piece = min(range(PIECES), key=lambda p, r=row, a=at: math.dist(a, sites[r][p]))  # type: ignore[misc]
                original = others[row][piece] if is_copy[row][piece] else piece
                turn, log_zoom, place_x, place_y = poses[row][original]
                angle = (2 * turn - 1) * math.pi
                zoom = math.exp(math.log(ZOOM[0]) + log_zoom * (math.log(ZOOM[1]) - math.log(ZOOM[0])))
                photograph = shown[row][original]
                width, height = (int(size) for size in bank.sizes[photograph].tolist())
                right, down = x - sites[row][piece][0], y - sites[row][piece][1]
                source_x = (math.cos(angle) * right - math.sin(angle) * down) * zoom + place_x * width
                source_y = (math.sin(angle) * right + math.cos(angle) * down) * zoom + place_y * height
                expected = bank.canvases[photograph, :, fold(source_y, height), fold(source_x, width)]
                is_equal.append(torch.equal(found.canvases[row, :, y, x], expected))
    # Where two pieces or two pixels are equally near, rounding decides.
    assert sum(is_equal) > 0.99 * len(is_equal)


def test_the_share_of_collages(bank: ImageBank) -> None:
    found, chosen = sample_collages(bank, 400, 0.3, ZOOM, seeded())
    assert len(found) == 400 and found.canvases.shape == (400, 3, 32, 32)
    is_collage = torch.tensor(
        [not torch.equal(found.canvases[row], bank.canvases[chosen[row]]) for row in range(400)]
    )
    assert is_collage.double().mean().item() == pytest.approx(0.3, abs=0.07)
    # A collage fills its canvas; what is none keeps its size.
    assert (found.sizes[is_collage] == 32).all()
    assert torch.equal(found.sizes[~is_collage], bank.sizes[chosen[~is_collage]])
    assert torch.equal(
        sample_collages(bank, 9, 0.0, ZOOM, seeded())[0].canvases,
        bank.canvases[bank.sample_indices(9, seeded())],
    )


def test_every_collage_is_another(bank: ImageBank) -> None:
    found, _ = sample_collages(bank, 20, 1.0, ZOOM, seeded())
    for i in range(20):
        for j in range(i):
            is_other = (found.canvases[i] != found.canvases[j]).any(dim=0)
            assert is_other.double().mean() > 0.5


def test_pieces_are_sampled_by_weight(tmp_path: Path) -> None:
    banks = []
    for name, count in (("few", 1), ("many", 4)):
        banks.append(ImageBank(write_photos(tmp_path / name, [(20, 20)] * count), 32, "cpu"))
        banks[-1].canvases[:] = 255 if name == "few" else 0
    joined = ImageBank.join(banks, [3.0, 1.0], "cpu")
    found, chosen = sample_collages(joined, 200, 1.0, ZOOM, seeded())
    assert (found.canvases == 255).double().mean().item() == pytest.approx(0.75, abs=0.06)
    assert (chosen == 0).double().mean().item() == pytest.approx(0.75, abs=0.09)


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"affine_share": 1.0},
        {"spline_share": 1.0},
        {"parallax_share": 1.0},
        {"collage_share": 0.5, "blend_share": 0.5, "border": "other", "mirror": 0.5, "crop_degrees": 20.0},
    ],
)
def test_the_ground_truth_shows_in_the_colours(tmp_path: Path, kind: dict[str, Any]) -> None:
    paths = write_photos(tmp_path / "photos", [(120, 100), (100, 120), (128, 128)], grain=30)
    bank = ImageBank(paths, 128, "cpu")
    batch = make_pairs(bank, 12, replace(PLAIN, **kind), seeded())
    keep = batch.is_valid
    colours = [
        sample_image(images, points.nan_to_num()[:, :, None], "border")[..., 0].transpose(1, 2)
        for images, points in ((batch.image0, batch.points0), (batch.image1, batch.points1))
    ]
    difference = (colours[0] - colours[1])[keep].abs().mean(dim=-1)
    shuffled = (colours[0] - colours[1].roll(1, dims=1))[keep & keep.roll(1, dims=1)].abs().mean()
    assert keep.sum() > 800
    # Pieces meet in sharp edges, which two views cut differently; elsewhere colours agree.
    assert difference.median() < 0.01
    assert shuffled > 5 * difference.mean()


def test_pairs_are_named_by_the_images_they_would_have_shown(bank: ImageBank) -> None:
    scenes = replace(PLAIN, points=5, parallax_share=1.0, collage_share=0.5)
    for config in (replace(PLAIN, points=5), scenes):
        batch = make_pairs(bank, 12, config, seeded())
        assert {part for name in batch.names for part in name.split(" + ")} <= set(bank.names)


def test_a_seed_fixes_collages(bank: ImageBank) -> None:
    config = replace(PLAIN, parallax_share=0.5, photometric=1.0, illumination=0.5)
    first, again, other = (make_pairs(bank, 4, config, seeded(seed)) for seed in (1, 1, 2))
    assert first.names == again.names and torch.equal(first.image1, again.image1)
    assert not torch.equal(first.image0, other.image0)


@pytest.mark.parametrize("size_hw", [(1, 1), (1, 40), (3, 2)])
def test_collages_of_tiny_images(tmp_path: Path, size_hw: tuple[int, int]) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [size_hw]), 64, "cpu")
    batch = make_pairs(bank, 1, PLAIN, seeded())
    assert batch.image0.isfinite().all() and batch.image0.min() >= 0 and batch.image1.max() <= 1
    assert batch.is_valid.any()  # the collage itself is not tiny
