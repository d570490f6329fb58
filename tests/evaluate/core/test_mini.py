"""The bundled benchmark: its ground truth, and the scores of the shipped weights."""

import json
import math
from pathlib import Path

import pytest
import torch

from support.mini_figures import FILE, measure
from ucn.data.bundled import MINI_IMAGES, WARPS, Warp, WarpedImages
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.geometry.sampling import sample_image

TOLERANCE = 1.0
"""Percentage points by which figures may differ: more than other versions of libraries change."""


def test_homographies_by_hand() -> None:
    assert torch.allclose(Warp("same").homography((40, 60)), torch.eye(3, dtype=torch.float64), atol=1e-9)
    # A quarter turn clockwise about the centre (29.5, 19.5) takes its right to its bottom.
    quarter = Warp("turned", degrees=90).homography((40, 60))
    moved = quarter @ torch.tensor([39.5, 19.5, 1.0], dtype=torch.float64)
    assert (moved[:2] / moved[2]).tolist() == pytest.approx([29.5, 29.5])
    # One corner moved by a tenth of 59 pixels along x; the others stay.
    tilted = Warp("tilted", corners=((0.1, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0))).homography((40, 60))
    for corner, wanted in (
        ((0.0, 0.0), (5.9, 0.0)),
        ((59.0, 0.0), (59.0, 0.0)),
        ((59.0, 39.0), (59.0, 39.0)),
    ):
        moved = tilted @ torch.tensor([*corner, 1.0], dtype=torch.float64)
        assert (moved[:2] / moved[2]).tolist() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("index", range(len(WARPS)))
def test_points_show_the_same_pixels(index: int) -> None:
    data = WarpedImages(MINI_IMAGES[:1])
    sample, warp = data.read(index), data.change(index)
    assert len(sample) > 0.5 * math.prod(sample.image0.shape[-2:])
    inner = (sample.points1 > 2).all(dim=1) & (sample.points0 > 2).all(dim=1)
    rows = inner.nonzero()[::500, 0]
    seen = sample_image(sample.image1[None], sample.points1[rows][None, None], "border")[0, :, 0]
    there = sample_image(sample.image0[None], sample.points0[rows][None, None], "border")[0, :, 0]
    wanted = (there**warp.gamma * warp.gain).clamp(0, 1)
    assert (seen - wanted).abs().median() < 0.02  # bilinear reading blurs edges, so not all of them


def test_pairs() -> None:
    pairs = find_benchmark("mini").open(Path("nowhere"))
    assert len(pairs) == len({pair.name for pair in pairs}) == 10
    assert {pair.group for pair in pairs} == {"turned", "tilted", "both", "motorcycle"}
    data = WarpedImages()
    assert data.pair_name(4) == "coffee/tilted"
    assert [file.path for file in data.files()] == list(MINI_IMAGES)
    with pytest.raises(IndexError):
        data.read(9)


def test_photographs_have_attributions() -> None:
    text = (MINI_IMAGES[0].parent / "ATTRIBUTION.txt").read_text(encoding="utf-8")
    assert all(f"{path.stem} " in text for path in MINI_IMAGES)


@pytest.mark.slow
def test_shipped_weights_reach_their_figures(tmp_path: Path) -> None:
    expected = json.loads(FILE.read_text(encoding="utf-8"))
    found = measure(tmp_path)
    remedy = "run `python tests/support/mini_figures.py --write` if weights or benchmark changed on purpose"
    assert found["sha256"] == expected["sha256"], f"figures of other weights: {remedy}"
    assert found["figures"].keys() == expected["figures"].keys()
    for group, limits in expected["figures"].items():
        assert found["figures"][group] == pytest.approx(limits, abs=TOLERANCE), f"{group}: {remedy}"
