"""Every transform moves images and points together."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ucn.data import transforms
from ucn.data.transforms import (
    PADDING_RGB,
    crop,
    crop_pair,
    mirror,
    mirror_view,
    pad,
    resize,
    resize_by,
    resize_to_fit,
    rotate_view,
)
from ucn.geometry.coords import is_inside
from ucn.types import PairSample

SIZE0_HW, SIZE1_HW = (40, 60), (50, 44)
DOT0, DOT1 = (33.0, 14.0), (20.0, 30.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_dot(size_hw: tuple[int, int], dot_xy: tuple[float, float], width: float = 2.0) -> Tensor:
    """A green image with a red dot, whose brightness falls off like a Gaussian around its place."""
    height, width_ = size_hw
    x, y = torch.arange(width_)[None, :], torch.arange(height)[:, None]
    red = torch.exp(-((x - dot_xy[0]) ** 2 + (y - dot_xy[1]) ** 2) / (2 * width**2))
    return torch.stack([red, torch.full_like(red, 0.5), torch.zeros_like(red)])


def find_dot(image: Tensor) -> Tensor:
    """(2,): centre of the red, which padding has too, above the padding's red."""
    red = (image[0] - 0.6).clamp_min(0)
    assert red.sum() > 0.1, "the dot is not in the image"
    y, x = torch.meshgrid(torch.arange(red.shape[0]), torch.arange(red.shape[1]), indexing="ij")
    return torch.stack([(x * red).sum(), (y * red).sum()]) / red.sum()


def make_sample() -> PairSample:
    """A pair with one correspondence, at a dot in each image."""
    return PairSample(
        draw_dot(SIZE0_HW, DOT0),
        draw_dot(SIZE1_HW, DOT1),
        torch.tensor([DOT0]),
        torch.tensor([DOT1]),
        "dots",
        pck_length=10.0,
        parts=torch.tensor([0]),
        mirror_parts=torch.tensor([0, 2, 1]),
    )


def blank(size0_hw: tuple[int, int], size1_hw: tuple[int, int], points: list[list[float]]) -> PairSample:
    """Grey images; rows of points are x0, y0, x1, y1."""
    rows = torch.tensor(points, dtype=torch.float32).view(-1, 4)
    images = torch.full((3, *size0_hw), 0.5), torch.full((3, *size1_hw), 0.5)
    return PairSample(*images, rows[:, :2], rows[:, 2:], "blank")


EVERY: dict[str, Callable[[PairSample], PairSample]] = {
    "resize": lambda s: resize(s, (60, 110), (75, 80)),
    "resize_smaller": lambda s: resize(s, (30, 50), (35, 40)),
    "resize_by": lambda s: resize_by(s, 1.5, 0.8),
    "resize_to_fit": lambda s: resize_to_fit(s, (64, 64)),
    "crop": lambda s: crop(s, (11, 3), (5, 12), (30, 33), (28, 30)),
    "crop_beyond": lambda s: crop(s, (-7, -3), (5, -12), (50, 90), (80, 30)),
    "pad": lambda s: pad(s, (70, 72)),
    "crop_pair": lambda s: crop_pair(s, (25, 26), (20, 21), 1, generator(2)),
    "crop_pair_larger": lambda s: crop_pair(s, (64, 40), (64, 40), 1, generator(5)),
    "mirror": mirror,
    "mirror_view0": lambda s: mirror_view(s, 0),
    "mirror_view1": lambda s: mirror_view(s, 1),
    "rotate_view0": lambda s: rotate_view(s, 0, 30.0),
    "rotate_view1": lambda s: rotate_view(s, 1, -50.0, 1.3),
    "rotate_smaller": lambda s: rotate_view(s, 1, 190.0, 0.8),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_dot_moves_with_its_point(name: str) -> None:
    changed = EVERY[name](make_sample())
    assert len(changed) == 1
    tolerance = 0.2  # a dot cut by pixels and interpolation is off its centre by a little
    assert (find_dot(changed.image0) - changed.points0[0]).norm() < tolerance
    assert (find_dot(changed.image1) - changed.points1[0]).norm() < tolerance
    assert changed.image0.dtype == changed.points0.dtype == torch.float32
    assert changed.image0.min() >= 0 and changed.image0.max() <= 1


@pytest.mark.parametrize("name", EVERY)
def test_no_points_stay_no_points(name: str) -> None:
    changed = EVERY[name](make_sample().select(torch.zeros(0, dtype=torch.int64)))
    assert changed.points0.shape == changed.points1.shape == (0, 2)
    assert changed.parts is not None and changed.parts.shape == (0,)
    assert changed.image0.shape == EVERY[name](make_sample()).image0.shape


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_changed_in_place(name: str) -> None:
    sample, fresh = make_sample(), make_sample()
    EVERY[name](sample)
    for mine, theirs in zip(
        (sample.image0, sample.image1, sample.points0, sample.points1),
        (fresh.image0, fresh.image1, fresh.points0, fresh.points1),
        strict=True,
    ):
        assert torch.equal(mine, theirs)


def test_resize_by_hand() -> None:
    # x' = (x + 0.5) * s - 0.5: by 2 the edge -0.5 stays, pixel 0 goes to 0.5, the far edge 3.5 to 7.5.
    sample = blank((4, 4), (2, 8), [[-0.5, 0, 0, 0], [0, 3.5, 7.5, 1.5], [3.5, 1, 3, 0]])
    changed = resize(replace(sample, pck_length=6.0), (8, 8), (4, 4))
    assert changed.image0.shape == (3, 8, 8) and changed.image1.shape == (3, 4, 4)
    assert changed.points0.tolist() == [[-0.5, 0.5], [0.5, 7.5], [7.5, 2.5]]
    assert changed.points1.tolist() == [[-0.25, 0.5], [3.5, 3.5], [1.25, 0.5]]
    assert changed.pck_length == pytest.approx(6.0)  # half as wide, twice as high
    assert resize(replace(sample, pck_length=6.0), (8, 8), (4, 16)).pck_length == pytest.approx(12.0)
    assert resize(sample, (8, 8), (4, 4)).pck_length is None


def test_resize_is_antialiased() -> None:
    stripes = torch.zeros(3, 8, 64)
    stripes[:, :, ::2] = 1  # plain interpolation by 1/4 would read single stripes
    sample = replace(blank((8, 64), (8, 8), []), image0=stripes)
    assert (resize(sample, (2, 16), (8, 8)).image0 - 0.5).abs().max() < 0.1


@pytest.mark.parametrize("width", [3, 7, 49, 53, 97, 1242])
def test_points_on_the_edge_stay_on_the_image_when_resized(width: int) -> None:
    sample = blank((5, width), (5, width), [[width - 0.5, 4.5, -0.5, -0.5]])
    for new in (1, 11, 101, 769, 1000):
        changed = resize(sample, (new, new), (new, new))
        assert is_inside(changed.points0, (new, new)).all() and is_inside(changed.points1, (new, new)).all()


@pytest.mark.parametrize(
    ("size_hw", "expected0", "expected1"),
    [((160, 160), (160, 80), (107, 160)), ((80, 160), (80, 40), (80, 120)), ((10, 1), (2, 1), (1, 1))],
)
def test_images_fit_into_a_size(
    size_hw: tuple[int, int], expected0: tuple[int, int], expected1: tuple[int, int]
) -> None:
    changed = resize_to_fit(blank((100, 50), (20, 30), []), size_hw)
    assert changed.image0.shape[-2:] == expected0 and changed.image1.shape[-2:] == expected1


def test_crop_by_hand() -> None:
    sample = blank((6, 8), (6, 8), [[2, 1, 0, 0], [4.5, 2, 1, 1], [1.4, 1, 1, 1], [1.5, 3.5, 3.5, 2.5]])
    sample = replace(sample, image0=torch.arange(48.0).view(1, 6, 8).repeat(3, 1, 1) / 48)
    changed = crop(sample, (2, 1), (0, 0), (3, 3), (3, 4))
    assert torch.equal(changed.image0, sample.image0[:, 1:4, 2:5])
    # Row 0: the corner; row 1: on the right edge of window 0; row 2: left of it; row 3: both corners.
    assert changed.points0.tolist() == [[0, 0], [2.5, 1], [-0.5, 2.5]]
    assert changed.points1.tolist() == [[0, 0], [1, 1], [3.5, 2.5]]


def test_crop_beyond_the_image_is_padded() -> None:
    sample = blank((2, 3), (2, 3), [[0, 0, 2, 1]])
    changed = crop(sample, (-1, -2), (1, 1), (5, 5), (2, 2))
    padding = torch.tensor(PADDING_RGB)
    assert torch.equal(changed.image0[:, 2:4, 1:4], sample.image0)
    assert torch.allclose(changed.image0[:, 0, 0], padding)
    assert torch.allclose(changed.image0[:, 4, 4], padding)
    assert torch.allclose(changed.image1[:, 1, :], padding[:, None].expand(3, 2))
    assert changed.points0.tolist() == [[1, 2]] and changed.points1.tolist() == [[1, 0]]
    far = crop(sample, (90, 90), (-90, -90), (2, 2), (2, 2))
    assert len(far) == 0 and torch.allclose(far.image0, padding[:, None, None].expand(3, 2, 2))


def test_pad_by_hand() -> None:
    changed = pad(blank((2, 3), (4, 9), [[0, 0, 4, 2], [0, 0, 1, 2]]), (4, 5))
    assert changed.image0.shape == changed.image1.shape == (3, 4, 5)
    # Image 0: one row above, one column to the left. Image 1: two columns cut off on each side.
    assert changed.points0.tolist() == [[1, 1]] and changed.points1.tolist() == [[2, 2]]


def test_a_pair_of_windows_keeps_the_correspondences() -> None:
    # Image 1 shows image 0 shifted by 300 px: windows at the same place would have nothing in common.
    grid = torch.cartesian_prod(torch.arange(0.0, 700, 10), torch.arange(150.0, 375, 10))
    shifted = grid + torch.tensor([300.0, -10.0])
    sample = blank((375, 1242), (375, 1242), torch.cat([grid, shifted], dim=1).tolist())
    for seed in range(20):
        changed = crop_pair(sample, (321, 400), (321, 400), 200, generator(seed))
        assert changed.image0.shape == changed.image1.shape == (3, 321, 400)
        assert len(changed) >= 200
        assert is_inside(changed.points0, (321, 400)).all() and is_inside(changed.points1, (321, 400)).all()


def test_window_1_is_centred_on_the_median_and_stays_on_the_image() -> None:
    sample = blank((9, 9), (100, 100), [[4, 4, 50, 20], [4, 4, 52, 22], [4, 4, 90, 99]])
    changed = crop_pair(sample, (9, 9), (11, 11), 2, generator())
    # The median partner is (52, 22), so the window begins at (47, 17).
    assert changed.points1.tolist() == [[3, 3], [5, 5]]
    at_the_edge = blank((9, 9), (100, 100), [[4, 4, 1, 98]])
    assert crop_pair(at_the_edge, (9, 9), (11, 11), 1, generator()).points1.tolist() == [[1, 9]]


def test_windows_are_anywhere_and_hold_a_correspondence() -> None:
    sample = blank((100, 100), (100, 100), [[3, 97, 50, 50]])
    found = [crop_pair(sample, (20, 20), (20, 20), 1, generator(seed)).points0[0] for seed in range(60)]
    x, y = torch.stack(found).unbind(1)
    assert x.min() >= 0 and x.max() == 3 and set(x.tolist()) == {0, 1, 2, 3}
    assert y.min() == 17 and y.max() == 19
    none = sample.select(torch.zeros(0, dtype=torch.int64))
    assert crop_pair(none, (20, 20), (20, 20), 1, generator()).image1.shape == (3, 20, 20)


def test_other_windows_are_tried_for_enough_points(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = [[90.0 + i % 3, 90.0 + i // 3, 90.0 + i % 3, 90.0 + i // 3] for i in range(9)]
    sample = blank((100, 100), (100, 100), [[2.0, 2.0, 2.0, 2.0]] * 3 + crowd)
    enough = [len(crop_pair(sample, (20, 20), (20, 20), 9, generator(seed))) for seed in range(30)]
    assert enough == [9] * 30
    monkeypatch.setattr(transforms, "_WINDOW_TRIES", 1)
    first = [len(crop_pair(sample, (20, 20), (20, 20), 9, generator(seed))) for seed in range(30)]
    assert min(first) == 3


def test_mirror_by_hand() -> None:
    sample = blank((4, 5), (4, 9), [[0, 1, 8.5, 2]])
    sample = replace(sample, parts=torch.tensor([1]), mirror_parts=torch.tensor([0, 2, 1]))
    changed = mirror(sample)
    assert changed.points0.tolist() == [[4, 1]] and changed.points1.tolist() == [[-0.5, 2]]
    assert changed.parts is not None and changed.parts.tolist() == [2]
    assert mirror(replace(sample, parts=None, mirror_parts=None)).parts is None


# Parts: 0 beak, 1 left eye, 2 right eye, 3 left wing, 4 right wing.
MIRROR_PARTS = torch.tensor([0, 2, 1, 4, 3])


def make_bird() -> PairSample:
    rows = [[1.0, 1.0, 11.0, 11.0], [2.0, 2.0, 12.0, 12.0], [3.0, 3.0, 13.0, 13.0], [4.0, 4.0, 14.0, 14.0]]
    parts = torch.tensor([3, 0, 2, 1])
    return replace(blank((20, 10), (20, 30), rows), parts=parts, mirror_parts=MIRROR_PARTS, pck_length=7.0)


@pytest.mark.parametrize("view", [0, 1])
def test_one_view_mirrored_is_paired_through_its_parts(view: transforms.View) -> None:
    changed = mirror_view(make_bird(), view)
    # The wing (3) would need a right wing; the beak stays; eyes change places.
    assert changed.parts is not None and changed.parts.tolist() == [0, 2, 1]
    if view == 0:
        assert changed.points0.tolist() == [[9 - 2, 2], [9 - 4, 4], [9 - 3, 3]]
        assert changed.points1.tolist() == [[12, 12], [13, 13], [14, 14]]
    else:
        assert changed.points0.tolist() == [[2, 2], [3, 3], [4, 4]]
        assert changed.points1.tolist() == [[29 - 12, 12], [29 - 14, 14], [29 - 13, 13]]
    assert changed.pck_length == 7.0


def test_mirroring_each_view_alone_is_mirroring_both() -> None:
    bird = make_bird().select(torch.tensor([1, 2, 3]))
    both, one_by_one = mirror(bird), mirror_view(mirror_view(bird, 0), 1)
    assert both.parts is not None and one_by_one.parts is not None
    order = torch.stack([(one_by_one.parts == part).int().argmax() for part in both.parts])
    assert torch.equal(both.points0, one_by_one.points0[order])
    assert torch.equal(both.points1, one_by_one.points1[order])


def test_a_scene_has_no_mirror_image() -> None:
    sample = blank((4, 5), (4, 5), [[1, 1, 1, 1]])
    with pytest.raises(
        ValueError, match="one view of blank cannot be mirrored alone: its points mark no parts"
    ):
        mirror_view(sample, 0)


def test_a_quarter_turn_by_hand() -> None:
    sample = blank((5, 5), (5, 5), [[4, 2, 4, 2], [0, 0, 2, 2]])
    image = torch.zeros(3, 5, 5)
    image[:, 2, 4] = 1  # the right
    changed = rotate_view(replace(sample, image1=image), 1, 90.0)
    expected = torch.zeros(3, 5, 5)
    expected[:, 4, 2] = 1  # clockwise: the bottom
    torch.testing.assert_close(changed.image1, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(changed.points1, torch.tensor([[2.0, 4], [2, 2]]))
    assert torch.equal(changed.image0, sample.image0) and torch.equal(changed.points0, sample.points0)


def test_what_turns_off_the_canvas_is_dropped_and_padding_appears() -> None:
    sample = blank((11, 11), (11, 11), [[5, 5, 5, 5], [10, 10, 1, 1]])
    sample = replace(sample, parts=torch.tensor([4, 3]), mirror_parts=MIRROR_PARTS, pck_length=2.0)
    changed = rotate_view(sample, 0, 45.0)
    assert changed.points0.tolist() == [[5, 5]] and changed.points1.tolist() == [[5, 5]]
    assert changed.parts is not None and changed.parts.tolist() == [4]
    assert torch.allclose(changed.image0[:, 0, 0], torch.tensor(PADDING_RGB))
    assert changed.pck_length == 2.0
    larger = rotate_view(sample, 1, 0.0, 1.5)
    assert larger.points1.tolist() == [[5, 5]]  # (1, 1) went to (-1, -1)
    assert larger.pck_length == 3.0


def test_turning_back_brings_points_back() -> None:
    sample = blank((40, 60), (40, 60), [[30, 20, 31, 22], [25, 15.5, 20, 10]])
    for degrees, scale in ((17.0, 1.2), (-130.0, 0.7), (180.0, 1.0)):
        back = rotate_view(rotate_view(sample, 0, degrees, scale), 0, -degrees, 1 / scale)
        torch.testing.assert_close(back.points0, sample.points0, atol=1e-4, rtol=0)


def test_resize_there_and_back_and_mirror_twice() -> None:
    sample = make_sample()
    back = resize(resize(sample, (80, 120), (25, 22)), SIZE0_HW, SIZE1_HW)
    torch.testing.assert_close(back.points0, sample.points0)
    torch.testing.assert_close(back.points1, sample.points1)
    assert back.pck_length == pytest.approx(10.0)
    twice = mirror(mirror(sample))
    assert torch.equal(twice.image0, sample.image0) and torch.equal(twice.points1, sample.points1)


@pytest.mark.parametrize("size_hw", [(20, 30), (53, 97), (40, 61)])
def test_flip_then_resize_is_resize_then_flip(size_hw: tuple[int, int]) -> None:
    sample = make_sample()
    first, second = mirror(resize(sample, size_hw, size_hw)), resize(mirror(sample), size_hw, size_hw)
    torch.testing.assert_close(first.points0, second.points0)
    torch.testing.assert_close(first.points1, second.points1)
    torch.testing.assert_close(first.image0, second.image0, atol=1e-5, rtol=0)
    torch.testing.assert_close(first.image1, second.image1, atol=1e-5, rtol=0)
