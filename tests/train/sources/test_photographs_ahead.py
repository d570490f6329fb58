"""Pairs of photographs for several steps, made at once: the same ones however they are drawn."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.photo_cases import write_photos
from support.train_cases import CPU, make_config
from ucn.config import TrainConfig
from ucn.data.io import write_image
from ucn.data.loading import derive_seed
from ucn.data.synthetic import make_pairs
from ucn.train.distributed import ProcessGroup, open_shared_sources
from ucn.train.sources import photographs
from ucn.train.sources.batches import Mixture, open_sources
from ucn.train.sources.photographs import PhotoSource, _count_ahead
from ucn.types import LazyNames, PairBatch

CUDA = torch.device("cuda", 0)
FIELDS = ("image0", "image1", "points0", "points1", "is_valid")
MIXED = {"affine_share": 0.25, "spline_share": 0.25, "parallax_share": 0.25}
VARIED = {"blend_share": 0.5, "collage_share": 0.5, "border": "other", "illumination": 0.5, "recolour": 0.5}


@pytest.fixture(autouse=True)
def small_canvases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "_CANVAS_SIDE", 96)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes as many batches at once on the CPU as a GPU would."""
    monkeypatch.setattr(photographs, "_count_ahead", lambda _, batch: _count_ahead(CUDA, batch))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", [(70, 80)] * 9)
    return tmp_path / "photos"


def make_run(
    photos: Path, batch: int, synthetic: dict[str, object] | None = None, **changes: object
) -> TrainConfig:
    base = {"side": 64, "points": 20} | (synthetic or {})
    entry = {"name": "synthetic", "folder": str(photos)}
    return make_config(**{"batch": batch, "synthetic": base, "sources": [entry]} | changes)


def join(rank: int) -> ProcessGroup:
    """One of two processes that are not there."""
    group = ProcessGroup()
    group.rank, group.size = rank, 2
    return group


def open_one(config: TrainConfig) -> PhotoSource:
    with open_sources(config, None, CPU) as mixture:
        (source,) = mixture.sources
    assert isinstance(source, PhotoSource)
    return source


def draw(source: PhotoSource, number: int, seed: int = 0) -> PairBatch:
    return source.sample_batch(number, torch.Generator().manual_seed(seed))


def is_equal(first: PairBatch, second: PairBatch) -> bool:
    pairs = [(getattr(first, field), getattr(second, field)) for field in FIELDS]
    # Rows of points that are not valid may hold NaN.
    return first.names == second.names and all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


@pytest.mark.parametrize(
    ("batch", "ahead"), [(1, 32), (2, 16), (8, 4), (10, 3), (16, 2), (17, 1), (32, 1), (33, 1), (64, 1)]
)
def test_how_many_batches_are_made_at_once(batch: int, ahead: int) -> None:
    assert _count_ahead(CUDA, batch) == _count_ahead(torch.device("cuda"), batch) == ahead
    assert _count_ahead(CPU, batch) == _count_ahead(torch.device("mps"), batch) == 1


@pytest.mark.parametrize("synthetic", [{}, MIXED, VARIED, {"photometric": 0.0}], ids=str)
def test_batches_are_parts_of_what_is_made_at_once(
    synthetic: dict[str, object], photos: Path, as_on_a_gpu: None
) -> None:
    config = make_run(photos, 16, synthetic)
    source = open_one(config)
    for group in (0, 3):
        seed = derive_seed(config.seed, "photographs", "synthetic", group)
        whole = make_pairs(source.training, 32, config.synthetic, torch.Generator().manual_seed(seed))
        for place in (0, 1):
            # The generator of the step has no say.
            batch = draw(source, 2 * group + place, seed=place)
            rows = slice(16 * place, 16 * place + 16)
            tensors = {field: getattr(whole, field)[rows] for field in FIELDS}
            assert is_equal(batch, PairBatch(**tensors, names=whole.names[rows]))
            assert all(getattr(batch, field).is_contiguous() for field in FIELDS)
            assert batch.image0.shape == (16, 3, 64, 64) and batch.points1.shape == (16, 20, 2)
    first, second = draw(source, 0), draw(source, 1)
    assert all((one != other).any() for one in first.image0 for other in second.image0)


@pytest.mark.slow
@pytest.mark.parametrize("synthetic", [{}, MIXED | VARIED], ids=str)
def test_order_does_not_matter(synthetic: dict[str, object], photos: Path, as_on_a_gpu: None) -> None:
    config = make_run(photos, 8, synthetic)
    source = open_one(config)
    unbroken = [draw(source, number) for number in range(10)]
    again = open_one(config)  # as a run that goes on
    for number in (5, 6, 7, 8, 2, 1, 9, 0, 9, 3, 4):
        assert is_equal(draw(again, number), unbroken[number])
    assert all((unbroken[number].image0 != unbroken[0].image0).any() for number in range(1, 10))


def test_what_is_made_at_once_is_made_once_and_not_kept(
    photos: Path, as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def count(bank: object, batch: int, *rest: object) -> PairBatch:
        assert source._made == []
        made.append(batch)
        return make_pairs(bank, batch, *rest)  # type: ignore[arg-type]

    source = open_one(make_run(photos, 8))
    monkeypatch.setattr(photographs, "make_pairs", count)
    for number in range(9):
        draw(source, number)
    assert made == [32, 32, 32] and len(source._made) == 4


def test_names_fit_the_images_and_wait_until_they_are_requested(tmp_path: Path, as_on_a_gpu: None) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    greys = {f"{index}.png": 30 * index for index in range(8)}
    for name, grey in greys.items():
        write_image(folder / name, torch.full((70, 80, 3), grey, dtype=torch.uint8).numpy())
    source = open_one(make_run(folder, 8, {"photometric": 0.0}))
    for number in range(4):
        batch = draw(source, number)
        assert isinstance(batch.names, LazyNames) and len(batch.names) == 8
        found = (batch.image0.mean(dim=(1, 2, 3)) * 255).round().int().tolist()
        assert [greys[name] for name in batch.names] == found


def test_kinds_of_pairs_are_spread_over_the_batches(photos: Path, as_on_a_gpu: None) -> None:
    source = open_one(make_run(photos, 16, {"parallax_share": 0.5, "parallax_planes": 4}))
    counts = [
        [sum(" + " in name for name in draw(source, 2 * group + place).names) for place in (0, 1)]
        for group in range(4)
    ]
    # As many scenes as were asked for in both together; one with nothing in front may pass for a plane.
    assert all(sum(both) <= 16 for both in counts)
    assert all(min(both) > 0 for both in counts)


def test_sources_seeds_and_processes_draw_other_pairs(photos: Path, as_on_a_gpu: None) -> None:
    entry = {"name": "synthetic", "folder": str(photos)}
    config = make_run(photos, 8, sources=[entry, entry | {"loss": {"radius": 3.0}}])
    mixtures: list[Mixture] = [
        open_sources(config, None, CPU),
        open_sources(replace(config, seed=config.seed + 1), None, CPU),
        open_shared_sources(replace(config, batch=16), None, CPU, join(1)),
    ]
    first = open_shared_sources(replace(config, batch=16), None, CPU, join(0))
    batches = [
        source.sample_batch(0, torch.Generator()) for mixture in mixtures for source in mixture.sources
    ]
    assert len(batches) == 6
    for index, batch in enumerate(batches):
        assert all((batch.image0 != other.image0).any() for other in batches[:index])
    # The first process of several draws from the seed of the run.
    assert is_equal(first.sources[0].sample_batch(0, torch.Generator()), batches[0])


@pytest.mark.parametrize("batch", [4, 33])
def test_one_batch_at_a_time_comes_from_the_generator_of_the_step(
    batch: int, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if batch > 32:  # one at a time on a GPU, too
        monkeypatch.setattr(photographs, "_count_ahead", lambda _, count: _count_ahead(CUDA, count))
    config = make_run(photos, batch)
    source = open_one(config)
    for number, seed in ((0, 5), (7, 5), (7, 6)):
        expected = make_pairs(source.training, batch, config.synthetic, torch.Generator().manual_seed(seed))
        assert is_equal(draw(source, number, seed), expected)


def test_validation_does_not_change(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_run(photos, 16)
    expected = list(open_one(config).validation_batches())
    monkeypatch.setattr(photographs, "_count_ahead", lambda *_: 2)
    found = list(open_one(config).validation_batches())
    assert len(found) == len(expected) == 4
    assert all(is_equal(one, other) for one, other in zip(found, expected, strict=True))
