import math
from pathlib import Path

import pytest
import torch

from support.photo_cases import make_photo, write_photos
from ucn.data.bundled import (
    CHANGES,
    ROTATIONS,
    SCALES,
    Change,
    Motorcycle,
    SelfPairs,
    find_self_images,
)
from ucn.data.example import disparity_errors, example_pair
from ucn.data.io import write_image
from ucn.geometry.sampling import sample_image


def test_motorcycle_agrees_with_its_disparity() -> None:
    data = Motorcycle()
    sample = data.read(0)
    errors = disparity_errors(sample.points0.numpy(), sample.points1.numpy(), example_pair().disparity)
    assert errors.max() < 1e-3
    known = (example_pair().disparity > 0).sum()
    assert 0.75 * known < len(sample) < known  # some are hidden in the right view, or beyond it
    assert len(data) == 1
    assert [file.path for file in data.files()] == list(data.image_paths(0))
    with pytest.raises(IndexError):
        data.read(1)


def test_changes() -> None:
    assert [change.value for change in CHANGES] == [*ROTATIONS, *SCALES]
    assert (str(Change("rotation", 15.0)), str(Change("scale", 1.25))) == ("15°", "1.25×")
    assert {0.0, 45.0, 180.0} <= {change.value for change in CHANGES if change.kind == "rotation"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> SelfPairs:
    return SelfPairs(write_photos(tmp_path_factory.mktemp("photos"), [(300, 500), (500, 300)], grain=20))


@pytest.mark.parametrize("change", [Change("rotation", 0.0), Change("rotation", 90.0), Change("scale", 2.0)])
def test_pairs_by_hand(pairs: SelfPairs, change: Change) -> None:
    index = CHANGES.index(change) + len(CHANGES)
    sample = pairs.read(index)
    assert sample.image0.shape == sample.image1.shape == (3, 480, 640)
    assert pairs.pair_name(index) == f"01/{change.kind} {change}"
    # A point 100 px right of the centre: turned clockwise it lies below, enlarged twice as far.
    row = (sample.points0 == torch.tensor([419.5 + 0.5, 239.5 + 0.5])).all(dim=1).nonzero()[0, 0]
    wanted = {"0°": (420.0, 240.0), "90°": (319.0, 340.0), "2×": (520.5, 240.5)}[str(change)]
    assert sample.points1[row].tolist() == pytest.approx(wanted, abs=1e-3)
    some = torch.arange(0, len(sample), 997)
    shown0 = sample_image(sample.image0[None], sample.points0[some][None, None], "border")
    shown1 = sample_image(sample.image1[None], sample.points1[some][None, None], "border")
    assert (shown0 - shown1).abs().mean() < 0.01


def test_self_pairs_count(pairs: SelfPairs) -> None:
    assert len(pairs) == 2 * len(CHANGES)
    assert len({pairs.pair_name(index) for index in range(len(pairs))}) == len(pairs)
    with pytest.raises(IndexError):
        pairs.change(len(pairs))
    for file in pairs.files():
        file.check()


def test_self_images_exist() -> None:
    images = find_self_images()
    assert images[0] == example_pair().image0_path
    assert all(path.is_file() for path in images)


def test_without_scikit_image_the_shipped_one_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_self_images() == [example_pair().image0_path]


def test_images_keep_their_shape(tmp_path: Path) -> None:
    """A wide image loses its sides, not its proportions: a square stays one."""
    image = make_photo(120, 400) * 0
    image[:, 50:70, 190:210] = 1
    write_image(tmp_path / "wide.png", (image * 255).byte().permute(1, 2, 0).contiguous().numpy())
    shown = SelfPairs([tmp_path / "wide.png"]).read(0).image0[0]
    rows, columns = (shown > 0.5).nonzero(as_tuple=True)
    height, width = int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1
    assert math.isclose(height, width, abs_tol=1.5)
    assert height == pytest.approx(80, abs=2)
