"""`ucn stitch` with a matcher that knows the homographies."""

import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from support.stitch_cases import KnownMatcher, Pixels, read_coffee, take_view, tilt
from ucn.cli import _command
from ucn.cli.app import app
from ucn.data.io import read_image

MAPS = [tilt(10, 20), tilt(70, 40, 0.03), tilt(120, 60, -0.03, 2e-4)]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["stitch", *map(str, arguments)])


@pytest.fixture
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files of three views; the matcher knows them."""
    picture = read_coffee()
    known: list[tuple[Pixels, NDArray[np.float64]]] = [(take_view(picture, H), H) for H in MAPS]
    monkeypatch.setattr(_command, "load_matcher", lambda *_: KnownMatcher(known))
    return [write(tmp_path / f"{index}.png", view) for index, (view, _) in enumerate(known)]


def write(path: Path, pixels: Pixels) -> Path:
    PIL.Image.fromarray(pixels).save(path)
    return path


def write_noise(path: Path, seed: int) -> Path:
    return write(path, np.random.default_rng(seed).integers(0, 255, (90, 120, 3), dtype=np.uint8))


def test_panorama_and_summary(views: list[Path], out: Path) -> None:
    result = run(*views, "-o", out / "panorama.png")
    assert result.exit_code == 0, result.output
    assert "images     3 of 3, in the frame of" in result.stdout
    assert "1.png" in result.stdout
    assert "connected" in result.stdout
    assert f"written    {out / 'panorama.png'}" in result.stdout
    assert result.stderr == ""
    height, width = read_image(out / "panorama.png").shape[1:]
    assert f"panorama   {width} × {height} pixels" in result.stdout
    assert 200 < width < 260
    again = run(*views, "-o", out / "panorama.png")
    assert again.exit_code == 1
    assert "exists already" in again.stderr
    assert run(*views, "-o", out / "panorama.png", "--overwrite").exit_code == 0


def test_json(views: list[Path], out: Path, tmp_path: Path) -> None:
    other = write_noise(tmp_path / "other.png", 1)
    result = run(
        views[0], other, views[1], "-o", out / "p.jpg", "--json", "--max-megapixels", "0.005", "--no-gains"
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["command"] == "stitch"
    assert report["images"] == [str(path) for path in (views[0], other, views[1])]
    assert report["left_out"] == [1]
    assert report["reference"] in (0, 2)
    assert report["homographies_to_canvas"][1] == [[None] * 3] * 3
    assert np.shape(report["homographies_to_canvas"][0]) == (3, 3)
    assert report["gains"] == [1.0, None, 1.0]
    assert report["width"] * report["height"] < 5500
    assert report["scale"] < 1
    assert len(report["pairs"]) == 3
    assert report["outputs"] == [str(out / "p.jpg")]
    assert result.stderr.startswith(f"left out: {other} does not connect to the others; its best pair, with ")
    assert "has the pair score 0.10 (" in result.stderr


def test_nothing_connects(views: list[Path], out: Path, tmp_path: Path) -> None:
    images = [write_noise(tmp_path / f"noise{seed}.png", seed) for seed in range(2)]
    result = run(*images, "-o", out / "p.png")
    assert result.exit_code == 1
    assert "no homography connects any two images" in result.stderr
    assert "pair score 0.10" in result.stderr
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-megapixels", "0"), "--max-megapixels must be above 0"),
        (("--max-megapixels", "901"), "at most 900"),
        (("--threshold", "inf"), "--threshold must be a number of pixels"),
        (("--min-inliers", "3"), "--min-inliers"),
    ],
)
def test_wrong_usage(views: list[Path], out: Path, options: tuple[str, ...], message: str) -> None:
    result = run(*views, "-o", out / "p.png", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_inputs_and_outputs_are_checked_first(views: list[Path], out: Path) -> None:
    alone = run(views[0], "-o", out / "p.png")
    assert alone.exit_code == 2
    assert "give at least two images, got 1" in alone.stderr
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        ((*views, "-o", views[0]), "it is an input"),
        ((*views, "-o", out / "p.gif"), "must end in"),
        ((*views, out / "missing.png", "-o", out / "p.png"), "no such file"),
    ]
    for arguments, message in cases:
        result = run(*arguments)
        assert result.exit_code == 1
        assert message in result.stderr
    assert list(out.iterdir()) == []
