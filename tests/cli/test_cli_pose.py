"""`ucn pose` with a matcher that knows the scene, and with one whose matches determine no pose."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from typer.testing import CliRunner, Result

from ucn.cli import _command
from ucn.cli.app import app
from ucn.config import MatchConfig
from ucn.data.io import read_image
from ucn.files.arrays import read_npz
from ucn.types import Matches

K = "60,60,39.5,31.5"
R = np.array([[0.8, 0.0, 0.6], [0.0, 1.0, 0.0], [-0.6, 0.0, 0.8]])  # by 36.87 degrees about y
T = np.array([-4.0, 0.0, 3.0])


class SceneMatcher:
    """Matches points of a scene in images of 80 × 64; `wrong` of ten matches are outliers."""

    def __init__(self, config: MatchConfig | None, wrong: int = 1, pair_score: float = 0.9) -> None:
        self.config = config or MatchConfig()
        self.wrong, self.pair_score = wrong, pair_score
        self.weights = SimpleNamespace(name="scene", sha256="cd" * 32)

    def match(self, image0: Tensor, image1: Tensor, *, progress: Callable[[str], None]) -> Matches:
        progress("encoding image 0")
        rng = np.random.default_rng(0)
        space = rng.uniform([-2, -2, 6], [2, 2, 12], (200, 3))
        points0, points1 = (self._project(seen) for seen in (space, space @ R.T + T))
        is_wrong = np.arange(200) % 10 < self.wrong
        points1[is_wrong] = rng.uniform(0, 60, (is_wrong.sum(), 2))
        ones = np.ones(200, np.bool_)
        return Matches(points0, points1, ones.astype(np.float32), ones, self.pair_score, (64, 80), (64, 80))

    def _project(self, space: Any) -> Any:
        return (60 * space[:, :2] / space[:, 2:] + [39.5, 31.5]).astype(np.float32)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _command, "load_matcher", lambda weights, config=None, device=None: SceneMatcher(config)
    )


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["pose", *map(str, arguments)])


@pytest.mark.usefixtures("scene")
class TestPose:
    def test_summary(self, pair: tuple[str, str]) -> None:
        result = run(*pair, "--intrinsics", K)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert [float(cell) for cell in lines[0].split()[1:]] == pytest.approx([0.8, 0, 0.6], abs=2e-3)
        assert "rotation   36.8" in result.stdout
        assert "(of unit length)" in result.stdout
        assert "estimator  poselib, threshold 1 px, seed 0" in result.stdout
        assert "nothing (use -o or --draw)" in result.stdout

    @pytest.mark.parametrize("estimator", ["poselib", "opencv"])
    def test_json(self, pair: tuple[str, str], estimator: str) -> None:
        result = run(
            *pair, "--intrinsics", K, "--json", "--estimator", estimator, "--threshold", "0.01", "--seed", "3"
        )
        report = json.loads(result.stdout)
        np.testing.assert_allclose(report["R"], R, atol=1e-3)
        np.testing.assert_allclose(report["t"], T / 5, atol=2e-3)
        assert report["command"] == "pose"
        assert report["failure"] is None
        assert report["estimator"] == {"name": estimator, "threshold_px": 0.01, "seed": 3}
        assert report["matches"] == 200
        assert 170 <= report["inliers"] <= 182
        assert report["rotation_degrees"] == pytest.approx(36.87, abs=0.05)
        assert report["K0"] == report["K1"] == [[60, 0, 39.5], [0, 60, 31.5], [0, 0, 1]]
        assert report["weights"]["name"] == "scene"

    def test_reliable_pose_has_no_warning(self, pair: tuple[str, str]) -> None:
        assert "warning" not in run(*pair, "--intrinsics", K).output
        assert json.loads(run(*pair, "--intrinsics", K, "--json").stdout)["warning"] is None

    @pytest.mark.slow
    def test_outputs(self, pair: tuple[str, str], out: Path) -> None:
        files = out / "m.npz", out / "m.png"
        result = run(*pair, "--intrinsics", K, "-o", files[0], "--draw", files[1])
        assert result.exit_code == 0, result.output
        arrays = read_npz(files[0])
        assert arrays["is_inlier"].sum() >= 170
        assert not arrays["is_inlier"][::10].all()
        assert json.loads(str(arrays["meta"]))["inliers"] == arrays["is_inlier"].sum()
        assert read_image(files[1]).shape[1:] == (1346, 1600)  # matches and, below, epipolar lines
        assert run(*pair, "--intrinsics", K, "-o", out / "m.json").exit_code == 0
        assert json.loads((out / "m.json").read_text())["failure"] is None
        again = run(*pair, "--intrinsics", K, "-o", files[0])
        assert again.exit_code == 1
        assert "exists" in again.output
        assert run(*pair, "--intrinsics", K, "-o", files[0], "--overwrite").exit_code == 0

    def test_exif_and_other_forms(self, pair: tuple[str, str], tmp_path: Path) -> None:
        spaces = run(*pair, "--intrinsics", "60 60 39.5 31.5", "--json")
        assert json.loads(spaces.stdout)["K0"] == [[60, 0, 39.5], [0, 60, 31.5], [0, 0, 1]]
        missing = run(*pair, "--intrinsics", "exif")
        assert missing.exit_code == 1
        assert missing.stderr.startswith(
            f"error: --intrinsics {pair[0]}: expected EXIF data with FocalLength"
        )
        path = tmp_path / "cameras.txt"
        path.write_text("1 SIMPLE_RADIAL 80 64 60 40 32 0.01\n")
        distorted = run(*pair, "--intrinsics", path)
        assert distorted.exit_code == 0
        assert distorted.stderr.count("has lens distortion, which is ignored") == 1
        path.write_text("1 SIMPLE_PINHOLE 80 60 60 40 30\n")
        other = run(*pair, "--intrinsics", path)
        assert other.exit_code == 1
        assert "is for images of 80 × 60 pixels" in other.stderr

    def test_matrices_from_files_and_for_two_cameras(self, pair: tuple[str, str], tmp_path: Path) -> None:
        path = tmp_path / "K.txt"
        path.write_text("60 0 39.5\n0 60 31.5\n0 0 1\n")
        same = run(*pair, "--intrinsics", path, "--json")
        assert json.loads(same.stdout)["K0"] == [[60, 0, 39.5], [0, 60, 31.5], [0, 0, 1]]
        other = run(*pair, "--intrinsics0", path, "--intrinsics1", "61,61,39.5,31.5", "--json")
        assert json.loads(other.stdout)["K1"][0] == [61, 0, 39.5]

    @pytest.mark.parametrize(
        "options",
        [
            (),
            ("--intrinsics0", K),
            ("--intrinsics", K, "--intrinsics1", K),
            ("--intrinsics", K, "--threshold", "0"),
            ("--intrinsics", K, "--estimator", "magic"),
            ("--intrinsics", K, "--seed", "-1"),
        ],
    )
    def test_wrong_usage(self, pair: tuple[str, str], options: tuple[str, ...]) -> None:
        assert run(*pair, *options).exit_code == 2

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--intrinsics", "60,60"), "--intrinsics 60,60: expected 3 × 3 numbers"),
            (("--intrinsics", "absent.txt"), "absent.txt: no such file; give fx,fy,cx,cy in pixels"),
            (
                ("--intrinsics", "60,60"),
                "got 2 numbers; give fx,fy,cx,cy in pixels, such as 1200,",
            ),
            (("--intrinsics0", K, "--intrinsics1", "1,2"), "--intrinsics1 1,2: expected"),
            (("--intrinsics", K, "-o", "m.csv"), "m.csv"),
            (("--intrinsics", K, "--draw", "m.txt"), "m.txt"),
            (("--intrinsics", K, "-o", "no/folder/m.npz"), "no/folder"),
        ],
    )
    def test_errors_are_one_line(self, pair: tuple[str, str], options: tuple[str, ...], message: str) -> None:
        result = run(*pair, *options)
        assert result.exit_code == 1
        assert result.output.startswith("error: ")
        assert message in result.output
        assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("wrong", "pair_score", "reasons"),
    [
        (7, 0.9, ["of 200 matches are inliers"]),
        (1, 0.3, ["the pair score is 0.30"]),
        (7, 0.3, ["of 200 matches are inliers", "the pair score is 0.30"]),
    ],
)
def test_unreliable_pose(
    monkeypatch: pytest.MonkeyPatch,
    pair: tuple[str, str],
    out: Path,
    wrong: int,
    pair_score: float,
    reasons: list[str],
) -> None:
    matcher = SceneMatcher(None, wrong, pair_score)
    monkeypatch.setattr(_command, "load_matcher", lambda weights, config=None, device=None: matcher)
    result = run(*pair, "--intrinsics", K)
    assert result.exit_code == 0
    assert "warning" not in result.stdout
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("warning: "))
    report = json.loads(run(*pair, "--intrinsics", K, "--json", "-o", out / "m.json").stdout)
    assert line == f"warning: {report['warning']}"
    assert json.loads((out / "m.json").read_text())["warning"] == report["warning"]
    found = [reason for reason in ("of 200 matches are inliers", "the pair score is 0.30") if reason in line]
    assert found == reasons
    assert "--draw" in line


@pytest.mark.usefixtures("shift_matchers")
class TestNoPose:
    def test_matches_that_a_rotation_explains(self, pair: tuple[str, str], out: Path) -> None:
        options = ("--intrinsics", "5000,5000,39.5,31.5", "-o", out / "m.json", "--draw", out / "m.png")
        result = run(*pair, *options)
        assert result.exit_code == 1
        assert "pose       not found: a rotation alone explains the matches" in result.stdout
        assert list(out.iterdir()) == []
        report = json.loads(run(*pair, *options, "--json").stdout)
        assert report["R"] is None
        assert report["t"] is None
        assert report["failure"].startswith("a rotation alone")
        assert report["warning"] is None
        assert "warning" not in result.output
        assert (report["inliers"], report["outputs"]) == (0, [])
