"""Photographs of several folders and data sets: mixed by weight, held out, blamed where they are wrong."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.bird_cases import write_birds
from support.data_cases import MemoryData
from support.numbered_data import NumberedData
from support.photo_cases import write_photos
from ucn.config import SourceConfig, TrainConfig
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.errors import ConfigError, DataError
from ucn.train.sources import batches as sources
from ucn.train.sources import photographs
from ucn.train.sources.batches import DataSource, Mixture, PartSource, open_sources
from ucn.train.sources.photographs import PhotoSource, read_photographs, split_images
from ucn.types import PairBatch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_canvases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "_CANVAS_SIDE", 96)


def make_config(*entries: SourceConfig, **changes: object) -> TrainConfig:
    base = {"name": "tiny", "steps": 1, "batch": 2, "synthetic": {"side": 64, "points": 20}}
    return TrainConfig.from_dict(base | {"sources": entries} | changes)


def write_folder(folder: Path, prefix: str, count: int, *bad: int) -> SourceConfig:
    """A source of photographs PREFIX0.png, PREFIX1.png, …, some of which are cut off."""
    for index, path in enumerate(write_photos(folder, [(70, 80)] * count, bad=bad)):
        path.rename(folder / f"{prefix}{index}.png")
    return SourceConfig("synthetic", str(folder))


def draw(mixture: Mixture, step: int) -> PairBatch:
    return mixture.sample_batch(step, torch.Generator().manual_seed(step))


def draw_batch(source: PhotoSource) -> PairBatch:
    return source.sample_batch(0, torch.Generator().manual_seed(0))


def draw_names(mixture: Mixture, steps: int) -> list[str]:
    return [name for step in range(1, steps + 1) for name in draw(mixture, step).names]


def open_one(config: TrainConfig, use_skipping: bool = False) -> tuple[PhotoSource, Mixture]:
    with open_sources(config, None, CPU, use_skipping=use_skipping) as mixture:
        (source,) = mixture.sources
    assert isinstance(source, PhotoSource)
    return source, mixture


def test_entries_are_mixed_within_batches_by_their_weights(tmp_path: Path) -> None:
    few = replace(write_folder(tmp_path / "few", "f", 3), weight=3.0)
    many = replace(write_folder(tmp_path / "many", "m", 12), weight=1.0)
    source, mixture = open_one(make_config(few, many, batch=20))
    assert (source.label, source.weight) == ("synthetic + synthetic-2", 4.0)
    assert source.held_out.names == ["f0.png", "m0.png"]
    batches = [draw(mixture, step).names for step in range(1, 31)]
    assert all({name[0] for name in names} == {"f", "m"} for names in batches)
    counts = Counter(name for names in batches for name in names)
    assert sum(counts[f"f{index}.png"] for index in (1, 2)) / 600 == pytest.approx(0.75, abs=0.06)
    assert set(counts) == {"f1.png", "f2.png"} | {f"m{index}.png" for index in range(1, 12)}
    # Validation mixes by weight, too.
    held_out = Counter(name for batch in source.validation_batches() for name in batch.names)
    assert set(held_out) == {"f0.png", "m0.png"} and held_out["f0.png"] > held_out["m0.png"]


def test_unreadable_photographs_do_not_cost_an_entry_its_share(tmp_path: Path) -> None:
    bad = write_folder(tmp_path / "bad", "b", 9, 1, 2, 3, 4, 5, 6, 7)
    good = write_folder(tmp_path / "good", "g", 9)
    source, mixture = open_one(make_config(bad, good, batch=50), use_skipping=True)
    assert source.training.names == ["b8.png", *(f"g{index}.png" for index in range(1, 9))]
    names = draw_names(mixture, 8)
    assert sum(name == "b8.png" for name in names) / 400 == pytest.approx(0.5, abs=0.08)


def test_validation_shows_photographs_as_they_are(tmp_path: Path) -> None:
    # What makes training photographs many would make figures harder to compare, and says nothing about use.
    entry = write_folder(tmp_path / "photos", "p", 5)
    mixed = {"side": 64, "points": 20, "blend_share": 1.0, "collage_share": 1.0, "border": "other"}
    source, _ = open_one(make_config(entry, synthetic=mixed))
    plain, _ = open_one(make_config(entry, synthetic=mixed | {"blend_share": 0.0, "collage_share": 0.0}))
    found, expected = list(source.validation_batches()), list(plain.validation_batches())
    assert len(found) == len(expected) == 32
    assert torch.equal(found[0].image0, expected[0].image0) and found[-1].names == expected[-1].names
    assert not torch.equal(draw_batch(source).image0, draw_batch(plain).image0)


def test_a_lone_entry_is_drawn_as_it_always_was(tmp_path: Path) -> None:
    config = make_config(write_folder(tmp_path / "photos", "p", 5))
    source, mixture = open_one(config)
    paths = [tmp_path / "photos" / f"p{index}.png" for index in range(1, 5)]
    expected = make_pairs(ImageBank(paths, 96, "cpu"), 2, config.synthetic, torch.Generator().manual_seed(7))
    found = draw(mixture, 7)
    assert found.names == expected.names and torch.equal(found.image1, expected.image1)
    assert source.warning == ""


def test_entries_of_other_batches_and_losses_stay_apart(tmp_path: Path) -> None:
    folders = [write_folder(tmp_path / name, name, 3) for name in "abcde"]
    loss = {"radius": 9.0}
    entries = [
        folders[0],
        replace(folders[1], batch=3),
        SourceConfig.from_dict(folders[2].to_dict() | {"loss": loss}),
        replace(folders[3], batch=2),  # what the run has as well
        SourceConfig.from_dict(folders[4].to_dict() | {"loss": loss}),
    ]
    with open_sources(make_config(*entries), None, CPU) as mixture:
        labels = [source.label for source in mixture.sources]
        losses = [source.loss for source in mixture.sources]
        sizes = [len(source.sample_batch(0, torch.Generator()).names) for source in mixture.sources]
    # Each group stands where its first entry does.
    assert labels == ["synthetic + synthetic-4", "synthetic-2", "synthetic-3 + synthetic-5"]
    assert sizes == [2, 3, 2]
    assert losses[:2] == [None, None] and losses[2] is not None and losses[2].radius == 9
    # A loss that says what the run's says is no other loss.
    same = SourceConfig.from_dict(folders[2].to_dict() | {"loss": make_config().loss})
    assert open_one(make_config(folders[0], same))[0].label == "synthetic + synthetic-2"


def test_a_problem_is_blamed_on_its_entry(tmp_path: Path) -> None:
    good = write_folder(tmp_path / "good", "g", 4)
    bad = write_folder(tmp_path / "bad", "b", 5, 0, 3)
    with pytest.raises(
        DataError,
        match=r"^synthetic-2 in \S*/bad has 2 problems: \S*b3\.png: .*b0\.png: .*use_skipping",
    ):
        open_sources(make_config(good, bad), None, CPU)
    seen: list[tuple[str, int, int]] = []
    with open_sources(
        make_config(good, bad), None, CPU, use_skipping=True, watch=lambda *now: seen.append(now)
    ) as mixture:
        (skipped,) = mixture.skipped
    assert (skipped.label, skipped.pairs) == ("synthetic-2", 2)
    assert sorted(problem.path.name for problem in skipped.problems) == ["b0.png", "b3.png"]
    assert seen == [
        *(("synthetic", done, 4) for done in range(1, 5)),
        *(("synthetic-2", done, 5) for done in range(1, 6)),
    ]


def test_the_same_file_in_two_entries_is_a_problem_of_each_once(tmp_path: Path) -> None:
    entry = write_folder(tmp_path / "photos", "p", 4, 2)
    source, mixture = open_one(make_config(entry, entry), use_skipping=True)
    assert [(skipped.label, skipped.pairs) for skipped in mixture.skipped] == [
        ("synthetic", 1),
        ("synthetic-2", 1),
    ]
    assert len(source.training) == 4


def test_an_entry_without_a_readable_photograph_is_refused(tmp_path: Path) -> None:
    good = write_folder(tmp_path / "good", "g", 4)
    bad = write_folder(tmp_path / "bad", "b", 2, 0, 1)
    with pytest.raises(DataError, match=r"^synthetic-2 in \S*/bad has 2 problems: .*no photograph is left$"):
        open_sources(make_config(good, bad), None, CPU, use_skipping=True)


def test_a_warning_names_the_entries_that_validate_on_what_they_train_on(tmp_path: Path) -> None:
    lone = write_folder(tmp_path / "lone", "l", 1)
    several = write_folder(tmp_path / "several", "s", 4)
    source, mixture = open_one(make_config(several, lone))
    (warning,) = mixture.warnings
    assert warning.startswith("synthetic-2: validation uses the training photographs")
    assert source.held_out.names == ["s0.png", "l0.png"] and "l0.png" in source.training.names
    # Without a part of its own that can be read, an entry's other part serves for both.
    half = write_folder(tmp_path / "half", "h", 3, 0)
    source, mixture = open_one(make_config(several, half), use_skipping=True)
    assert source.held_out.names == ["s0.png", "h1.png", "h2.png"]
    assert mixture.warnings[0].startswith("synthetic-2: ") and len(mixture.skipped[0].problems) == 1
    # One bank for both where nobody has others.
    source, _ = open_one(make_config(lone, lone))
    assert source.training is source.held_out and source.warning.startswith("synthetic + synthetic-2: ")


def test_photographs_are_read_once(tmp_path: Path) -> None:
    entry = write_folder(tmp_path / "lone", "l", 1)
    path = tmp_path / "lone" / "l0.png"
    seen: list[tuple[int, int]] = []
    found = read_photographs("synthetic", entry, ([path], [path]), lambda *now: seen.append(now))
    assert seen == [(1, 1)] and found.training is found.held_out and found.problems == ()


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    return write_birds(tmp_path / "birds", size_hw=(70, 80))


def warp_birds(birds: Path, **changes: object) -> SourceConfig:
    return SourceConfig.from_dict({"name": "cub", "folder": str(birds), "use_warps": True} | changes)


def test_warps_of_a_data_set_are_made_of_its_images(birds: Path) -> None:
    source, mixture = open_one(make_config(warp_birds(birds), validation_share=0.2))
    assert source.label == "cub" and source.warning == ""
    # Of each kind's six images the last two are held out; files of two kinds have the same names.
    assert source.training.names == [f"{index}.png" for index in range(4)] * 2
    assert source.held_out.names == ["4.png", "5.png"] * 2
    batch = draw(mixture, 1)
    assert "--" not in "".join(batch.names)  # not a pair of two images, as the set itself has
    expected = make_pairs(source.training, 2, make_config().synthetic, torch.Generator().manual_seed(1))
    assert torch.equal(batch.image0, expected.image0) and torch.equal(batch.points1, expected.points1)


def test_warps_and_parts_of_a_set_hold_out_the_same_images(birds: Path) -> None:
    parts = {
        "name": "cub",
        "folder": str(birds),
        "on_device": True,
        "fit": "resize",
        "points": 3,
        "workers": 0,
    }
    config = make_config(
        warp_birds(birds), SourceConfig.from_dict(parts | {"crop_hw": [64, 64]}), validation_share=0.2
    )
    training, held_out = split_images("cub", open_data("cub", birds), 0.2)
    assert training == sorted(training) and not {*training} & {*held_out}
    with open_sources(config, None, CPU) as mixture:
        warps, pairs = mixture.sources
        assert isinstance(warps, PhotoSource) and isinstance(pairs, PartSource)
        trained = {
            path
            for step in range(20)
            for name in pairs.sample_batch(step, torch.Generator().manual_seed(step)).names
            for path in name.split("--")
        }
        validated = {name for batch in pairs.validation_batches() for name in batch.names}
    assert trained == {path.name for path in training}
    assert {part.split("/")[-1] for name in validated for part in name.split("--")} <= {
        path.stem for path in held_out
    } | {path.name for path in held_out}


def test_warps_mix_with_folders_of_photographs(birds: Path, tmp_path: Path) -> None:
    folder = replace(write_folder(tmp_path / "photos", "p", 3), weight=0.7)
    source, mixture = open_one(make_config(folder, warp_birds(birds, weight=0.3), batch=40))
    assert source.label == "synthetic + cub" and source.weight == pytest.approx(1.0)
    names = draw_names(mixture, 10)
    assert sum(name[0] == "p" for name in names) / 400 == pytest.approx(0.7, abs=0.08)


def test_a_bad_image_of_a_warped_set_is_found_by_the_check_of_the_set(birds: Path) -> None:
    (image, *_) = sorted(birds.rglob("*.png"))
    image.write_bytes(image.read_bytes()[:100])
    with pytest.raises(DataError, match=rf"^cub in \S*birds has 1 problems: \S*{image.name}: "):
        open_sources(make_config(warp_birds(birds)), None, CPU)
    source, mixture = open_one(make_config(warp_birds(birds)), use_skipping=True)
    (skipped,) = mixture.skipped
    assert skipped.label == "cub" and [problem.path for problem in skipped.problems] == [image]
    assert len(source.training) + len(source.held_out) == 11


def test_a_file_that_goes_bad_after_the_check_is_blamed_on_the_set(
    birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (image, *_) = sorted(birds.rglob("*.png"))

    def check_and_spoil(*arguments: object) -> object:
        report = check_data(*arguments)  # type: ignore[arg-type]
        image.write_bytes(b"")
        return report

    monkeypatch.setattr(sources, "check_data", check_and_spoil)
    with pytest.raises(DataError, match=r"^cub in \S*birds has 1 problems: "):
        open_sources(make_config(warp_birds(birds)), None, CPU)


def test_images_that_are_not_files_cannot_be_warped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "open_data", lambda *_: NumberedData(5))
    entry = SourceConfig("video", "clips", use_warps=True)
    with pytest.raises(DataError, match=r"^video has images that are not separate files \(numbered"):
        open_sources(make_config(entry), None, CPU)


def test_images_of_a_set_are_listed_once_and_split_as_its_pairs(tmp_path: Path) -> None:
    data = MemoryData(9)
    data.root = tmp_path
    for index in range(10):
        (tmp_path / f"{index}.png").touch()
    training, held_out = split_images("own", data, 0.3)
    assert [path.name for path in training] == [f"{index}.png" for index in range(7)]
    assert [path.name for path in held_out] == ["7.png", "8.png", "9.png"]
    # Two images of one pair cannot be told apart: they serve for both.
    lone = MemoryData(1)
    lone.root = tmp_path
    parts = split_images("own", lone, 0.3)
    assert parts[0] == parts[1] == [tmp_path / "0.png", tmp_path / "1.png"]


def test_a_set_that_is_not_warped_stays_a_set(birds: Path) -> None:
    entry = SourceConfig("cub", str(birds), crop_hw=(64, 64), workers=0)
    with open_sources(make_config(warp_birds(birds), entry), None, CPU) as mixture:
        assert [type(source) for source in mixture.sources] == [PhotoSource, DataSource]
        assert [source.label for source in mixture.sources] == ["cub", "cub-2"]


def test_warps_are_not_made_on_the_device_of_parts() -> None:
    with pytest.raises(ConfigError, match=r"^use_warps must be false where on_device is true, got True$"):
        SourceConfig("cub", use_warps=True, on_device=True)
