"""Wrong input is refused before torch is imported, which takes seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner

from ucn.cli import _checks
from ucn.cli.app import app
from ucn.config import MIN_SIDE
from ucn.errors import ConfigError, DataError, ImageReadError, WeightsError

runner = CliRunner()

CODE = """
import json, sys
from ucn.cli import main
for arguments, message in json.loads(sys.argv[1]):
    sys.argv = ["ucn", *arguments]
    try:
        main()
    except SystemExit as leave:
        assert leave.code == 1, arguments
    assert "torch" not in sys.modules, arguments
"""


@pytest.mark.slow
def test_errors_come_before_torch(pair: tuple[str, str], tmp_path: Path) -> None:
    PIL.Image.new("RGB", (40, 20)).save(tmp_path / "small.png")
    (tmp_path / "net.pth").write_bytes(b"PK\x03\x04")
    cases = [
        (["match", "no.jpg", pair[1]], "cannot read image no.jpg: no such file"),
        (["match", pair[0], "small.png"], "image small.png must be at least 32 px a side, got 40 × 20"),
        (["match", *pair, "--weights", "geometrik"], "no weights 'geometrik'; did you mean 'geometric'?"),
        (["match", *pair, "--weights", "net.pth"], "net.pth is a PyTorch pickle"),
        (["match", *pair, "--points", "no.csv"], "cannot read points no.csv: no such file"),
        (["match", *pair, "--mask1", "no.png"], "cannot read mask no.png: no such file"),
        (["match", *pair, "-o", "o.txt"], "must end in .npz"),
        (["flow", *pair, "--draw", "o.svg"], "must end in .png"),
        (["flow", pair[0], "no.jpg", "--draw", "o.png"], "cannot read image no.jpg"),
        (["pose", *pair, "--intrinsics", "9,9,9,9", "-o", "o.csv"], "must end in .json"),
        (["pose", *pair, "--intrinsics", "9,9,9,9", "--weights", "no"], "no weights 'no'"),
        (["align", "no.jpg", pair[1]], "cannot read image no.jpg"),
        (["demo", "--weights", "no"], "no weights 'no'"),
        (["match", "--pairs", "no.txt", "-o", "matches"], "cannot read the list of pairs no.txt"),
        (["match", "in", "in", "-o", "matches", "--weights", "no"], "no weights 'no'"),
        (["stitch", "no.jpg", pair[1]], "cannot read image no.jpg"),
        (["stitch", *pair, "--weights", "no"], "no weights 'no'"),
        (["track", "no.mp4", "-o", "tracks", "--grid", "9"], "cannot read video no.mp4"),
        (["extract", "nowhere"], "no folder nowhere"),
        (["extract", ".", "--method", "sfit"], "no method 'sfit'; did you mean 'sift'?"),
        (["extract", ".", "--weights", "no"], "no weights 'no'"),
        (["pairs", "no.h5"], "no file of features no.h5"),
        (["reconstruct", "nowhere", "-o", "model"], "no folder nowhere"),
        (["train", "owm", "-o", "w.safetensors"], "no recipe at owm; did you mean 'own'?"),
        (["train", "own", "-o", "w.pth"], "must end in .safetensors"),
        (["train", "own", "-o", "w.safetensors", "--images", "nowhere"], "no folder nowhere"),
        (["evaluate", "mini", "--methods", "sfit"], "no method 'sfit'; did you mean 'sift'?"),
        (["evaluate", "mini", "--weights-file", "w.safetensors"], "w.safetensors: it is missing"),
        (["export", "geometrik", "-o", "w.onnx"], "no weights 'geometrik'"),
        (["export", "geometric", "-o", "w.txt"], "must end in .onnx"),
        (["info", "geometrik"], "no weights 'geometrik'"),
        (["serve", "--weights", "geometrik"], "no weights 'geometrik'"),
        (["weights", "geometrik"], "no weights 'geometrik'"),
        (["data", "list", "club"], "no data set 'club'"),
        (["data", "show", "own", ".", "-o", "o.svg"], "must end in .png"),
    ]
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, json.dumps(cases)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == len(cases), result.stderr
    for line, (arguments, message) in zip(lines, cases, strict=True):
        assert line.startswith("error: ") and message in line, (arguments, line)


class TestChecks:
    def test_nothing_given(self) -> None:
        _checks.check_images([None])
        _checks.check_masks([None], [(32, 32)])
        _checks.check_file(None, "points")
        _checks.check_image_folder(None)
        _checks.check_methods([], [])

    def test_images(self, tmp_path: Path) -> None:
        least = tmp_path / "least.png"
        PIL.Image.new("RGB", (MIN_SIDE, MIN_SIDE)).save(least)
        _checks.check_images([least])
        small = tmp_path / "small.png"
        PIL.Image.new("RGB", (MIN_SIDE - 1, MIN_SIDE)).save(small)
        with pytest.raises(ImageReadError, match=r"small\.png must be at least 32 px a side, got 31 × 32"):
            _checks.check_images([least, small])
        _checks.check_masks([small], [(MIN_SIDE, MIN_SIDE - 1)])  # its image is checked instead
        with pytest.raises(ImageReadError, match=r"as large as its image, 32 × 32, got 31 × 32"):
            _checks.check_masks([small], [(MIN_SIDE, MIN_SIDE)])
        with pytest.raises(ImageReadError, match=r"cannot read mask .*no\.png: no such file"):
            _checks.check_masks([tmp_path / "no.png"], [(32, 32)])

    def test_files_and_folders(self, tmp_path: Path) -> None:
        (tmp_path / "p.csv").touch()
        _checks.check_file(tmp_path / "p.csv", "points")
        with pytest.raises(DataError, match=r"cannot read points .*: it is a folder"):
            _checks.check_file(tmp_path, "points")
        _checks.check_image_folder(tmp_path)
        with pytest.raises(DataError, match="is a file; expected a folder of images"):
            _checks.check_image_folder(tmp_path / "p.csv")

    def test_features(self) -> None:
        for method, weights in ((None, "birds"), ("sift", "birds"), (None, "daisy")):
            _checks.check_features(method, weights)
        with pytest.raises(ConfigError, match="no method 'sfit'; did you mean 'sift'"):
            _checks.check_features("sfit", "birds")
        with pytest.raises(ConfigError, match="'dsp' matches whole images"):
            _checks.check_features("dsp", "birds")
        with pytest.raises(WeightsError, match="no weights 'brids'; did you mean 'birds'"):
            _checks.check_features(None, "brids")

    def test_methods_of_any_kind(self, tmp_path: Path) -> None:
        names = ["birds", "birds+nearest", "sift", "sift+consensus", "daisy+dsp", "sift-ratio", "colmap-sift"]
        _checks.check_methods([*names, "disk-lightglue", "trunk+consensus"], [])
        own = tmp_path / "mine.safetensors"
        own.touch()
        _checks.check_methods(["mine", "mine+nearest"], [own])
        with pytest.raises(ConfigError, match=r"no method 'mine' \(there are geometric.*sift-ratio.*colmap"):
            _checks.check_methods(["mine"], [])
        with pytest.raises(WeightsError, match=r"gone\.safetensors: it is missing"):
            _checks.check_methods([], [tmp_path / "gone.safetensors"])


@pytest.mark.usefixtures("shift_matchers")
class TestEmptyMasks:
    @pytest.fixture
    def empty(self, tmp_path: Path) -> Path:
        path = tmp_path / "empty.png"
        PIL.Image.new("L", (80, 64)).save(path)
        return path

    @pytest.mark.parametrize("option", ["--mask", "--mask0", "--mask1"])
    def test_is_called_empty(self, pair: tuple[str, str], empty: Path, option: str) -> None:
        result = runner.invoke(app, ["match", *pair, option, str(empty)])
        assert result.exit_code == 0
        assert result.stderr.count(f"mask {empty} is empty: all its pixels are black or transparent") == 1
        assert "(an empty mask leaves nothing to match)" in result.stdout
        assert "may not show the same scene" not in result.stdout

    def test_json_is_as_without(self, pair: tuple[str, str], empty: Path) -> None:
        result = runner.invoke(app, ["match", *pair, "--mask", str(empty), "--json"])
        assert "is empty" in result.stderr
        assert "empty" not in json.loads(result.stdout)

    def test_others_are_not(self, pair: tuple[str, str], tmp_path: Path) -> None:
        mask = np.zeros((64, 80), np.uint8)
        mask[3, 5] = 1
        PIL.Image.fromarray(mask).save(tmp_path / "m.png")
        result = runner.invoke(app, ["match", *pair, "--mask", str(tmp_path / "m.png")])
        assert result.stderr == ""
        assert "may not show the same scene" in result.stdout


@pytest.mark.slow
def test_data_sets_are_listed_without_torch() -> None:
    code = (
        "import sys; from ucn.cli import main; sys.argv = ['ucn', 'data', 'list']\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "cub" in done.stdout, done.stderr
