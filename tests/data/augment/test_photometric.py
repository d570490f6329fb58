"""Photometric changes: in range, independent for each image, and fixed by a seed."""

import math

import pytest
import torch

from support.photo_cases import make_photo
from ucn.data.augment.photometric import blur, change_photometrically


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_colours_change_and_stay_in_range(strength: float) -> None:
    images = make_photo(64, 48).expand(2, 5, -1, -1, -1)
    changed = change_photometrically(images, strength, seeded())
    assert changed.shape == images.shape
    assert changed.isfinite().all()
    assert changed.min() >= 0 and changed.max() <= 1
    assert (changed - images).abs().mean() > 0.01


def test_every_image_changes_on_its_own() -> None:
    images = make_photo(64, 64).expand(2, 3, -1, -1, -1)
    changed = change_photometrically(images, 1.0, seeded()).flatten(0, 1)
    for i in range(6):
        for j in range(i):
            assert (changed[i] - changed[j]).abs().mean() > 0.01


def test_strength_zero_leaves_the_images() -> None:
    images = make_photo(64, 64).expand(2, 1, -1, -1, -1)
    assert torch.equal(change_photometrically(images, 0.0, seeded()), images)


def test_more_strength_changes_more() -> None:
    images = make_photo(64, 64).expand(1, 32, -1, -1, -1)
    weak, strong = (change_photometrically(images, s, seeded()) - images for s in (0.25, 1.0))
    assert 2 * weak.abs().mean() < strong.abs().mean()


def test_sets_are_sampled_one_after_the_other() -> None:
    images = torch.stack([make_photo(32, 40, seed=seed) for seed in range(6)]).view(2, 3, 3, 32, 40)
    together = change_photometrically(images, 1.0, seeded(5))
    generator = seeded(5)
    for index in range(2):
        alone = change_photometrically(images[index : index + 1], 1.0, generator)
        torch.testing.assert_close(together[index], alone[0])


def test_three_casts_belong_to_one_image() -> None:
    grey = torch.full((1, 64, 3, 8, 8), 0.5)
    changed = change_photometrically(grey, 1.0, seeded()).mean(dim=(3, 4))[0]  # (64, 3)
    # Casts of up to exp(±0.15) a channel: red, green and blue differ, and independently of each other.
    ratios = (changed / changed.mean(dim=1, keepdim=True)).log()
    assert ratios.abs().amax() < 0.35
    assert (ratios.std(dim=0) > 0.02).all()


def test_blur_by_hand() -> None:
    image = torch.zeros(2, 3, 9, 9)
    image[:, :, 4, 4] = 1
    blurred = blur(image, torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
    torch.testing.assert_close(blurred[0], image[0])
    weights = torch.tensor([math.exp(-0.5 * step**2) for step in range(-3, 4)])
    weights = weights / weights.sum()
    torch.testing.assert_close(blurred[1, 2, 1:8, 1:8], torch.outer(weights, weights))
