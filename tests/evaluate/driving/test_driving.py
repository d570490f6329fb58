"""Points of driving scenes: both kinds of questions, camera baselines, classes of things, report, errors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner

from support.driving_cases import DRIVE, HW, STEP, make_benchmark
from support.evaluation_cases import BlankExtractor, make_method, share_with_copies
from ucn.cli.app import app
from ucn.errors import DataError
from ucn.evaluate.core import predictions as core_predictions
from ucn.evaluate.core.metrics import point_errors
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.core.report import DRIVING_PLOTS, to_dict, write_csv, write_latex, write_markdown
from ucn.evaluate.driving.benchmarks import DRIVING_BENCHMARKS
from ucn.evaluate.driving.groups import group_by_baseline, group_by_class, measure_baselines, name_baseline
from ucn.evaluate.driving.report import CLASSES_PLOT, DrivingRun, build_driving_report, run_driving
from ucn.features.method import LoadedMethods
from ucn.paper.registry import METHODS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("driving")


def write_mask(masks: Path, frame: int, values: object) -> Path:
    path = masks / DRIVE / f"{frame:010d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.asarray(values, np.uint8)).save(path)
    return path


def make_mask() -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Class 7 at the left, class 2 at the right."""
    mask = np.full(HW, 7, np.uint8)
    mask[:, HW[1] // 2 :] = 2
    return mask


@pytest.fixture(scope="module")
def masks(folder: Path) -> Path:
    write_mask(folder / "masks", 0, make_mask())
    (folder / "masks" / "classes.csv").write_text("2,road\n9,sky\n")
    return folder / "masks"


@pytest.fixture(scope="module")
def run(folder: Path, masks: Path) -> DrivingRun:
    loaded = METHODS.load_dense(["sift", "hog"])
    loaded.methods.append(make_method("blank", BlankExtractor()))
    return run_driving(
        make_benchmark(folder / "wall"), Path(), loaded, RunSettings(folder / "cache", command="ucn …"), masks
    )


def measure(run: DrivingRun, folder: Path) -> list[float]:
    pairs = [pair.pair for pair in run.dense.predictions.pairs]
    return measure_baselines(pairs, folder / "cache" / "kitti-raw-points")


def test_baselines_have_names() -> None:
    assert name_baseline(0.0) == name_baseline(0.99) == "0 to 1 m"
    assert name_baseline(1.0) == "1 to 2 m"
    assert name_baseline(15.9) == "8 to 16 m"
    assert name_baseline(16.0) == name_baseline(900.0) == "over 16 m"


def test_dense_and_at_keypoints(run: DrivingRun) -> None:
    assert [method.name for method in run.dense.methods] == ["sift", "hog", "blank"]
    assert [method.name for method in run.keypoints.methods] == ["sift at keypoints", "hog", "blank"]
    assert run.dense.point_count == 3 * 60
    assert run.keypoints.point_count == 3 * 60  # more keypoints than that lie on the wall
    assert run.keypoints.predictions.points_sha256 != run.dense.predictions.points_sha256
    for part, name in ((run.dense, "sift"), (run.keypoints, "sift at keypoints")):
        found = {
            (figure.method, figure.limit): figure.per_point
            for figure in part.results.scores
            if figure.use_refinement
        }
        assert found[name, 5.0] > 0.7
        assert found["blank", 5.0] < 0.2
        assert {limit for _, limit in found} == {5.0, 10.0, 30.0}


def test_figures_by_baseline_are_those_of_their_pairs(run: DrivingRun, folder: Path) -> None:
    metres = measure_baselines(
        [pair.pair for pair in run.dense.predictions.pairs], folder / "cache" / "kitti-raw-points"
    )
    assert metres == [1.0, 3.0, 2.0]
    grouped = group_by_baseline(run.dense.predictions, metres)
    assert [pair.pair.group for pair in grouped.pairs] == ["1 to 2 m", "2 to 4 m", "2 to 4 m"]
    assert [pair.pair.name[-1] for pair in grouped.pairs] == ["1", "3", "3"]
    place = [variant.method.name for variant in run.dense.predictions.variants].index("blank")
    for group, rows in {"1 to 2 m": [0], "2 to 4 m": [1, 2], "all": [0, 1, 2]}.items():
        pairs = [run.dense.predictions.pairs[row] for row in rows]
        errors = np.concatenate([point_errors(pair.predicted[place], pair.points1) for pair in pairs])
        figure = next(
            figure
            for figure in run.baselines.scores
            if (figure.method, figure.group, figure.limit) == ("blank", group, 30.0)
        )
        assert figure.per_point == pytest.approx(float((errors <= 30).mean()))
        assert figure.points == len(errors)


def test_baselines_are_kept(run: DrivingRun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_baselines(
        [pair.pair for pair in run.dense.predictions.pairs], folder / "cache" / "kitti-raw-points"
    )
    monkeypatch.setattr("support.driving_cases.Wall.relative_pose", lambda *_: pytest.fail("asked again"))
    assert measure_baselines(
        [pair.pair for pair in run.dense.predictions.pairs], folder / "cache" / "kitti-raw-points"
    ) == [1.0, 3.0, 2.0]


def test_classes_of_points(run: DrivingRun, masks: Path) -> None:
    grouped, unmasked = group_by_class(run.dense.predictions, masks)
    assert unmasked == run.unmasked == 1  # frame 1 has no mask
    assert [pair.pair.group for pair in grouped.pairs] == ["road", "road", "class 7", "class 7"]
    for pair in grouped.pairs:
        is_right = pair.points0[:, 0] >= HW[1] // 2
        assert is_right.all() if pair.pair.group == "road" else not is_right.any()
        gap = 1 if pair.pair.name.endswith("1") else 3
        np.testing.assert_allclose(pair.points0 - pair.points1, [[STEP * gap, 0]] * len(pair.points0))
        assert {len(found) for found in pair.predicted} == {len(pair.points0)}
    assert sum(len(pair.points0) for pair in grouped.pairs) == 2 * 60
    assert run.classes is not None
    assert {figure.group for figure in run.classes.scores} == {"road", "class 7", "all"}


@pytest.mark.slow
def test_report(run: DrivingRun) -> None:
    report = build_driving_report(run)
    assert [plot.suffix for plot in report.plots] == [*DRIVING_PLOTS, CLASSES_PLOT]
    text = " ".join(write_markdown(report).split())  # without line breaks
    for words in (
        "All methods dense: with sub-cell refinement",
        "Baselines at SIFT keypoints, the others dense",
        "PCK@30 px by camera baseline",
        "1 to 2 m (60 points)",
        "PCK@30 px by semantic class",
        "pairs without a mask, which are left out: 1",
        "kitti-raw-points-keypoints.png",
        "`sift at keypoints`:",
    ):
        assert words in text
    assert "nan" not in text.lower().split()
    lines = write_csv(report).splitlines()
    assert lines[0].startswith("benchmark,table,unit,method")
    assert {line.split(",")[1] for line in lines[1:]} == {"dense", "keypoints", "baseline", "class"}
    plain = to_dict(report)
    assert set(plain["curves"]) == {"dense", "keypoints", "baseline", "class"}
    assert "\\begin{tabular}" in write_latex(report)
    without = build_driving_report(replace(run, classes=None))
    assert [plot.suffix for plot in without.plots] == list(DRIVING_PLOTS)
    assert all("semantic class" not in table.title for table in without.tables)


def test_progress_counts_both_kinds(folder: Path, run: DrivingRun) -> None:
    seen: list[tuple[int, int]] = []
    run_driving(
        make_benchmark(folder / "wall"),
        Path(),
        LoadedMethods([make_method("blank", BlankExtractor())]),
        RunSettings(folder / "cache", limit=2),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (4, 4)
    assert seen == sorted(seen)


def test_processes_can_share_the_pairs(
    folder: Path, run: DrivingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_predictions, "share_work", share_with_copies)
    shared = run_driving(
        make_benchmark(folder / "wall"), Path(), METHODS.load_dense(["sift"]), RunSettings(tmp_path, jobs=2)
    )
    for own, other in ((run.dense, shared.dense), (run.keypoints, shared.keypoints)):
        name = other.methods[0].name
        figures = [figure for figure in own.results.scores if figure.method == name]
        assert figures == list(other.results.scores)


def test_wrong_masks(run: DrivingRun, tmp_path: Path) -> None:
    found = run.dense.predictions
    with pytest.raises(DataError, match=r"no folder .*absent: class masks must be"):
        group_by_class(found, tmp_path / "absent")
    with pytest.raises(
        DataError, match=rf"has no mask of any pair; expected files such as .*{DRIVE}.0+\.png"
    ):
        group_by_class(found, tmp_path)
    write_mask(tmp_path, 0, np.zeros((10, 20)))
    with pytest.raises(DataError, match=r"8-bit grey image of 160 × 80 .* got 20 × 10"):
        group_by_class(found, tmp_path)
    coloured = np.zeros((*HW, 3))
    coloured[..., 0] = 9
    write_mask(tmp_path, 0, coloured)
    with pytest.raises(DataError, match="8-bit grey image"):
        group_by_class(found, tmp_path)


@pytest.mark.parametrize("text", ["road", "x,road", "1,", "1,all", "1,road,2"])
def test_wrong_names_of_classes(run: DrivingRun, tmp_path: Path, text: str) -> None:
    write_mask(tmp_path, 0, make_mask())
    (tmp_path / "classes.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="NUMBER,NAME"):
        group_by_class(run.dense.predictions, tmp_path)
    (tmp_path / "classes.csv").write_bytes(b"\xff")
    with pytest.raises(DataError, match="it is not UTF-8 text"):
        group_by_class(run.dense.predictions, tmp_path)


def test_sizes_cannot_be_changed(folder: Path) -> None:
    settings = RunSettings(folder / "cache", max_side=64)
    with pytest.raises(DataError, match="max_side must be None"):
        run_driving(make_benchmark(folder / "wall"), Path(), LoadedMethods([]), settings)


def test_command_line_refuses_masks_elsewhere(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["evaluate", "mini", "--class-masks", str(tmp_path), "-o", str(tmp_path)]
    )
    assert result.exit_code == 2 or result.exit_code == 1
    assert "has no classes" in " ".join((result.output + str(result.stderr)).split())


def test_real_samples(data_folder: Path) -> None:
    pairs = DRIVING_BENCHMARKS["kitti-raw-points"].open(data_folder / "kitti_raw")
    assert len(pairs) == 3
    odometry = DRIVING_BENCHMARKS["kitti-odometry-points"].open(data_folder / "kitti_odometry")
    assert len(odometry) > 20
    assert len(odometry[0].data.read(odometry[0].index)) > 1000
    with pytest.raises(DataError, match="it looks like 'hpatches'"):
        DRIVING_BENCHMARKS["kitti-raw-points"].open(data_folder / "hpatches")
