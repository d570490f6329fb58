"""Semantic pairs rendered on the device: points move with the image, and parts are mirrored."""

import math
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.sets.semantic.parts import Example, Keypoints
from ucn.data.synthetic.part_pairs import PartAugmentation, PartBank, make_part_pairs
from ucn.errors import DataError
from ucn.geometry.sampling import sample_image

# Left eye red, right eye green, beak blue, on grey; 60 × 40 pixels.
COLOURS = ((1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0))
SPOTS = {
    "a/0": ((15, 12), (40, 12), (28, 28)),
    "a/1": ((12, 20), (33, 24), (22, 32)),
    "b/0": ((20, 10), None, (30, 30)),
}


class Spots(KeypointData):
    """Three parts an image, drawn as coloured squares."""

    mirror: NDArray[np.int64] | None = np.array([1, 0, 2])

    def __init__(self, root: Path) -> None:
        examples = []
        for name, spots in SPOTS.items():
            pixels = np.full((40, 60, 3), 128, np.uint8)
            for spot, colour in zip(spots, COLOURS, strict=True):
                if spot is not None:
                    x, y = spot
                    pixels[y - 4 : y + 5, x - 4 : x + 5] = [round(255 * c) for c in colour]
            path = root / f"{name.replace('/', '_')}.png"
            PIL.Image.fromarray(pixels).save(path)
            examples.append(Example(name, name[0], path, root / "parts.txt", is_shared=True))
        super().__init__(root, examples)

    def keypoints(self, example: Example) -> Keypoints:
        spots = SPOTS[example.name]
        points = np.array([spot or (math.nan, math.nan) for spot in spots], np.float64)
        return Keypoints(points, np.isfinite(points[:, 0]), example.annotation, range(3))

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        return float(max(size_hw))

    def mirror_table(self, category: str) -> NDArray[np.int64] | None:
        return self.mirror


@pytest.fixture
def bank(tmp_path: Path) -> PartBank:
    return PartBank(Spots(tmp_path), 60, "cpu")


def draw(bank: PartBank, count: int = 40, seed: int = 0, **variation: float) -> list[tuple[Tensor, ...]]:
    """Pairs as (image, points, is_valid) of view 0 and of view 1."""
    batch = make_part_pairs(
        bank, count, (64, 96), PartAugmentation(**variation), torch.Generator().manual_seed(seed)
    )
    views0 = zip(batch.image0, batch.points0, batch.is_valid, strict=True)
    return [*views0, *zip(batch.image1, batch.points1, batch.is_valid, strict=True)]


def colour_at(image: Tensor, point: Tensor) -> Tensor:
    return sample_image(image[None], point.view(1, 1, 1, 2), "border").view(3)


def test_without_changes_images_are_scaled_to_fit_and_centred(bank: PartBank) -> None:
    batch = make_part_pairs(bank, 8, (64, 96), PartAugmentation(), torch.Generator().manual_seed(0))
    assert batch.image0.shape == (8, 3, 64, 96) and batch.points0.shape == (8, 3, 2)
    row = next(i for i, name in enumerate(batch.names) if name.startswith("a_0"))
    # 60 × 40 fits by 1.6; the centre (29.5, 19.5) goes to (47.5, 31.5).
    expected = (torch.tensor([[15.0, 12], [40, 12], [28, 28]]) - torch.tensor([29.5, 19.5])) * 1.6
    torch.testing.assert_close(batch.points0[row], expected + torch.tensor([47.5, 31.5]))


@pytest.mark.parametrize(
    "variation",
    [
        {},
        {"rotation": 60.0, "scale": 1.3, "shift": 0.1},
        {"mirror": 1.0, "rotation": 20.0},
    ],
)
def test_parts_have_their_colour_in_both_views(bank: PartBank, variation: dict[str, float]) -> None:
    seen = 0
    for image, points, is_valid in draw(bank, 40, 0, **variation):
        names = (1, 0, 2) if variation.get("mirror") else (0, 1, 2)  # in a mirror the left eye is the right
        for part in range(3):
            if is_valid[part]:
                torch.testing.assert_close(
                    colour_at(image, points[part]), torch.tensor(COLOURS[names[part]]), atol=0.02, rtol=0
                )
                seen += 1
    assert seen > 60


def test_a_mirrored_view_changes_the_names_of_its_parts(bank: PartBank) -> None:
    crossed = 0
    views = draw(bank, mirror_view=1.0)
    for (image0, points0, is_valid), (image1, points1, _) in zip(views[:40], views[40:], strict=True):
        if is_valid[0]:
            colours = [colour_at(image0, points0[0]), colour_at(image1, points1[0])]
            assert {int(colour.argmax()) for colour in colours} == {0, 1}
            crossed += 1
    assert crossed > 10


def test_partners_are_of_one_class_unless_across(bank: PartBank) -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = set(make_part_pairs(bank, 60, (64, 64), PartAugmentation(), generator).names)
    assert pairs == {"a_0.png--a_1.png", "a_1.png--a_0.png", "b_0.png--b_0.png"}
    across = set(make_part_pairs(bank, 200, (64, 64), PartAugmentation(across=1.0), generator).names)
    assert len(across) == 9


def test_invisible_and_outside_parts_are_not_valid(bank: PartBank) -> None:
    batch = make_part_pairs(bank, 60, (64, 64), PartAugmentation(shift=0.5), torch.Generator().manual_seed(1))
    lone = [row for row, name in enumerate(batch.names) if name.startswith("b_0")]
    assert not batch.is_valid[lone, 1].any()
    inside = (batch.points0 >= -0.5) & (batch.points0 <= 63.5)
    assert not batch.is_valid[~inside.all(-1)].any()
    assert batch.is_valid.any()


def test_the_seed_decides(bank: PartBank) -> None:
    changes = {"rotation": 10.0, "scale": 1.2, "photometric": 1.0, "mirror": 0.5, "mirror_view": 0.5}
    first, again, other = (draw(bank, 4, seed, **changes) for seed in (0, 0, 1))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], other[0][0])


def test_large_images_are_held_smaller_with_their_parts(tmp_path: Path) -> None:
    bank = PartBank(Spots(tmp_path), 30, "cpu")
    assert bank.images.sizes[0].tolist() == [30, 20]
    # Halving takes x to (x + 0.5) / 2 - 0.5.
    assert bank.parts[0].tolist() == [[7.25, 5.75], [19.75, 5.75], [13.75, 13.75]]
    assert bank.count.tolist() == [2, 2, 1] and bank.first.tolist() == [0, 0, 2]


def test_one_view_is_mirrored_only_where_the_set_knows_left_from_right(tmp_path: Path) -> None:
    data = Spots(tmp_path)
    data.mirror = None
    bank = PartBank(data, 60, "cpu")
    with pytest.raises(DataError, match="no mirror parts: set mirror_view to 0"):
        make_part_pairs(bank, 2, (64, 64), PartAugmentation(mirror_view=0.5), torch.Generator())
    assert (
        make_part_pairs(bank, 2, (64, 64), PartAugmentation(mirror=1.0), torch.Generator()).image0.shape[0]
        == 2
    )
