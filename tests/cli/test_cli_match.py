import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import PIL.Image
import pytest
import torch
from typer.testing import CliRunner

from support.point_cases import coco_values, write_json
from ucn.cli.app import app
from ucn.data.io import read_image
from ucn.data.match_files import read_matches
from ucn.data.point_files.files import read_point_table
from ucn.data.points import read_flo, read_flow
from ucn.viz.matches import MAX_LINES

runner = CliRunner()

SHIFT = (5.0, -2.0)  # what the matcher of these tests adds to every point

pytestmark = pytest.mark.usefixtures("shift_matchers")


def run_ok(*arguments: str | Path) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


class TestMatch:
    def test_summary(self, pair: tuple[str, str]) -> None:
        text = run_ok("match", *pair)
        assert "matches     40" in text
        assert "mutual      100.0 %" in text
        assert "mean score  0.500" in text
        assert "pair score  0.250" in text
        assert "nothing (use -o or --draw)" in text

    def test_json_is_one_object_and_nothing_else(self, pair: tuple[str, str], out: Path) -> None:
        report = json.loads(run_ok("match", *pair, "--json", "-o", out / "m.npz"))
        assert report["command"] == "match"
        assert report["matches"] == 40
        assert report["weights"] == {"name": "shift", "sha256": "ab" * 32}
        assert report["config"]["max_side"] == "auto"  # the double does not know what weights were made for
        assert report["image0_hw"] == [64, 80]
        assert report["outputs"] == [str(out / "m.npz")]
        assert {"loading weights", "encoding image 0", "total"} <= set(report["seconds"])
        assert "ucn" in report
        assert "torch" in report

    @pytest.mark.parametrize(
        ("options", "lines"), [((), MAX_LINES), (("--lines", "7"), 7), (("--lines", "0"), 0)]
    )
    def test_lines_of_the_drawing(
        self,
        pair: tuple[str, str],
        out: Path,
        monkeypatch: pytest.MonkeyPatch,
        options: tuple[str, ...],
        lines: int,
    ) -> None:
        given: dict[str, Any] = {}

        def draw(*_: Any, **options: Any) -> Any:
            given.update(options)
            return np.zeros((2, 2, 3), np.uint8)

        monkeypatch.setattr("ucn.viz.draw_matches", draw)
        run_ok("match", *pair, "--draw", out / "m.png", "--min-score", "0.3", *options)
        assert (given["max_lines"], given["min_score"]) == (lines, 0.3)

    def test_wrong_number_of_lines(self, pair: tuple[str, str]) -> None:
        assert runner.invoke(app, ["match", *pair, "--lines", "-1"]).exit_code == 2

    @pytest.mark.slow
    def test_all_outputs(self, pair: tuple[str, str], out: Path) -> None:
        run_ok("match", *pair, "-o", out / "m.npz", "--draw", out / "m.png")
        matches, meta = read_matches(out / "m.npz")
        assert len(matches) == 40
        assert meta["weights"]["name"] == "shift"
        assert meta["config"]["ratio"] == 1.0
        assert meta["image0"] == pair[0]
        assert read_image(out / "m.png").shape[2] == 1600
        run_ok("match", *pair, "-o", out / "m.csv")
        run_ok("match", *pair, "-o", out / "m.h5")
        with h5py.File(out / "m.h5") as file:
            assert file["a.png/b.png/points0"].shape == (40, 2)
        assert sorted(p.name for p in out.iterdir()) == ["m.csv", "m.h5", "m.npz", "m.png"]

    def test_points_come_back_in_order(self, pair: tuple[str, str], out: Path) -> None:
        points = np.random.default_rng(0).uniform(0, 60, (20, 2)).round(2)
        text = "\n".join(f"{x},{y}" for x, y in points)
        (out / "p.csv").write_text(text)
        rows = list(csv.DictReader(StringIO(run_ok("match", *pair, "--points", out / "p.csv"))))
        found = np.array([[float(row[key]) for key in ("x0", "y0", "x1", "y1")] for row in rows])
        np.testing.assert_allclose(found[:, :2], points, atol=1e-3)
        np.testing.assert_allclose(found[:, 2:], points + SHIFT, atol=1e-3)

        report = json.loads(run_ok("match", *pair, "--points", out / "p.csv", "--json"))
        np.testing.assert_allclose([[row["x0"], row["y0"]] for row in report["points"]], points, atol=1e-3)

        run_ok("match", *pair, "--points", out / "p.csv", "-o", out / "m.npz", "--draw", out / "m.png")
        np.testing.assert_allclose(read_matches(out / "m.npz")[0].points0, points, atol=1e-3)

    def test_columns_of_the_points_are_kept(self, pair: tuple[str, str], out: Path) -> None:
        (out / "p.csv").write_text("id;u;v;name\n007;1,5;2;left eye\n8;30;40;beak\n")
        rows = list(csv.DictReader(StringIO(run_ok("match", *pair, "--points", out / "p.csv"))))
        assert [(row["id"], row["name"], row["x1"]) for row in rows] == [
            ("007", "left eye", "6.500"),
            ("8", "beak", "35.000"),
        ]
        report = json.loads(run_ok("match", *pair, "--points", out / "p.csv", "--json"))
        assert [row["name"] for row in report["points"]] == ["left eye", "beak"]
        names = ("m.npz", "m.csv", "m.h5", "m.json", "m.coco.json")
        for name in names:
            run_ok("match", *pair, "--points", out / "p.csv", "-o", out / name)
        assert read_matches(out / "m.h5")[1]["columns"]["name"] == ["left eye", "beak"]
        assert json.loads((out / "m.json").read_text())["points"][0]["id"] == "007"
        table = read_point_table(out / "m.coco.json")
        assert (table.images, table.parts) == (("b.png", "b.png"), ("left eye", "beak"))
        assert table.points.tolist() == [[6.5, 0], [35, 38]]

    def test_points_of_this_image_in_a_coco_file(self, pair: tuple[str, str], out: Path) -> None:
        path = write_json(out / "p.json", coco_values())
        rows = json.loads(run_ok("match", *pair, "--points", path, "--json"))["points"]
        assert [(row["x0"], row["part"]) for row in rows] == [(1, "left eye"), (5, "beak")]

    @pytest.mark.parametrize(
        "command",
        [
            ("match",),
            ("flow", "-o", "f.flo"),
            ("pose", "--intrinsics", "90,90,40,32"),
            ("align", "-o", "w.png"),
        ],
        ids=lambda words: words[0],
    )
    def test_the_matcher_reads_the_images_itself(
        self,
        command: tuple[str, ...],
        pair: tuple[str, str],
        out: Path,
        shift_matchers: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """It reduces them while it reads them, so that no command holds them at full size."""
        monkeypatch.chdir(out)
        runner.invoke(app, [command[0], *pair, *command[1:]])
        assert shift_matchers[-1].images == [Path(each) for each in pair]

    def test_options_reach_the_matcher(self, pair: tuple[str, str], shift_matchers: list[Any]) -> None:
        sizes = ("--max-side", "none", "--keypoints", "grid", "--max-keypoints", "9")
        run_ok("match", *pair, *sizes, "--ratio", "0.8", "--min-score", "0.2", "--no-mutual", "--no-refine")
        config = shift_matchers[-1].config
        assert (config.max_side, config.keypoints, config.max_keypoints) == (None, "grid", 9)
        assert (config.ratio, config.min_score) == (0.8, 0.2)
        assert (config.use_mutual, config.use_refinement) == (False, False)

    @pytest.mark.parametrize("command", ["match", "flow", "pose", "align"])
    def test_consensus_reaches_the_matcher(
        self, command: str, pair: tuple[str, str], out: Path, shift_matchers: list[Any]
    ) -> None:
        needed = {"flow": ("-o", out / "f.npz"), "pose": ("--intrinsics", "50,50,40,32")}.get(command, ())
        for options, expected in (((), True), (("--no-consensus",), False), (("--consensus",), True)):
            arguments = (command, *pair, *needed, *options, "--overwrite")
            runner.invoke(app, [str(argument) for argument in arguments])
            assert shift_matchers[-1].config.consensus is expected
        assert len(shift_matchers) == 3

    def test_masks_reach_the_matcher(
        self, pair: tuple[str, str], out: Path, shift_matchers: list[Any]
    ) -> None:
        values = np.zeros((64, 80), np.uint8)
        values[:10] = 255
        PIL.Image.fromarray(values).save(out / "mask.png")
        run_ok("match", *pair, "--mask", out / "mask.png")
        both = shift_matchers[-1].calls[-1]
        assert torch.equal(both["mask0"], torch.from_numpy(values != 0))
        assert torch.equal(both["mask1"], torch.from_numpy(values != 0))
        run_ok("match", *pair, "--mask1", out / "mask.png")
        assert sorted(shift_matchers[-1].calls[-1]) == ["mask1"]

    def test_overwrite(self, pair: tuple[str, str], out: Path) -> None:
        (out / "m.npz").write_bytes(b"old")
        run_ok("match", *pair, "-o", out / "m.npz", "--overwrite")
        assert len(read_matches(out / "m.npz")[0]) == 40

    def test_nothing_is_left_beside_the_outputs(self, pair: tuple[str, str], out: Path) -> None:
        run_ok("match", *pair, "-o", out / "m.npz")
        assert [path.name for path in out.iterdir()] == ["m.npz"]


class TestFlow:
    def test_outputs(self, pair: tuple[str, str], out: Path) -> None:
        text = run_ok("flow", *pair, "-o", out / "f.flo", "--draw", out / "f.png")
        assert "80 × 64 vectors" in text
        assert read_flo(out / "f.flo")[0, 0].tolist() == list(SHIFT)
        assert read_image(out / "f.png").shape[2] == 1600

    def test_json(self, pair: tuple[str, str], out: Path) -> None:
        report = json.loads(run_ok("flow", *pair, "-o", out / "f.npz", "--json"))
        assert report["flow_hw"] == [64, 80]
        assert report["mean_confidence"] == 1.0
        assert read_flow(out / "f.npz")[1]["weights"]["name"] == "shift"

    def test_an_output_is_required(self, pair: tuple[str, str]) -> None:
        result = runner.invoke(app, ["flow", *pair])
        assert result.exit_code == 2
        assert "nothing to write" in result.output


class TestDemo:
    @pytest.mark.slow
    def test_scores_and_images(self, out: Path) -> None:
        text = run_ok("demo", "-o", out / "demo")
        assert "known disparity" in text
        assert "dense PCK@3" in text
        assert "ab" * 32 in text
        assert sorted(path.name for path in (out / "demo").iterdir()) == ["flow.png", "matches.png"]

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["matches.png", "flow.png"])
    def test_images_are_kept_unless_overwrite(self, out: Path, name: str, shift_matchers: list[Any]) -> None:
        (out / name).write_bytes(b"mine")
        result = runner.invoke(app, ["demo", "-o", str(out)])
        assert result.exit_code == 1
        assert f"{name} exists already and was kept; use --overwrite" in result.stderr
        assert not shift_matchers  # before any work
        assert [path.read_bytes() for path in out.iterdir()] == [b"mine"]
        run_ok("demo", "-o", out, "--overwrite")
        assert (out / name).read_bytes() != b"mine"

    @pytest.mark.slow
    def test_the_default_folder_is_no_exception(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(out)
        run_ok("demo")
        result = runner.invoke(app, ["demo"])
        assert result.exit_code == 1
        assert "use --overwrite" in result.stderr

    @pytest.mark.slow
    def test_json(self, out: Path) -> None:
        report = json.loads(run_ok("demo", "-o", out / "demo", "--json"))
        assert report["matches"] == 40
        assert 0 <= report["known_disparity"] <= 40
        assert set(report["share_within_px"]) == {"1", "3", "5"}
        assert report["dense_known_disparity"] == 343_274
        assert len(report["image0_sha256"]) == 64
