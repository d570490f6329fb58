import torch

from ucn.data.transforms import PADDING_RGB
from ucn.evaluate.core.benchmark_pairs import ORIGINAL_SIZE, Preparation
from ucn.types import PairSample


def make_sample(size0_hw: tuple[int, int], size1_hw: tuple[int, int]) -> PairSample:
    points = torch.tensor([[0.0, 0.0], [9.0, 4.0]])
    return PairSample(torch.zeros(3, *size0_hw), torch.ones(3, *size1_hw), points, points + 1, "pair", 10.0)


def test_as_they_are() -> None:
    sample = make_sample((20, 30), (40, 16))
    prepared = ORIGINAL_SIZE.apply(sample)
    assert prepared.sample is sample
    assert (prepared.content0, prepared.content1) == ((0, 0, 30, 20), (0, 0, 16, 40))


def test_canvas_by_hand() -> None:
    # Image 0 fits into 40 × 20 as it is, 5 px from either side; image 1 is halved to 8 × 20.
    prepared = Preparation(canvas_hw=(20, 40)).apply(make_sample((20, 30), (40, 16)))
    shown = prepared.sample
    assert shown.image0.shape == shown.image1.shape == (3, 20, 40)
    assert (prepared.content0, prepared.content1) == ((5, 0, 35, 20), (16, 0, 24, 20))
    assert shown.points0.tolist() == [[5, 0], [14, 4]]
    assert shown.points1.tolist() == [[16.25, 0.25], [20.75, 2.25]]
    assert shown.pck_length == 5
    for image, (left, top, right, bottom), value in (
        (shown.image0, prepared.content0, 0.0),
        (shown.image1, prepared.content1, 1.0),
    ):
        is_picture = torch.zeros(20, 40, dtype=torch.bool)
        is_picture[top:bottom, left:right] = True
        assert torch.allclose(image[:, is_picture], torch.tensor(value), atol=1e-6)
        assert torch.allclose(image[0, ~is_picture], torch.tensor(PADDING_RGB[0]))


def test_odd_margins() -> None:
    prepared = Preparation(canvas_hw=(21, 40)).apply(make_sample((21, 31), (21, 37)))
    for image, (left, top, right, bottom), value in (
        (prepared.sample.image0, prepared.content0, 0.0),
        (prepared.sample.image1, prepared.content1, 1.0),
    ):
        assert (image[:, top:bottom, left:right] == value).all()
        assert (image[:, :, :left] != value).all()
        assert (image[:, :, right:] != value).all()


def test_longest_side_only_shrinks() -> None:
    prepared = Preparation(max_side=20).apply(make_sample((10, 40), (10, 15)))
    assert prepared.sample.image0.shape == (3, 5, 20)
    assert prepared.sample.image1.shape == (3, 10, 15)
    assert prepared.sample.points0[1].tolist() == [4.25, 1.75]
    assert prepared.sample.pck_length == 10


def test_longest_side_that_enlarges() -> None:
    prepared = Preparation(max_side=30, use_enlarging=True).apply(make_sample((10, 40), (10, 15)))
    assert prepared.sample.image0.shape == (3, 8, 30)
    assert prepared.sample.image1.shape == (3, 20, 30)
    assert prepared.sample.points1[1].tolist() == [20.5, 10.5]
    assert prepared.sample.pck_length == 20


def test_narrow_images_are_padded() -> None:
    prepared = Preparation(min_side=24).apply(make_sample((20, 30), (40, 16)))
    assert prepared.sample.image0.shape == prepared.sample.image1.shape == (3, 40, 30)
    assert (prepared.content0, prepared.content1) == ((0, 10, 30, 30), (7, 0, 23, 40))
    assert prepared.sample.points0[1].tolist() == [9, 14]
    wide = make_sample((24, 30), (40, 25))
    assert Preparation(min_side=24).apply(wide).sample is wide


def test_descriptions_and_keys_tell_them_apart() -> None:
    ways = [
        ORIGINAL_SIZE,
        Preparation(canvas_hw=(480, 640)),
        Preparation(max_side=160),
        Preparation(max_side=160, use_enlarging=True),
        Preparation(max_side=160, min_side=32),
    ]
    assert "640 × 480" in ways[1].describe()
    assert "160 px" in ways[2].describe()
    assert len({way.describe() for way in ways}) == len({str(way.to_dict()) for way in ways}) == 5
    assert ORIGINAL_SIZE.to_dict() == {"canvas_hw": None, "max_side": None}  # keys of older predictions
