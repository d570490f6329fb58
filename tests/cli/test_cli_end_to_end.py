"""The commands with the real matcher: once with random weights, and the demo with the shipped ones."""

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner

from ucn.cli.app import app
from ucn.data.match_files import read_matches
from ucn.data.points import read_flo

runner = CliRunner()


def run_ok(*arguments: str | Path) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_match_an_image_with_itself(pair: tuple[str, str], out: Path, random_weights: Path) -> None:
    run_ok(
        "match", pair[0], pair[0], "--weights", random_weights, "-o", out / "m.npz", "--draw", out / "m.png"
    )
    matches, _ = read_matches(out / "m.npz")
    assert len(matches) > 10
    # An untrained network knows cells, which are 4 px apart, but nothing finer.
    assert np.median(np.abs(matches.points1 - matches.points0)) < 2


def test_points_in_rows_out_in_order(pair: tuple[str, str], out: Path, random_weights: Path) -> None:
    points = np.random.default_rng(0).uniform(0, 60, (30, 2)).round(2)
    (out / "p.csv").write_text("x,y\n" + "\n".join(f"{x},{y}" for x, y in points))
    text = run_ok("match", *pair, "--points", out / "p.csv", "--weights", random_weights)
    rows = list(csv.DictReader(StringIO(text)))
    np.testing.assert_allclose([(float(r["x0"]), float(r["y0"])) for r in rows], points, atol=1e-3)


def test_flow_of_an_image_to_itself(pair: tuple[str, str], out: Path, random_weights: Path) -> None:
    run_ok(
        "flow", pair[0], pair[0], "--weights", random_weights, "-o", out / "f.flo", "--draw", out / "f.png"
    )
    flow = read_flo(out / "f.flo")
    assert flow.shape == (64, 80, 2)
    assert np.nanmedian(np.abs(flow)) < 2


@pytest.mark.parametrize("kind", ["grey", "16-bit", "RGBA", "CMYK", "exif", "gif"])
def test_unusual_but_valid_images(out: Path, tmp_path: Path, random_weights: Path, kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    image = PIL.Image.fromarray(pixels)
    path = tmp_path / {"CMYK": "a.tif", "gif": "a.gif"}.get(kind, "a.png")
    if kind == "grey":
        image.convert("L").save(path)
    elif kind == "16-bit":
        PIL.Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(path)
    elif kind in ("RGBA", "CMYK"):
        image.convert(kind).save(path)
    elif kind == "exif":
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        image.save(path, exif=exif)
    else:
        image.save(path, save_all=True, append_images=[image.rotate(180)])
    report = json.loads(
        run_ok("match", path, path, "--weights", random_weights, "-o", out / "m.npz", "--json")
    )
    assert report["matches"] > 0
    assert report["image0_hw"] == ([64, 48] if kind == "exif" else [48, 64])


@pytest.mark.slow
def test_demo_accuracy_matches_the_readme(out: Path) -> None:
    report = json.loads(run_ok("demo", "-o", out / "demo", "--json"))
    assert report["matches"] >= 1500
    assert report["share_within_px"]["3"] >= 0.85
    assert (out / "demo" / "matches.png").is_file()
