"""Pairs of images with masks, measures by hand and against slow references, and whole runs."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from support.evaluation_cases import SHIFT_XY, SIZE_HW, make_method, write_ramp
from support.semantic_files import write_flat_image, write_text
from ucn.config import Calibration, ModelConfig
from ucn.data.io import read_image
from ucn.errors import DataError, ImageReadError, UcnError
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.core.report import write_report
from ucn.evaluate.core.update import read_page, update_report
from ucn.evaluate.objects import predictions
from ucn.evaluate.objects.pairs import ObjectImage, ObjectPair, choose_rows, list_pairs, read_view
from ucn.evaluate.objects.predictions import predict_objects
from ucn.evaluate.objects.report import run_objects
from ucn.evaluate.objects.scoring import (
    MEAN,
    intersection_over_union,
    is_in_box,
    read_mask_at,
    score_objects,
    score_pair,
)
from ucn.features.method import DenseMethod, LoadedMethods
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.paper.transfer import UnboundTransfer
from ucn.weights import LoadedWeights, WeightsInfo

HEADS = "file,kind,head_x0,head_y0,head_x1,head_y1"


def write_object(path: Path, shift_xy: tuple[int, int] = (0, 0), size_hw: tuple[int, int] = SIZE_HW) -> None:
    """A moved ramp as an image beside which a mask may lie."""
    png = write_ramp(path.with_suffix(".png"), shift_xy, size_hw)
    PIL.Image.open(png).save(path)
    png.unlink()


def write_mask(path: Path, box: tuple[int, int, int, int], size_hw: tuple[int, int] = SIZE_HW) -> None:
    """A mask of a rectangle left, top, right, bottom, ends excluded."""
    left, top, right, bottom = box
    mask = np.zeros(size_hw, np.uint8)
    mask[top:bottom, left:right] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(mask).save(path)


def write_class(root: Path, name: str, count: int = 3) -> None:
    """Flat images of a class, each with a mask."""
    for number in range(count):
        write_flat_image(root / name / f"{number}.bmp", 48, 40, grey=40 + 9 * number)
        write_mask(root / name / f"{number}.png", (8, 8, 20, 20), (40, 48))


@pytest.fixture
def ramps(tmp_path: Path) -> Path:
    """Two images; b is a moved by (8, 4), has the left half of the object, and the left half of its head."""
    root = tmp_path / "ramps"
    write_object(root / "ramp" / "a.bmp")
    write_mask(root / "ramp" / "a.png", (16, 12, 32, 28))
    write_object(root / "ramp" / "b.bmp", SHIFT_XY)
    write_mask(root / "ramp" / "b.png", (24, 16, 32, 32))
    heads = "ramp/a.bmp,x,15.5,11.5,23.5,27.5", "ramp/b.bmp,x,23.5,15.5,27.5,31.5"
    write_text(root / "heads.csv", HEADS, *heads)
    return root


def test_measures_by_hand(ramps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POINTS", "HEAD_POINTS"):
        monkeypatch.setattr(predictions, name, 1000)  # every pixel
    method = make_method()
    pairs = list_pairs(ramps, [], 40, seed=0)
    assert sorted(pair.name for pair in pairs) == ["ramps/ramp/a--b", "ramps/ramp/b--a"]
    truths, found = predict_objects(pairs, range(len(pairs)), [method], tmp_path / "cache", max_side=256)
    results = {
        pair.image0.path.stem: score_pair(truth, own)
        for pair, truth, own in zip(pairs, truths, found["colour"], strict=True)
    }
    # Half of a, 128 of its 256 pixels, lies on b, and half of its head; b is carried onto half of a.
    assert results == {"a": (0.5, 0.5, 0.5), "b": (1.0, 1.0, 0.5)}
    scores = score_objects("colour", pairs, [results[pair.image0.path.stem] for pair in pairs], seed=0)
    assert [(score.category, score.points, score.heads, score.head, score.iou) for score in scores] == [
        ("ramp", 0.75, 2, 0.75, 0.5),
        (MEAN, 0.75, 2, 0.75, 0.5),
    ]
    assert (scores[0].points_low, scores[0].points_high, scores[0].iou_low) == (0.5, 1.0, 0.5)


def test_masks_and_boxes_against_slow_references() -> None:
    random = np.random.default_rng(0)
    mask, other = random.random((2, 5, 7)) < 0.5
    points = np.concatenate([random.uniform(-2, 9, (60, 2)), [(np.nan, 1.0), (-0.5, 0.0), (6.5, 4.0)]])
    for (x, y), is_on in zip(points, read_mask_at(mask, points), strict=True):
        pixels = [(r, c) for r in range(5) for c in range(7) if -0.5 <= x - c < 0.5 and -0.5 <= y - r < 0.5]
        assert is_on == any(mask[pixel] for pixel in pixels)
    for (x, y), is_inside in zip(points, is_in_box(points, (1, 2, 5, 4.5)), strict=True):
        assert is_inside == (1 <= x <= 5 and 2 <= y <= 4.5)
    sets = [{(r, c) for r in range(5) for c in range(7) if each[r, c]} for each in (mask, other)]
    expected = len(sets[0] & sets[1]) / len(sets[0] | sets[1])
    assert intersection_over_union(mask, other) == pytest.approx(expected)
    assert intersection_over_union(mask & False, mask & False) == 0


def test_a_network_matches_as_the_matcher_does(ramps: Path, tmp_path: Path) -> None:
    write_object(ramps / "ramp" / "b.bmp", (-8, 12), (40, 56))  # another size, so that no view can be swapped
    write_mask(ramps / "ramp" / "b.png", (4, 20, 40, 36), (40, 56))
    matcher = make_network()
    pairs = list_pairs(ramps, [], 1, seed=0)
    truths, found = predict_objects(
        pairs, range(len(pairs)), [make_method("network", matcher)], tmp_path, max_side=256
    )
    truth, own = truths[0], found["network"][0]
    images = [read_image(image.path) for image in (pairs[0].image0, pairs[0].image1)]
    plain = matcher.with_config(consensus=False)
    matches = plain.match(*images, points=truth["points0"])
    assert np.array_equal(matches.points1, own["points1"])
    mask0 = np.array(PIL.Image.open(pairs[0].image0.mask)) > 0
    flow = plain.flow(images[1], images[0]).flow_0to1
    carried = np.zeros(flow.shape[:2], np.bool_)
    for y in range(len(carried)):
        for x in range(len(carried[0])):
            column, row = math.floor(x + flow[y, x, 0] + 0.5), math.floor(y + flow[y, x, 1] + 0.5)
            if 0 <= row < len(mask0) and 0 <= column < len(mask0[0]):
                carried[y, x] = mask0[row, column]
    assert np.array_equal(own["carried"], carried)
    assert 0 < carried.sum() < carried.size


def make_network() -> Matcher:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(ModelConfig(dim=8, transformer="none"))
    info = WeightsInfo.of_file(Path("random"), "0" * 64, 0)
    return Matcher(LoadedWeights(model, Calibration(), info, {}), device="cpu")


def test_pairs_are_sampled_by_class(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write_class(tmp_path / "pets", name)
    write_class(tmp_path / "things", "cup")
    write_class(tmp_path / "things", "one", count=2)
    (tmp_path / "things" / "one" / "0.png").unlink()  # a single image with a mask makes no pair
    write_flat_image(tmp_path / "plain" / "x" / "0.bmp", 48, 40)  # without masks
    pairs = list_pairs(tmp_path, [], 4, seed=0)
    assert [(pair.group, pair.category) for pair in pairs[::4]] == [
        ("pets", "cat"),
        ("pets", "dog"),
        ("things", "cup"),
    ]
    assert len({pair.name for pair in pairs}) == 12
    assert all(pair.image0 != pair.image1 for pair in pairs)
    assert len(list_pairs(tmp_path / "pets", ["dog"], 40, seed=0)) == 6  # all ordered pairs of three
    assert list_pairs(tmp_path, ["dog"], 4, seed=0) == pairs[4:8]  # whatever the other classes
    assert list_pairs(tmp_path, ["dog"], 2, seed=0) == pairs[4:6]
    assert list_pairs(tmp_path, ["dog"], 4, seed=1) != pairs[4:8]
    assert choose_rows(pairs, 2) == [0, 4, 8, 1, 5, 9]
    assert len(choose_rows(pairs, 40)) == 12


def test_large_images_are_reduced_with_mask_and_box(tmp_path: Path) -> None:
    for number in range(2):
        write_flat_image(tmp_path / "cat" / f"{number}.bmp", 128, 96)
        write_mask(tmp_path / "cat" / f"{number}.png", (32, 16, 64, 48), (96, 128))
    write_text(tmp_path / "boxes.csv", HEADS, "cat/0.bmp,x,31.5,15.5,63.5,47.5", "cat/1.bmp,x,,,,")
    write_text(tmp_path / "other.csv", "file,weight", "cat/0.bmp,3")
    pair = list_pairs(tmp_path, [], 1, 0)[0]
    images = sorted((pair.image0, pair.image1), key=lambda image: image.path)
    view0, view1 = (read_view(image, 64) for image in images)
    assert view0.image.shape == (3, 48, 64)
    assert np.argwhere(view0.mask)[[0, -1]].tolist() == [[8, 16], [23, 31]]
    assert view0.head.tolist() == [15.5, 7.5, 31.5, 23.5]
    assert np.isnan(view1.head).all()


def _empty_mask(root: Path) -> None:
    write_mask(root / "cat" / "1.png", (0, 0, 0, 0), (40, 48))


def _small_mask(root: Path) -> None:
    write_mask(root / "cat" / "1.png", (0, 0, 4, 4), (20, 24))


def _no_masks(root: Path) -> None:
    for path in root.rglob("*.png"):
        path.unlink()


def _one_mask(root: Path) -> None:
    for number in (1, 2):
        (root / "cat" / f"{number}.png").unlink()


def _nothing(_: Path) -> None:
    pass


def _heads(*lines: str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        write_text(root / "heads.csv", *lines)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "classes", "error"),
    [
        (_empty_mask, [], r"mask .*cat/1.png is 0 everywhere"),
        (_small_mask, [], r"mask .*1.png must be as large as its image"),
        (_no_masks, [], r"no masks in .*: expected a folder of images per class, and beside an image a PNG"),
        (_one_mask, ["cat"], r"class 'cat' of .* has 1 images with masks"),
        (_nothing, ["dgo"], r"no class 'dgo' in .*; did you mean 'dog'\? \(there are cat, dog\)"),
        (_heads(HEADS.replace("head_y1", "bottom")), [], r"heads.csv has no column 'head_y1'"),
        (
            _heads(HEADS, "cat/1.bmp,x,9,5,9,8"),
            [],
            r"heads.csv, line 2: .* got 9, 5, 9, 8",
        ),
        (_heads(HEADS, "cat/1.bmp,x,1,2,3"), [], r"heads.csv, line 2: expected a head box"),
    ],
)
def test_what_is_wrong_is_named(
    spoil: Callable[[Path], None], classes: list[str], error: str, tmp_path: Path
) -> None:
    for name in ("cat", "dog"):
        write_class(tmp_path, name)
    spoil(tmp_path)
    with pytest.raises((DataError, ImageReadError), match=error):
        list_pairs(tmp_path, classes, 40, seed=0)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UcnError, match=r"no folder .*missing"):
        list_pairs(tmp_path / "missing", [], 1, 0)
    with pytest.raises(DataError, match="expected a folder per class"):
        list_pairs(tmp_path, [], 1, 0)


def test_a_run_its_cache_and_an_update(ramps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ramps / "heads.csv").unlink()
    seen: list[tuple[int, int]] = []
    settings = RunSettings(tmp_path / "cache", command="ucn")
    both: LoadedMethods[DenseMethod] = LoadedMethods([make_method("first"), make_method("second")])
    report = run_objects(ramps, both, settings, ["ramp"], lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert [row[:2] for row in report.tables[0].rows] == [("ramps", "first"), ("ramps", "second")]
    assert report.tables[0].rows[0][3] == "–"  # no head boxes
    # (256 + 128) / 2 of 48 × 64 pixels.
    assert report.protocol[-1] == "by chance, ramps: the object fills 6.2 % of image 1"
    assert [len(table.rows) for table in report.tables] == [2, 2, 2]
    write_report(report, tmp_path, overwrite=False)
    monkeypatch.setattr(predictions, "_carry", None)  # all of it is in the cache
    assert run_objects(ramps, both, settings).tables == report.tables
    page = read_page(tmp_path / "objects.json", "objects")
    second = LoadedMethods([both.methods[1]])
    updated = update_report(run_objects(ramps, second, RunSettings(settings.cache, page=page)), page)
    assert [method.name for method in updated.methods] == ["first", "second"]
    assert updated.tables == report.tables
    with pytest.raises(DataError, match="pairs was 2, now it is 1"):
        run_objects(ramps, second, RunSettings(settings.cache, limit=1, page=page))
    transfer = replace(both.methods[0], name="nn-transfer", matcher=UnboundTransfer())
    with pytest.raises(DataError, match="no labelled parts to copy"):
        run_objects(ramps, LoadedMethods([transfer]), settings)


def test_pairs_without_a_head_do_not_count() -> None:
    image = ObjectImage(Path("0.jpg"), Path("0.png"))
    pairs = [ObjectPair("g", category, image, image) for category in "ccd"]
    scores = score_objects("m", pairs, [(1.0, math.nan, 0.5), (0.0, 0.25, 0.5), (1.0, math.nan, 0.0)], seed=0)
    assert [(score.category, score.pairs, score.points, score.heads, score.iou) for score in scores] == [
        ("c", 2, 0.5, 1, 0.5),
        ("d", 1, 1.0, 0, 0.0),
        (MEAN, 3, 0.75, 1, 0.25),
    ]
    assert scores[0].head == scores[2].head == 0.25 and math.isnan(scores[1].head)
