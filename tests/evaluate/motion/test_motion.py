"""Camera motion from matches to report, on drives along bands of a wall at four depths."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from typer.testing import CliRunner

from support.evaluation_cases import share_with_copies
from ucn.cli.app import app
from ucn.errors import DataError
from ucn.evaluate.core import predictions as core_predictions
from ucn.evaluate.core.benchmark_pairs import ALL
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.core.report import to_dict, write_csv, write_latex, write_markdown
from ucn.evaluate.motion import report as pose_report
from ucn.evaluate.motion.predictions import MOTION_BENCHMARKS, MotionPair, MotionVariant, predict_frames
from ucn.evaluate.motion.report import run_camera_motion
from ucn.evaluate.motion.scoring import MotionScore, score_motions
from ucn.features.method import DenseMethod, LoadedMethods, Method
from ucn.features.sparse import KeypointMatches
from ucn.paper.registry import METHODS

BENCHMARK = MOTION_BENCHMARKS["kitti-odometry"]
BAND = 24  # rows of a band
STEPS = (2, 4, 7, 12)  # pixels that each band moves to the left a frame
HW = (4 * BAND, 240)
FIRST = 1500


def write_drive(root: Path, frames: int = 4, standing: int = 0) -> Path:
    """Frames from 1500 on, along a wall, 1 m to the right each; the first `standing` ones do not move."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (HW[0] // 3, 160), dtype=np.uint8)
    wall: NDArray[np.uint8] = np.asarray(PIL.Image.fromarray(noise).resize((480, HW[0])))
    folder = root / "sequences" / "05"
    places = [max(0, frame - standing) for frame in range(frames)]
    for frame, place in enumerate(places):
        bands = [
            wall[BAND * band : BAND * (band + 1), 100 + step * place :][:, : HW[1]]
            for band, step in enumerate(STEPS)
        ]
        for camera in (0, 1):
            path = folder / f"image_{camera}" / f"{FIRST + frame:06d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(np.concatenate(bands)).save(path)
    # A focal length of 100: the bands are 50, 25, 14.3 and 8.3 m away.
    (folder / "calib.txt").write_text(
        "P0: 100 0 120 0 0 100 48 0 0 0 1 0\nP1: 100 0 120 -50 0 100 48 0 0 0 1 0\n"
    )
    (root / "poses").mkdir()
    lines = [f"1 0 0 {place} 0 1 0 0 0 0 1 0" for place in [*[0] * FIRST, *places]]
    (root / "poses" / "05.txt").write_text("\n".join(lines))
    return root


class Oracle:
    """Knows how bands move; the description of an image is the frame it shows.

    Attributes:
        described: how many images it was shown.
        matched: how many pairs it was asked for.
    """

    def __init__(self, error: float = 0.0, count: int = 60) -> None:
        self.error, self.count = error, count
        self.described = self.matched = 0

    def extract(self, image: Tensor) -> Tensor:
        self.described += 1
        return image

    def match(self, described0: Tensor, described1: Tensor) -> KeypointMatches:
        self.matched += 1
        generator = torch.Generator().manual_seed(0)
        points0 = torch.rand(self.count, 2, generator=generator) * torch.tensor([120.0, 76.0])
        points0 += torch.tensor([90.0, 10.0])
        frames = _find_gap(described0, described1)
        bands = (points0[:, 1] / BAND).long().clamp(0, 3)
        points1 = points0.clone()
        points1[:, 0] -= frames * torch.tensor(STEPS, dtype=torch.float32)[bands]
        points1 += self.error * torch.randn(self.count, 2, generator=generator)
        return KeypointMatches(points0, points1, torch.linspace(1, 0, self.count))


def _find_gap(image0: Tensor, image1: Tensor) -> int:
    """By how many frames the last band moved."""
    band0, band1 = image0[0, -BAND:], image1[0, -BAND:]
    for gap in range(6):
        step = STEPS[-1] * gap
        if torch.equal(band0[:, step:], band1[:, : HW[1] - step]):
            return gap
    raise AssertionError("these frames are not of one drive")


class Silent(Oracle):
    """Finds nothing."""

    def match(self, described0: Tensor, described1: Tensor) -> KeypointMatches:
        nothing = torch.zeros(0, 2)
        return KeypointMatches(nothing, nothing, nothing[:, 0])


class OracleMethod(Method):
    def match(self, features0: Tensor, features1: Tensor) -> KeypointMatches:
        found = self.extractor.match(features0, features1)
        assert isinstance(found, KeypointMatches)
        return found


def make_method(name: str = "oracle", matcher: Any = None) -> Method:
    return OracleMethod(name, f"the method {name}", {"synthetic": name}, extractor=matcher or Oracle())


def settings(cache: Path, **changes: Any) -> RunSettings:
    return replace(RunSettings(cache=cache, command="ucn evaluate kitti-odometry"), **changes)


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drive(tmp_path_factory.mktemp("drive"))


def match_all(drive: Path, cache: Path, *methods: Method) -> tuple[list[MotionPair], list[MotionVariant]]:
    pairs = BENCHMARK.open(drive)
    variants = [MotionVariant(method, False) for method in methods]
    return predict_frames(BENCHMARK, pairs, range(len(pairs)), variants, cache), variants


def test_processes_can_share_the_frames(drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_predictions, "share_work", share_with_copies)
    pairs = BENCHMARK.open(drive)
    variants = [MotionVariant(METHODS.load_sparse(["daisy"]).methods[0], False)]
    seen: list[tuple[int, int]] = []
    alone, shared = (
        predict_frames(
            BENCHMARK,
            pairs,
            range(3),
            variants,
            tmp_path / str(jobs),
            lambda done, total: seen.append((done, total)),
            jobs,
        )
        for jobs in (1, 2)
    )
    assert seen == [(1, 3), (2, 3), (3, 3)] * 2
    for own, other in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(own.t, other.t)
        np.testing.assert_array_equal(own.matches[0].points0, other.matches[0].points0)
        np.testing.assert_array_equal(own.matches[0].points1, other.matches[0].points1)


class TestPairs:
    def test_all_frames_take_part_by_their_gap(self, drive: Path) -> None:
        (drive / "sequences/05/image_1/001501.png").unlink(missing_ok=True)  # the right image is not needed
        pairs = BENCHMARK.open(drive)
        assert [(pair.name, pair.group) for pair in pairs] == [
            ("05/001500-001501", "gap 1"),
            ("05/001500-001502", "gap 2"),
            ("05/001500-001503", "gap 3"),
            ("05/001501-001502", "gap 1"),
            ("05/001501-001503", "gap 2"),
            ("05/001502-001503", "gap 1"),
        ]

    def test_another_sequence_is_not_it(self, drive: Path, tmp_path: Path) -> None:
        other = write_drive(tmp_path)
        (other / "sequences/05").rename(other / "sequences/06")
        (other / "poses/05.txt").rename(other / "poses/06.txt")
        with pytest.raises(DataError, match=r"no pair of frames 1500-1539 of sequence 05; unpack that"):
            BENCHMARK.open(other)
        with pytest.raises(DataError, match="is empty"):
            MOTION_BENCHMARKS["kitti-odometry-train"].open(drive)

    def test_real_frames(self, data_folder: Path) -> None:
        pairs = BENCHMARK.open(data_folder / "kitti_odometry")
        assert len(pairs) == 26 + 25 + 24 + 23 + 22  # of frames 1513 to 1539
        assert {pair.group for pair in pairs} == {f"gap {gap}" for gap in range(1, 6)}

    def test_raw_drives_without_an_official_number(self, data_folder: Path) -> None:
        pairs = MOTION_BENCHMARKS["kitti-raw"].open(data_folder / "kitti_raw")
        assert [pair.group for pair in pairs] == ["gap 1", "gap 2", "gap 1"]


class TestFirstStage:
    def test_matches_are_kept_and_not_found_again(self, drive: Path, tmp_path: Path) -> None:
        oracle = Oracle()
        first, _ = match_all(drive, tmp_path, make_method(matcher=oracle))
        assert (oracle.matched, oracle.described) == (6, 4)  # each image once
        second, _ = match_all(drive, tmp_path, make_method(matcher=oracle))
        assert oracle.matched == 6
        for pair, again in zip(first, second, strict=True):
            assert pair.R.tolist() == again.R.tolist() == np.eye(3).tolist()
            np.testing.assert_array_equal(pair.matches[0].points1, again.matches[0].points1)
        assert first[1].t.tolist() == [-2, 0, 0]
        assert first[0].K0.tolist() == [[100, 0, 120], [0, 100, 48], [0, 0, 1]]

    def test_the_best_matches_are_kept(self, drive: Path, tmp_path: Path) -> None:
        few = replace(BENCHMARK, max_matches=7)
        pairs = few.open(drive)
        variant = MotionVariant(make_method(), False)
        cut = predict_frames(few, pairs, [0], [variant], tmp_path)[0].matches[0]
        whole = predict_frames(BENCHMARK, pairs, [0], [variant], tmp_path)[0].matches[0]
        assert (len(cut.points0), cut.found, len(whole.points0)) == (7, 60, 60)
        np.testing.assert_array_equal(cut.points0, whole.points0[:7])

    def test_alignment_repairs_small_errors(self, drive: Path, tmp_path: Path) -> None:
        method = make_method(matcher=Oracle(error=0.5, count=200))
        variants = [MotionVariant(method, is_aligned) for is_aligned in (False, True)]
        pair = predict_frames(BENCHMARK, BENCHMARK.open(drive), [0], variants, tmp_path)[0]
        plain, aligned = (np.abs(found.points1[:, 1] - found.points0[:, 1]) for found in pair.matches)
        assert np.median(aligned) < 0.1 * np.median(plain)
        assert method.extractor.matched == 1


class TestScores:
    def test_true_matches_give_the_true_motion(self, drive: Path, tmp_path: Path) -> None:
        pairs, variants = match_all(drive, tmp_path, make_method())
        scores = score_motions(pairs, variants, ["poselib"], 1.0)
        assert [figure.group for figure in scores.scores] == ["gap 1", "gap 2", "gap 3", ALL]
        assert [figure.pairs for figure in scores.scores] == [3, 2, 1, 6]
        for figure in scores.scores:
            assert figure.failures == 0
            assert figure.rotation_mean < 1e-3
            assert figure.translation_mean < 1e-3
            assert figure.auc_5 > 0.999
            assert figure.inliers == figure.matches == figure.found == 60

    def test_no_matches_are_failures_at_180_degrees(self, drive: Path, tmp_path: Path) -> None:
        pairs, variants = match_all(drive, tmp_path, make_method(), make_method("silent", Silent()))
        scores = score_motions(pairs, variants, ["poselib", "opencv"], 1.0, reference="oracle")
        silent = [figure for figure in scores.scores if figure.method == "silent" and figure.group == ALL]
        assert len(silent) == 2
        for figure in silent:
            assert (figure.failures, figure.rotation_mean, figure.translation_median) == (6, 180, 180)
            assert (figure.auc_5, figure.auc_20, figure.matches, figure.inliers) == (0, 0, 0, 0)
        differences = {item.estimator: item for item in scores.differences}
        assert set(differences) == {"poselib", "opencv"}
        assert differences["poselib"].rotation == pytest.approx(180, abs=0.01)
        assert differences["poselib"].reference == "oracle"

    def test_means_medians_and_failures_by_hand(self, drive: Path, tmp_path: Path) -> None:
        pairs, variants = match_all(drive, tmp_path, make_method())
        # The truth of two pairs is changed, by 3 degrees and by half a turn.
        angle = np.deg2rad(3)
        turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        changed = [replace(pairs[0], R=turn), replace(pairs[3], t=-pairs[3].t), pairs[5]]
        figures = score_motions(changed, variants, ["poselib"], 1.0).scores
        overall = next(figure for figure in figures if figure.group == ALL)
        assert overall.rotation_mean == pytest.approx(1, abs=1e-3)
        assert overall.rotation_median == pytest.approx(0, abs=1e-3)
        assert overall.translation_mean == pytest.approx(60, abs=1e-3)
        assert overall.line_mean == pytest.approx(0, abs=1e-3)
        assert overall.failures == 0
        # Larger errors are 3, 180 and 0: the curve rises to 1/3 at 0 and to 2/3 at 3, and is level to 5.
        assert overall.auc_5 == pytest.approx((3 * 0.5 + 2 * 2 / 3) / 5, abs=1e-3)

    def test_frames_of_a_standing_car_are_left_out(self, tmp_path: Path) -> None:
        drive = write_drive(tmp_path / "data", standing=1)
        pairs, variants = match_all(drive, tmp_path / "cache", make_method())
        scores = score_motions(pairs, variants, ["poselib"], 1.0)
        assert scores.still == ("05/001500-001501",)
        assert scores.pairs == 5
        with pytest.raises(DataError, match=r"in none of the 1 pairs the camera moved by 0\.1 m"):
            score_motions(pairs[:1], variants, ["poselib"], 1.0)

    def test_pairs_can_be_sent_to_other_processes(self, drive: Path, tmp_path: Path) -> None:
        pairs, variants = match_all(drive, tmp_path, make_method(matcher=Oracle(error=0.5)))
        copied = pickle.loads(pickle.dumps(pairs))
        figures = [score_motions(chosen, variants, ["poselib"], 1.0).scores for chosen in (pairs, copied)]
        assert figures[0] == figures[1]


class TestMethods:
    @pytest.mark.slow
    def test_classical_methods_find_the_bands(self, drive: Path, tmp_path: Path) -> None:
        loaded = METHODS.load_sparse(["sift", "sift-ratio", "daisy", "kaze"])
        assert [method.name for method in loaded.methods] == ["sift", "sift-ratio", "daisy", "kaze"]
        pairs, variants = match_all(drive, tmp_path, *loaded.methods)
        figures = score_motions(pairs, variants, ["poselib"], 1.0).scores
        overall = {figure.method: figure for figure in figures if figure.group == ALL}
        for name in ("sift", "sift-ratio", "kaze"):
            assert overall[name].failures == 0
            assert overall[name].translation_median < 2
        assert overall["sift-ratio"].found < overall["sift"].found

    def test_a_dense_peer_answers_between_its_cells(self, drive: Path) -> None:
        from ucn.data.io import read_image
        from ucn.features.classical import DenseSift

        paths = BENCHMARK.open(drive)[0]
        images = [read_image(path) for path in paths.data.image_paths(0)]
        method = DenseMethod("sift", "", {}, extractor=DenseSift(), max_corners=4096)
        found = method.match(*map(method.extract, images))
        assert len(found.points0) > 50
        moved = (found.points1 - found.points0)[:, 0]
        assert (moved[:50].round().abs() > 0).any()
        assert (found.scores[:-1] >= found.scores[1:]).all()


@pytest.fixture(scope="module")
def report(drive: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    methods = [make_method("sift", Oracle(0.3)), make_method("silent", Silent())]
    loaded = LoadedMethods(methods, {"xfeat": "its file is absent"})
    seen: list[tuple[int, int]] = []
    report = run_camera_motion(
        BENCHMARK,
        drive,
        loaded,
        settings(tmp_path_factory.mktemp("cache"), limit=4),
        lambda done, total: seen.append((done, total)),
    )
    assert seen == [(done, 8) for done in range(1, 9)]
    return report


class TestReport:
    def test_tables_name_everything(self, report: Any) -> None:
        text = " ".join(write_markdown(report).split())  # without line breaks
        for words in (
            "All 4 pairs, poselib",
            "All 4 pairs, opencv",
            "Rotation error in degrees by frames apart, mean / median (failures), poselib",
            "Translation error in degrees by frames apart",
            "Difference from `sift` on the same pairs",
            "| sift, aligned |",
            "180.0000 / 180.0000",
            "threshold 0.5 px from the epipolar line, seed 0",
            "the best 500 of each method by its own order",
            "4 pairs of 6, evenly spread (--limit)",
            "`xfeat` was skipped: its file is absent",
            "paper: rotation, °",
            "Agrawal et al. (cited)",
        ):
            assert words in text, words
        assert "nan" not in text.lower()

    def test_every_table_is_rectangular(self, report: Any) -> None:
        for table in report.tables:
            assert all(len(row) == len(table.header) for row in table.rows)
        assert write_latex(report)

    def test_json_holds_no_nan(self, report: Any) -> None:
        values = json.loads(json.dumps(to_dict(report), allow_nan=False))
        assert values["threshold_px"] == 0.5
        assert values["max_matches"] == 500
        assert len(values["figures"]) == 2 * 2 * 2 * len({row["group"] for row in values["figures"]})
        assert {item["reference"] for item in values["differences"]} == {"sift"}
        header = write_csv(report).splitlines()[0].split(",")
        assert header[1:] == list(MotionScore.__dataclass_fields__)

    def test_nothing_to_measure_is_said(self, drive: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no method can be evaluated: xfeat: absent"):
            run_camera_motion(BENCHMARK, drive, LoadedMethods([], {"xfeat": "absent"}), settings(tmp_path))

    def test_without_refinement_nothing_is_aligned(self, drive: Path, tmp_path: Path) -> None:
        loaded = LoadedMethods([make_method()])
        report = run_camera_motion(BENCHMARK, drive, loaded, settings(tmp_path, refinements=(False,)))
        assert {row["is_aligned"] for row in report.rows} == {False}
        assert not any(table.title.startswith("difference") for table in report.tables)

    def test_one_pair_has_no_interval(self, drive: Path, tmp_path: Path) -> None:
        loaded = LoadedMethods([make_method("sift", Oracle(0.3)), make_method("other", Oracle(0.5))])
        report = run_camera_motion(BENCHMARK, drive, loaded, settings(tmp_path, limit=1))
        (table,) = (table for table in report.tables if table.title.startswith("difference"))
        assert all("(" not in cell for row in table.rows for cell in row)
        for text in (table.title, *report.protocol):
            assert "interval" not in text

    def test_every_curve_looks_different(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn: list[Any] = []
        monkeypatch.setattr(pose_report, "save_plot", lambda canvas, caption: drawn.append(canvas))
        methods = [make_method(f"method {number}") for number in range(17)]
        variants = [MotionVariant(method, use) for method in methods for use in (False, True)]
        values: dict[str, Any] = dict.fromkeys(MotionScore.__dataclass_fields__, 1.0)
        values |= {"estimator": "poselib", "group": "gap 1"}
        figures = [
            MotionScore(**values | {"method": variant.method.name, "is_aligned": variant.is_aligned})
            for variant in variants
        ]
        results = SimpleNamespace(scores=figures)
        run = SimpleNamespace(results=results, loaded=SimpleNamespace(methods=methods), variants=variants)
        pose_report._plot(run)  # type: ignore[arg-type]
        lines = drawn[0].axes[0].lines
        looks = {
            (line.get_color(), line.get_linestyle(), line.get_linewidth(), line.get_markerfacecolor())
            for line in lines
        }
        assert len(looks) == len(lines) == 34


def test_the_command(drive: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", "kitti-odometry", "--data", str(drive), "--methods", "sift", "-o", str(tmp_path)]
    result = CliRunner().invoke(app, [*arguments, "--limit", "2", "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["pairs"] == 2
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {
        *(".json", ".csv", ".md", ".tex", ".png", ".svg"),
    }
    wrong = CliRunner().invoke(app, [*arguments[:5], "no-such", "-o", str(tmp_path / "other")])
    assert wrong.exit_code == 1
    assert "no method 'no-such' (there are" in wrong.output
