"""`ucn align` with a matcher that shifts every point, with one that finds nothing, and with the real one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner, Result

from ucn.cli import _command
from ucn.cli.app import app
from ucn.config import MatchConfig
from ucn.data.io import read_image
from ucn.errors import OutputError
from ucn.types import Matches


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["align", *map(str, arguments)])


class TiltMatcher:
    """Its matches are those of a slightly tilted camera, which changes the last row of the matrix."""

    def __init__(self) -> None:
        self.config = MatchConfig()
        self.weights = SimpleNamespace(name="tilt", sha256="ab" * 32)

    def match(self, image0: Any, image1: Any, *, progress: Any) -> Matches:
        rng = np.random.default_rng(0)
        points0 = rng.uniform(0, 60, (40, 2)).astype(np.float32)
        points1 = points0 / (1 + points0 @ np.array([[1.5e-5], [-2.5e-5]], np.float32))
        ones = np.ones(40, np.float32)
        return Matches(points0, points1.astype(np.float32), ones, ones > 0, 1.0, (64, 80), (64, 80))


class LostMatcher:
    """Its matches have nothing in common."""

    def __init__(self) -> None:
        self.config = MatchConfig()
        self.weights = SimpleNamespace(name="lost", sha256="ef" * 32)

    def match(self, image0: Any, image1: Any, *, progress: Any) -> Matches:
        rng = np.random.default_rng(0)
        points0, points1 = (rng.uniform(0, 60, (40, 2)).astype(np.float32) for _ in range(2))
        ones = np.ones(40, np.float32)
        return Matches(points0, points1, ones, ones > 0, 0.1, (64, 80), (64, 80))


@pytest.mark.usefixtures("shift_matchers")
class TestShift:
    def test_summary(self, pair: tuple[str, str]) -> None:
        result = run(*pair)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert [float(cell) for cell in lines[0].split()[1:]] == pytest.approx([1, 0, 5], abs=1e-4)
        assert [float(cell) for cell in lines[1].split()] == pytest.approx([0, 1, -2], abs=1e-4)
        assert "inliers    40 of 40 matches" in result.stdout
        assert "estimator  poselib, threshold 3 px, seed 0" in result.stdout

    def test_outputs(self, pair: tuple[str, str], out: Path) -> None:
        files = [out / name for name in ("warped.png", "overlay.png", "blink.gif", "h.json")]
        options = ("-o", files[0], "--overlay", files[1], "--blink", files[2], "--matrix", files[3])
        result = run(*pair, *options, "--json")
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        np.testing.assert_allclose(report["H_0to1"], [[1, 0, 5], [0, 1, -2], [0, 0, 1]], atol=1e-5)
        assert report["outputs"] == list(map(str, files))
        assert report["estimator"] == {"name": "poselib", "threshold_px": 3.0, "min_inliers": 15, "seed": 0}
        kept = json.loads(files[3].read_text())
        assert kept["H_0to1"] == report["H_0to1"]
        assert kept["inliers"] == 40
        assert (kept["image0_hw"], kept["weights"]["name"]) == ([64, 80], "shift")
        warped, original = read_image(files[0]), read_image(pair[1])
        assert warped.shape == (3, 64, 80)
        difference = (warped[:, 3:60, 1:70] - original[:, 1:58, 6:75]).abs()
        assert difference.max() < 0.05
        assert read_image(files[1]).shape == (3, 64, 80)
        with PIL.Image.open(files[2]) as image:
            assert image.size == (80, 64)
            assert getattr(image, "n_frames", 1) == 2
        again = run(*pair, *options)
        assert again.exit_code == 1
        assert "exists" in again.stderr

    def test_all_outputs_or_none(
        self, pair: tuple[str, str], out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OutputError("cannot write blink.gif: no space left on device")

        monkeypatch.setattr("ucn.viz.overlay.write_animation", fail)
        (out / "w.png").write_bytes(b"before")
        result = run(*pair, "-o", out / "w.png", "--blink", out / "blink.gif", "--overwrite")
        assert result.exit_code == 1
        assert "no space left" in result.stderr
        assert [path.read_bytes() for path in out.iterdir()] == [b"before"]

    @pytest.mark.parametrize(
        "options", [("--threshold", "0"), ("--threshold", "inf"), ("--min-inliers", "3"), ("--seed", "-1")]
    )
    def test_wrong_usage(self, pair: tuple[str, str], options: tuple[str, ...]) -> None:
        assert run(*pair, *options).exit_code == 2

    @pytest.mark.parametrize(
        ("option", "name"), [("-o", "a.txt"), ("--overlay", "a.gif"), ("--blink", "a.png"), ("--matrix", "a")]
    )
    def test_names_of_outputs_are_checked_first(
        self, pair: tuple[str, str], out: Path, option: str, name: str
    ) -> None:
        result = run(*pair, option, out / name)
        assert result.exit_code == 1
        assert "must end in" in result.stderr
        assert list(out.iterdir()) == []


def test_small_entries_are_printed_with_all_their_digits(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_command, "load_matcher", lambda *_: TiltMatcher())
    printed = [float(cell) for cell in run(*pair).stdout.splitlines()[2].split()]
    np.testing.assert_allclose(printed, json.loads(run(*pair, "--json").stdout)["H_0to1"][2], rtol=1e-6)
    assert printed[0] == pytest.approx(1.5e-5, rel=0.1)


class TestNoHomography:
    def test_too_few_agree(self, pair: tuple[str, str], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_command, "load_matcher", lambda *_: LostMatcher())
        options = ("-o", out / "w.png", "--blink", out / "b.gif", "--matrix", out / "h.json")
        result = run(*pair, *options)
        assert result.exit_code == 1
        assert "homography  not found: " in result.stdout
        assert "inliers; at least 15 are needed" in result.stdout
        assert list(out.iterdir()) == []
        report = json.loads(run(*pair, *options, "--json").stdout)
        assert report["H_0to1"] is None
        assert (report["inliers"], report["outputs"]) == (0, [])
        assert "at least 15" in report["failure"]


def test_real_matcher_on_a_turned_photograph(tmp_path: Path) -> None:
    from ucn.data.example import example_pair

    with PIL.Image.open(example_pair().image0_path) as image:
        small = image.convert("RGB").resize((240, 180))
    small.save(tmp_path / "a.png")
    small.transpose(PIL.Image.Transpose.ROTATE_90).save(tmp_path / "b.png")
    result = run(tmp_path / "a.png", tmp_path / "b.png", "-o", tmp_path / "w.png", "--json")
    assert result.exit_code == 0, result.output
    H = np.array(json.loads(result.stdout)["H_0to1"])
    corners = np.array([[0, 0, 1], [239, 0, 1], [239, 179, 1], [0, 179, 1]])
    moved = corners @ H.T
    # A quarter turn to the left: the right edge becomes the top.
    expected = np.array([[0, 239], [0, 0], [179, 0], [179, 239]])
    assert np.abs(moved[:, :2] / moved[:, 2:] - expected).max() < 2
    warped, original = read_image(tmp_path / "w.png"), read_image(tmp_path / "a.png")
    assert (warped - original).abs()[:, 5:-5, 5:-5].mean() < 0.03
