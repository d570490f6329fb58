"""Illumination and colour changes: against slow references, by hand, in range, and fixed by a seed."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from support.photo_cases import make_photo
from ucn.data.augment import illumination
from ucn.data.augment.illumination import change_colours, change_illumination

Array = NDArray[np.float64]

# Written down once more: a change of these is a change of what recipes mean.
COLUMNS = [
    ("light", -0.4, 1.2),
    ("shadow", -1.0, 1.0),
    ("shadow_level", 0.35, 0.65),
    ("shadow_edge", math.log(6), math.log(80)),
    ("relief", -5.0, 5.0),
    ("relief_angle", 0.0, 2 * math.pi),
    ("exposure", -1.1, 0.9),
    ("restored", 0.0, 1.0),
    ("noise", 0.0, 0.05),
    *((f"tone{channel}", -0.85, 0.85) for channel in range(3)),
    ("blur", -3.0, 1.8),
    ("tint", 0.1, 0.4),
    ("haze", 0.2, 0.8),
    ("haze_level", 0.4, 1.0),
    ("glow", 0.3, 1.0),
    ("glow_x", 0.0, 1.0),
    ("glow_y", 0.0, 1.0),
    ("glow_size", math.log(0.03), math.log(0.12)),
    ("reversal", -2.5, 2.5),
    ("reversal_phase", 0.0, 2 * math.pi),
    *((f"is_used{index}", 0.0, 1.0) for index in range(10)),
]
SHARES = {"light": 0.6, "shadow": 0.35, "relief": 0.4, "exposure": 0.5, "tone": 0.4, "blur": 1.0}
SHARES |= {"tint": 0.3, "haze": 0.2, "glow": 0.2, "reversal": 0.3}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_photos(count: int, height: int = 32, width: int = 40) -> Tensor:
    return torch.stack([make_photo(height, width, seed=seed, grain=6) for seed in range(count)])


def blur_slowly(image: Array, sigma: float) -> Array:
    """Seven taps along both axes; beyond the edge the image goes on as in a mirror at the last pixel."""
    taps = np.array([math.exp(-0.5 * (step / max(sigma, 1e-3)) ** 2) for step in range(-3, 4)])
    taps /= taps.sum()
    for axis in (2, 1):
        size, blurred = image.shape[axis], np.zeros_like(image)
        for place in range(size):
            for step, tap in zip(range(-3, 4), taps, strict=True):
                source = abs(place + step)
                source = 2 * (size - 1) - source if source >= size else source
                index: list[int | slice] = [slice(None)] * 3
                index[axis] = place
                other = list(index)
                other[axis] = source
                blurred[tuple(index)] += tap * image[tuple(other)]
        image = blurred
    return image


def cubic_weight(distance: float, a: float = -0.75) -> float:
    """Keys' kernel with torch's factor."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def grow_slowly(knots: Array, height: int, width: int) -> Array:
    """Bicubic growth of (K, K) to (H, W); pixel p lies at knot (p + 0.5) K / size - 0.5."""
    count, grown = len(knots), np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            at_y, at_x = (y + 0.5) * count / height - 0.5, (x + 0.5) * count / width - 0.5
            for row in range(math.floor(at_y) - 1, math.floor(at_y) + 3):
                for column in range(math.floor(at_x) - 1, math.floor(at_x) + 3):
                    weight = cubic_weight(at_y - row) * cubic_weight(at_x - column)
                    inside = knots[min(max(row, 0), count - 1), min(max(column, 0), count - 1)]
                    grown[y, x] += weight * inside
    return grown


def slope_slowly(image: Array, angle: float) -> Array:
    _, height, width = image.shape
    smooth = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            window = image[:, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
            smooth[y, x] = window.mean()
    slope = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            left, right, up, down = (
                max(x - 1, 0),
                min(x + 1, width - 1),
                max(y - 1, 0),
                min(y + 1, height - 1),
            )
            along_x = (smooth[y, right] - smooth[y, left]) / (right - left)
            along_y = (smooth[down, x] - smooth[up, x]) / (down - up)
            slope[y, x] = along_x * math.cos(angle) + along_y * math.sin(angle)
    return slope


def reverse_slowly(image: Array, drawn: Mapping[str, float], knots: Array, amount: float) -> Array:
    mask = np.clip((grow_slowly(knots, *image.shape[1:]) + 1) / 2, 0, 1)
    wave = np.sin(2 * math.pi * image + drawn["reversal_phase"]) / (2 * math.pi)
    reversed_image: Array = np.clip(image + amount * mask * wave, 0, 1)
    return reversed_image


def glow_slowly(drawn: Mapping[str, float], height: int, width: int) -> Array:
    glow = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            right, down = (x + 0.5) / width - drawn["glow_x"], (y + 0.5) / height - drawn["glow_y"]
            glow[y, x] = math.exp(-0.5 * (right**2 + down**2) / math.exp(drawn["glow_size"]) ** 2)
    return glow


def change_illumination_slowly(
    image: Array, drawn: Mapping[str, float], knots: Mapping[str, Array], grain: Array, strength: float
) -> Array:
    """One image, from the numbers that were drawn for it."""
    use = {name: drawn[f"is_used{index}"] < share for index, (name, share) in enumerate(SHARES.items())}
    height, width = image.shape[1:]
    lit: Array = blur_slowly(image, max(drawn["blur"] * strength, 0.0))
    lit = reverse_slowly(lit, drawn, knots["mask"][0], drawn["reversal"] * strength * use["reversal"])
    log_light = (
        grow_slowly(knots["lamps"][0], height, width) * max(drawn["light"], 0) * strength * use["light"]
    )
    hills = (grow_slowly(knots["hills"][0], height, width) + 1) / 2
    shade = 1 / (1 + np.exp(-(hills - drawn["shadow_level"]) * math.exp(drawn["shadow_edge"])))
    log_light = log_light - 1.4 * abs(drawn["shadow"]) * strength * use["shadow"] * shade
    slope = slope_slowly(lit, drawn["relief_angle"])
    log_light = log_light + drawn["relief"] * strength * use["relief"] * slope
    log_light = log_light + drawn["exposure"] * strength * use["exposure"]
    tints = np.stack([grow_slowly(channel, height, width) for channel in knots["tints"]])
    log_light = log_light + tints * drawn["tint"] * strength * use["tint"]
    lit = lit * np.exp(np.clip(log_light, -4, 4))
    lit = lit + drawn["glow"] * strength * use["glow"] * glow_slowly(drawn, height, width)
    thickness = np.clip((grow_slowly(knots["haze"][0], height, width) + 1) / 2, 0, 1)
    thickness = thickness * min(drawn["haze"] * strength * use["haze"], 0.95)
    lit = lit * (1 - thickness) + drawn["haze_level"] * thickness
    lit = np.clip(lit + grain * drawn["noise"] * strength, 0, 1)
    gain = min(max(0.45 / max(lit.mean(), 0.02), 0.5), 4.0)
    restored = drawn["restored"] * min(strength, 1) if drawn["restored"] > 0.5 else 0.0
    lit = np.clip(lit * (1 + (gain - 1) * restored), 0, 1)
    for channel in range(3):
        tone = min(max(drawn[f"tone{channel}"] * strength * use["tone"], -0.95), 0.95)
        lit[channel] = lit[channel] + tone * np.sin(2 * math.pi * lit[channel]) / (2 * math.pi)
    return lit


@pytest.mark.parametrize("strength", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("size_hw", [(9, 7), (4, 11)])
def test_change_illumination_equals_a_slow_reference(strength: float, size_hw: tuple[int, int]) -> None:
    height, width = size_hw
    images = torch.rand(12, 3, height, width, generator=seeded(1))
    found = change_illumination(images, strength, seeded(5))
    generator = seeded(5)
    table = torch.rand(12, len(COLUMNS), generator=generator).double()
    fields = {"mask": (1, 4), "tints": (3, 3), "lamps": (1, 4), "hills": (1, 6), "haze": (1, 3)}
    knots = {
        name: torch.rand(12, channels, count, count, generator=generator).double() * 2 - 1
        for name, (channels, count) in fields.items()
    }
    grain = torch.randn(12, 3, height, width, generator=generator).double()
    for row in range(12):
        drawn = {
            name: low + (high - low) * share
            for (name, low, high), share in zip(COLUMNS, table[row].tolist(), strict=True)
        }
        own = {name: field[row].numpy() for name, field in knots.items()}
        expected = change_illumination_slowly(
            images[row].double().numpy(), drawn, own, grain[row].numpy(), strength
        )
        np.testing.assert_allclose(found[row].numpy(), expected, atol=2e-4)


def test_each_change_is_made_to_its_share_of_the_images() -> None:
    amounts = illumination._sample_amounts(4000, 1.0, seeded())
    assert list(illumination._SHARES) == list(SHARES)
    for name, share in SHARES.items():
        is_made = (amounts[name] != 0).flatten(1).any(dim=1).double().mean().item()
        assert is_made == pytest.approx(share, abs=0.03), name
    assert (amounts["restored"] > 0).double().mean().item() == pytest.approx(0.5, abs=0.03)
    assert amounts["tone"].shape == (4000, 3, 1, 1)


def nothing_but(monkeypatch: pytest.MonkeyPatch, **amounts: float | list[float]) -> None:
    """Makes `change_illumination` do these changes alone, to every image."""

    def draw(batch: int, strength: float, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = {name: torch.zeros(batch, 1, 1, 1) for name in illumination._RANGES}
        drawn["glow_place"] = torch.zeros(batch, 2, 1, 1)
        for name, amount in amounts.items():
            drawn[name] = torch.tensor(amount).reshape(1, -1, 1, 1).expand(batch, -1, 1, 1)
        return drawn

    monkeypatch.setattr(illumination, "_sample_amounts", draw)


def test_no_change_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_but(monkeypatch)
    images = make_photos(2)
    torch.testing.assert_close(change_illumination(images, 1.0, seeded()), images, atol=1e-6, rtol=0)


def test_exposure_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_but(monkeypatch, exposure=math.log(2))
    images = torch.tensor([0.1, 0.3, 0.6]).view(1, 3, 1, 1).expand(1, 3, 4, 5)
    expected = torch.tensor([0.2, 0.6, 1.0]).view(1, 3, 1, 1).expand(1, 3, 4, 5)
    torch.testing.assert_close(change_illumination(images, 1.0, seeded()), expected)


def test_a_camera_that_restores_brightness_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # A mean of 0.3 goes to 0.45; one of 0.05 would need 9 times the light and gets 4 times; half of the way
    # leads to 2.5 times.
    images = torch.tensor([0.3, 0.05]).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    nothing_but(monkeypatch, restored=1.0)
    assert change_illumination(images, 1.0, seeded())[:, 0, 0, 0].tolist() == pytest.approx([0.45, 0.2])
    nothing_but(monkeypatch, restored=0.5)
    assert change_illumination(images, 1.0, seeded())[:, 0, 0, 0].tolist() == pytest.approx([0.375, 0.125])


@pytest.mark.parametrize("tone", [-0.95, -0.4, 0.4, 0.95])
def test_a_tone_curve_rises_and_keeps_its_ends(monkeypatch: pytest.MonkeyPatch, tone: float) -> None:
    nothing_but(monkeypatch, tone=[tone, 0.0, -tone])
    ramp = torch.linspace(0, 1, 401).expand(1, 3, 4, 401).clone()
    curve = change_illumination(ramp, 1.0, seeded())[0, :, 0]
    assert (curve.diff(dim=1) > 0).all()
    torch.testing.assert_close(curve[:, [0, 200, 400]], torch.tensor([[0.0, 0.5, 1.0]] * 3))
    # A quarter of the way up sin(2πx) is 1.
    expected = [0.25 + sign * tone / (2 * math.pi) for sign in (1, 0, -1)]
    assert curve[:, 100].tolist() == pytest.approx(expected, abs=1e-5)


def test_tone_curves_never_fall_at_any_strength() -> None:
    for strength in (0.5, 1.0, 2.0):
        assert illumination._sample_amounts(2000, strength, seeded())["tone"].abs().max() <= 0.95


def test_shadows_darken_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Hills of height 0.75 under a level of 0.5 and an edge of e^log(8): a shade of sigmoid(2).
    nothing_but(monkeypatch, shadow=-1.0, shadow_level=0.5, shadow_edge=math.log(8))
    monkeypatch.setattr(illumination, "_sample_field", lambda images, *_, **__: torch.full((1, 1, 4, 4), 0.5))
    lit = change_illumination(torch.full((1, 3, 4, 4), 0.8), 1.0, seeded())
    expected = 0.8 * math.exp(-1.4 / (1 + math.exp(-2)))
    torch.testing.assert_close(lit, torch.full((1, 3, 4, 4), expected))


def test_lamps_brighten_and_darken_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    field = torch.tensor([-1.0, 0.0, 1.0, 0.5]).expand(1, 1, 4, 4)
    nothing_but(monkeypatch, light=0.5)
    monkeypatch.setattr(illumination, "_sample_field", lambda *_, **__: field)
    lit = change_illumination(torch.full((1, 3, 4, 4), 0.2), 1.0, seeded())[0, 0, 0]
    assert lit.tolist() == pytest.approx([0.2 * math.exp(value / 2) for value in (-1, 0, 1, 0.5)])
    nothing_but(monkeypatch, light=-0.3)  # drawn below 0: this image keeps its lamps
    assert (change_illumination(torch.full((1, 3, 4, 4), 0.2), 1.0, seeded()) == 0.2).all()


def test_a_lamp_in_the_image_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # At the middle of pixel (2, 1) of 4 × 4; one pixel is a quarter of the side, and the size is a quarter.
    nothing_but(monkeypatch, glow=0.4, glow_place=[0.625, 0.375], glow_size=math.log(0.25))
    lit = change_illumination(torch.full((1, 3, 4, 4), 0.1), 1.0, seeded())[0, 0]
    assert lit[1, 2].item() == pytest.approx(0.5)
    assert lit[1, 3].item() == pytest.approx(0.1 + 0.4 * math.exp(-0.5))
    assert lit[2, 3].item() == pytest.approx(0.1 + 0.4 * math.exp(-1))


def test_haze_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # A field of 0.5 is three quarters of the haze's thickness.
    nothing_but(monkeypatch, haze=0.8, haze_level=0.9)
    monkeypatch.setattr(illumination, "_sample_field", lambda *_, **__: torch.full((1, 1, 4, 4), 0.5))
    lit = change_illumination(torch.full((1, 3, 4, 4), 0.2), 1.0, seeded())
    torch.testing.assert_close(lit, torch.full((1, 3, 4, 4), 0.2 + 0.6 * 0.7))


def test_tones_turn_about_where_the_curve_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(illumination, "_sample_field", lambda *_, **__: torch.ones(1, 1, 4, 401))
    ramp = torch.linspace(0, 1, 401).expand(1, 3, 4, 401).clone()
    for amount, is_falling in ((0.9, False), (2.0, True)):
        nothing_but(monkeypatch, reversal=amount)
        curve = change_illumination(ramp, 1.0, seeded())[0, 0, 0]
        assert (curve.diff() < 0).any().item() == is_falling
        assert curve[100].item() == pytest.approx(0.25 + amount / (2 * math.pi), abs=1e-5)


def test_the_slope_of_a_ramp() -> None:
    # It rises by 0.01 a pixel to the right and by 0.02 downwards.
    y, x = torch.meshgrid(torch.arange(8.0), torch.arange(9.0), indexing="ij")
    ramp = (0.01 * x + 0.02 * y).expand(1, 3, 8, 9)
    right, down = torch.zeros(1, 1, 1, 1), torch.full((1, 1, 1, 1), math.pi / 2)
    inner = (slice(None), slice(None), slice(2, -2), slice(2, -2))
    torch.testing.assert_close(illumination._slope(ramp, right)[inner], torch.full((1, 1, 4, 5), 0.01))
    torch.testing.assert_close(illumination._slope(ramp, down)[inner], torch.full((1, 1, 4, 5), 0.02))
    # Against the slope, halfway between left and up: -(0.01 + 0.02) / √2.
    back = torch.full((1, 1, 1, 1), 1.25 * math.pi)
    expected = torch.full((1, 1, 4, 5), -0.03 / math.sqrt(2))
    torch.testing.assert_close(illumination._slope(ramp, back)[inner], expected)
    # At the left edge the smoothed ramp begins at 0.005, and its next value is 0.01.
    column = illumination._slope(torch.arange(5.0).mul(0.01).expand(1, 3, 4, 5), right)[0, 0, 1]
    assert column.tolist() == pytest.approx([0.005, 0.0075, 0.01, 0.0075, 0.005])
    assert illumination._slope(torch.full((1, 3, 5, 5), 0.7), down).abs().max() < 1e-6


@pytest.mark.parametrize("strength", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("size_hw", [(4, 4), (5, 33), (37, 64)])
def test_images_under_other_illumination_stay_in_range(strength: float, size_hw: tuple[int, int]) -> None:
    generator = seeded(2)
    images = torch.rand(24, 3, *size_hw, generator=generator)
    images[:2] = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)  # black and white
    lit = change_illumination(images, strength, generator)
    assert lit.shape == images.shape and lit.isfinite().all()
    assert lit.min() >= 0 and lit.max() <= 1
    assert (lit - images).abs().mean() > 0.01


def test_strength_zero_and_empty_batches_sample_nothing() -> None:
    generator, images = seeded(), make_photos(2)
    before = generator.get_state()
    assert torch.equal(change_illumination(images, 0.0, generator), images)
    assert change_illumination(images[:0], 1.0, generator).shape == (0, 3, 32, 40)
    assert torch.equal(change_colours(images[None], 0.0, generator), images[None])
    assert change_colours(images[None, :0], 1.0, generator).shape == (1, 0, 3, 32, 40)
    assert torch.equal(generator.get_state(), before)


def test_every_image_is_lit_on_its_own() -> None:
    lit = change_illumination(make_photos(1).expand(6, -1, -1, -1), 1.0, seeded())
    for i in range(6):
        for j in range(i):
            assert (lit[i] - lit[j]).abs().mean() > 0.01
    # What the other images show does not matter.
    images, others = make_photos(4), make_photos(4)
    others[1:] = 1 - others[1:]
    one, two = change_illumination(images, 1.0, seeded(3)), change_illumination(others, 1.0, seeded(3))
    torch.testing.assert_close(one[0], two[0], atol=1e-5, rtol=0)
    assert (one[1] - two[1]).abs().mean() > 0.01


def test_more_strength_changes_more() -> None:
    images = make_photos(32)
    weak, strong = ((change_illumination(images, s, seeded()) - images).abs().mean() for s in (0.25, 1.0))
    assert 2 * weak < strong


@pytest.mark.parametrize("batch", [1, 5])
def test_a_seed_fixes_light_and_colours(batch: int) -> None:
    images = make_photos(batch)
    first, again, other = (change_illumination(images, 1.0, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    first, again, other = (change_colours(images[None], 1.0, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def change_colours_slowly(pixel: list[float], drawn: list[float], share: float) -> list[float]:
    """One pixel, from the 16 numbers of [0, 1) that were drawn for its photograph."""
    order, mix, (mixed, gamma, used, negative) = drawn[:3], drawn[3:12], drawn[12:]
    if used >= share:
        return pixel
    ranked = sorted(range(3), key=lambda channel: order[channel])
    changed = []
    for row in range(3):
        weights = [math.exp(4 * value - 2) for value in mix[3 * row : 3 * row + 3]]
        value = 0.0
        for column in range(3):
            kept = 1.0 if ranked[row] == column else 0.0
            value += pixel[column] * (kept * (1 - 0.6 * mixed) + weights[column] / sum(weights) * 0.6 * mixed)
        value = max(value, 1e-4) ** math.exp(gamma - 0.5)
        changed.append(1 - value if negative < 0.15 else value)
    return changed


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_change_colours_equals_a_slow_reference(share: float) -> None:
    images = torch.rand(2, 20, 3, 2, 3, generator=seeded(1))
    images[0, :, :, 0, 0] = 0
    found = change_colours(images, share, seeded(4))
    drawn = torch.rand(20, 16, generator=seeded(4)).tolist()
    for view in range(2):
        for row in range(20):
            for y in range(2):
                for x in range(3):
                    expected = change_colours_slowly(images[view, row, :, y, x].tolist(), drawn[row], share)
                    assert found[view, row, :, y, x].tolist() == pytest.approx(expected, abs=2e-5)


def test_grey_stays_grey_and_only_negatives_turn_it_over() -> None:
    ramp = torch.linspace(0, 1, 64).expand(1, 400, 3, 4, 64)
    changed = change_colours(ramp, 1.0, seeded())
    torch.testing.assert_close(changed.amax(dim=2), changed.amin(dim=2), atol=1e-5, rtol=0)
    steps = changed[0, :, 0, 0].diff(dim=-1)
    is_rising, is_falling = (steps >= 0).all(dim=-1), (steps <= 0).all(dim=-1)
    assert (is_rising ^ is_falling).all()
    assert is_falling.double().mean().item() == pytest.approx(0.15, abs=0.06)


def test_both_views_of_an_image_get_the_same_colours() -> None:
    image = make_photos(6)
    views = torch.stack([image, image.flip(-1)])
    changed = change_colours(views, 0.7, seeded())
    assert torch.equal(changed[0], changed[1].flip(-1))
    assert changed.min() >= 0 and changed.max() <= 1


def test_the_share_of_images_that_get_other_colours() -> None:
    images = torch.rand(1, 600, 3, 2, 2, generator=seeded(1))
    is_changed = (change_colours(images, 0.3, seeded()) != images).flatten(2).any(dim=2)[0]
    assert is_changed.double().mean().item() == pytest.approx(0.3, abs=0.07)
    # Channels change places: for pure red each channel is the brightest equally often.
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 1, 3, 1, 1).expand(1, 900, 3, 1, 1)
    brightest = change_colours(red, 1.0, seeded()).squeeze().argmax(dim=1)
    assert torch.bincount(brightest, minlength=3).min() > 200
