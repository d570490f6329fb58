"""NN transfer on a set of four birds: the alike training image, its box, the box of the test image."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from support.evaluation_cases import ColourExtractor, make_method
from support.semantic_files import write_text
from ucn.data.catalogue import open_data
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import (
    ORIGINAL_SIZE,
    BenchmarkPair,
    Preparation,
    PreparedPair,
    group_pairs,
)
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.predictions import FinderMethod, predict_points
from ucn.evaluate.points.transfer import PartTransfer, add_training_images, whole_box
from ucn.features.method import LoadedMethods
from ucn.paper.transfer import UnboundTransfer

RED, GREEN = (220, 30, 30), (30, 220, 30)
# Name, split, colour of the bird, and its box x, y, width, height; the rest of each image is grey.
BIRDS = (
    ("red", "1", RED, (10, 20, 40, 40)),
    ("green", "1", GREEN, (0, 0, 80, 60)),
    ("query", "0", GREEN, (0, 0, 40, 40)),
    ("asked", "0", RED, (20, 10, 60, 30)),
)
# Back and beak; the red training bird does not show its beak.
LOCATIONS = (
    *("1 1 19.5 39.5 1", "1 2 0 0 0"),
    *("2 1 39.5 29.5 1", "2 2 19.5 14.5 1"),
    *("3 1 5 6 1", "3 2 7 8 1"),
    *("4 1 33 21 1", "4 2 44 22 1"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "CUB_200_2011"
    for name, _, colour, (x, y, width, height) in BIRDS:
        pixels = np.full((64, 96, 3), 128, np.uint8)
        pixels[y : y + height, x : x + width] = colour
        path = root / "images" / "001.Bird" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(pixels).save(path)
    numbered = list(enumerate(BIRDS, start=1))
    write_text(root / "images.txt", *(f"{i} 001.Bird/{bird[0]}.png" for i, bird in numbered))
    write_text(root / "image_class_labels.txt", *(f"{i} 1" for i, _ in numbered))
    write_text(root / "train_test_split.txt", *(f"{i} {bird[1]}" for i, bird in numbered))
    write_text(root / "bounding_boxes.txt", *(f"{i} {' '.join(map(str, bird[3]))}" for i, bird in numbered))
    write_text(root / "parts" / "parts.txt", "1 back", "2 beak")
    write_text(root / "parts" / "part_locs.txt", *LOCATIONS)
    return root


def open_entries(folder: Path) -> list[BenchmarkPair]:
    return group_pairs(open_data("cub", folder, "test"), lambda _: "birds", lambda _: "bird")


def bind(folder: Path, cache: Path, extractor: ColourExtractor | None = None) -> PartTransfer:
    method = replace(make_method("nn-transfer", extractor or ColourExtractor()), matcher=UnboundTransfer())
    loaded = add_training_images(LoadedMethods([method]), "cub", open_entries(folder), cache)
    assert not loaded.skipped
    assert loaded.methods[0].key["synthetic"] == "nn-transfer"
    assert len(loaded.methods[0].key["training"]) == 64
    (bound,) = loaded.methods
    assert isinstance(bound, FinderMethod)
    assert isinstance(bound.finder, PartTransfer)
    assert not bound.is_nearest
    return bound.finder


def show(pair: BenchmarkPair, preparation: Preparation = ORIGINAL_SIZE) -> PreparedPair:
    return preparation.apply(pair.data.read(pair.index))


def test_parts_come_from_the_alike_bird_into_the_box(folder: Path, tmp_path: Path) -> None:
    (pair,) = open_entries(folder)
    found = bind(folder, tmp_path / "cache").find(pair, show(pair))
    # The asked bird is red. The red one's back lies at a quarter and a half of its box; its beak is hidden,
    # so that of the green one is taken, at a quarter of its box both ways. The asked box begins at (20, 10).
    back, beak = [19.5 + 60 / 4, 9.5 + 30 / 2], [19.5 + 60 / 4, 9.5 + 30 / 4]
    assert torch.allclose(found, torch.tensor([back, beak]), atol=1e-4)


def test_answers_are_in_pixels_as_shown(folder: Path, tmp_path: Path) -> None:
    (pair,) = open_entries(folder)
    transfer = bind(folder, tmp_path / "cache")
    plain = transfer.find(pair, show(pair))
    half = transfer.find(pair, show(pair, Preparation(max_side=48)))
    assert torch.allclose(half, (plain + 0.5) / 2 - 0.5)
    # On a canvas of 100 × 100 the image of 96 × 64 is enlarged and lies 16 or 17 pixels from the top.
    prepared = show(pair, Preparation(canvas_hw=(100, 100)))
    left, top, right, bottom = prepared.content1
    scale = torch.tensor([(right - left) / 96, (bottom - top) / 64])
    on_canvas = transfer.find(pair, prepared)
    assert torch.allclose(on_canvas, (plain + 0.5) * scale - 0.5 + torch.tensor([left, top]), atol=1e-4)


def test_training_images_are_described_once(folder: Path, tmp_path: Path) -> None:
    first, second = ColourExtractor(), ColourExtractor()
    bind(folder, tmp_path / "cache", first)
    bind(folder, tmp_path / "cache", second)
    assert (first.calls, second.calls) == (2, 0)
    seen: list[tuple[int, int]] = []
    method = replace(make_method("nn-transfer", second), matcher=UnboundTransfer())
    pairs, cache = open_entries(folder), tmp_path / "cache"
    add_training_images(LoadedMethods([method]), "cub", pairs, cache, lambda *counts: seen.append(counts))
    assert seen == [(2, 2)]
    write_text(folder / "parts" / "part_locs.txt", "1 1 20.5 39.5 1", *LOCATIONS[1:])
    bind(folder, tmp_path / "cache", second)
    assert second.calls == 2


def test_predictions_of_a_transfer(folder: Path, tmp_path: Path) -> None:
    method = replace(make_method("nn-transfer"), matcher=UnboundTransfer())
    pairs = open_entries(folder)
    (bound,) = add_training_images(LoadedMethods([method]), "cub", pairs, tmp_path).methods
    benchmark = find_benchmark("cub")
    found = predict_points(benchmark, pairs, [0], [bound], tmp_path)
    refined, on_cells = found.pairs[0].predicted
    assert np.array_equal(refined, on_cells)
    assert refined.shape == (2, 2)
    assert found.pairs[0].seconds[0][1] == 1  # one image was described


def test_benchmarks_without_training_images_or_names(folder: Path, tmp_path: Path) -> None:
    method = replace(make_method("nn-transfer"), matcher=UnboundTransfer())
    other = make_method("colour")
    pairs = open_entries(folder)
    willow = add_training_images(LoadedMethods([method, other]), "pf-willow", pairs, tmp_path)
    assert [kept.name for kept in willow.methods] == ["colour"]
    assert willow.skipped == {"nn-transfer": "pf-willow has no training images to copy parts from"}
    own = add_training_images(LoadedMethods([method]), "own", pairs, tmp_path)
    assert own.skipped == {"nn-transfer": "own has no training images to copy parts from"}
    assert (
        "no named parts"
        in add_training_images(LoadedMethods([method]), "mini", pairs, tmp_path).skipped["nn-transfer"]
    )
    assert add_training_images(LoadedMethods([other]), "mini", [], tmp_path).methods == [other]
    (pair,) = pairs
    nameless = show(pair)
    with pytest.raises(DataError, match="not named parts"):
        bind(folder, tmp_path).find(pair, replace(nameless, sample=replace(nameless.sample, parts=None)))


def test_the_box_of_a_whole_image() -> None:
    assert whole_box((30, 40)) == (0, 0, 39, 29)
