import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ucn.bench import run
from ucn.bench.report import Column, Part, Table
from ucn.bench.settings import Settings
from ucn.cli.app import app

PART = Part(
    (
        Table(
            "Speed",
            (Column("method"), Column("time", "ms")),
            (("ours", 0.08974), ("theirs", None)),
            ("Note.",),
        ),
    ),
)


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Settings]]:
    """Every part gives one small table at once; the list holds the calls."""
    calls: list[tuple[str, Settings]] = []

    def measure(name: str, settings: Settings) -> Part:
        calls.append((name, settings))
        return PART

    monkeypatch.setattr(run, "measure_part", measure)
    return calls


def test_all_parts_by_default(measured: list[tuple[str, Settings]]) -> None:
    result = _invoke("--device", "cpu")
    assert result.exit_code == 0, result.output
    assert [name for name, _ in measured] == list(run.PARTS)
    for text in ("cores", "Speed", "time, ms", "0.0897", "Note."):
        assert text in result.output


def test_settings_arrive(measured: list[tuple[str, Settings]]) -> None:
    arguments = ["--quick", "--thorough", "--seed", "7", "--limit-seconds", "5", "--device", "cpu"]
    assert _invoke("train", "knn", "train", *arguments).exit_code == 0
    assert [name for name, _ in measured] == ["knn", "train"]
    settings = measured[0][1]
    assert (settings.seed, settings.limit_seconds, settings.weights) == (7, 5.0, "geometric")
    assert settings.is_quick
    assert settings.is_thorough


def test_unknown_part_names_the_legal_ones() -> None:
    result = _invoke("knn", "speed")
    assert result.exit_code == 2
    text = " ".join(result.output.replace("│", " ").split())
    assert "no part 'speed': expected knn, transformer, encode, match, growth, startup, train" in text


def test_json_is_one_object(measured: list[tuple[str, Settings]], tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    result = _invoke("knn", "--json", "-o", str(path), "--device", "cpu")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["command"] == "bench"
    assert printed["schema"] == run.SCHEMA
    assert printed["outputs"] == [str(path)]
    assert {"cpu", "cores", "threads", "packages", "load_average", "warnings"} <= printed["machine"].keys()
    table = printed["parts"]["knn"]["tables"][0]
    assert table["columns"][1] == {"name": "time", "unit": "ms"}
    assert table["rows"] == [["ours", 0.08974], ["theirs", None]]
    assert set(printed["parts"]["knn"]) == {"tables", "seconds", "settings"}
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept == {key: value for key, value in printed.items() if key != "outputs"}
    assert [each.name for each in tmp_path.iterdir()] == ["speed.json"]


def test_files_are_kept_without_overwrite(measured: list[tuple[str, Settings]], tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text("mine")
    result = _invoke("knn", "-o", str(path))
    assert result.exit_code == 1
    assert "exists already" in result.output
    assert path.read_text() == "mine"
    assert measured == []  # before the work
    assert _invoke("knn", "-o", str(path), "--overwrite", "--device", "cpu").exit_code == 0


def test_update_keeps_other_parts(measured: list[tuple[str, Settings]], tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    for part in ("train", "knn"):
        result = _invoke(part, "-o", str(path), "--update", "--device", "cpu")
        assert result.exit_code == 0, result.output
    assert list(json.loads(path.read_text(encoding="utf-8"))["parts"]) == ["knn", "train"]
    assert result.output.count("Speed") == 1  # what is printed was measured now
    path.write_text("{}")
    result = _invoke("knn", "-o", str(path), "--update")
    assert result.exit_code == 1
    assert "is no result of `ucn bench`" in " ".join(result.output.split())
    assert _invoke("knn", "--update").exit_code == 2


def test_update_keeps_plots_that_exist(measured: list[tuple[str, Settings]], tmp_path: Path) -> None:
    """They do not say who made them."""
    (tmp_path / "growth.png").write_text("mine")
    arguments = ["knn", "-o", str(tmp_path / "speed.json"), "--plots", str(tmp_path), "--device", "cpu"]
    result = _invoke(*arguments, "--update")
    assert result.exit_code == 1
    assert "growth.png exists already" in result.output
    assert (tmp_path / "growth.png").read_text() == "mine"
    assert measured == []  # before the work
    assert _invoke(*arguments, "--update", "--overwrite").exit_code == 0


def test_update_refuses_other_results_before_the_work(
    measured: list[tuple[str, Settings]], tmp_path: Path
) -> None:
    path = tmp_path / "speed.json"
    assert _invoke("knn", "-o", str(path), "--device", "cpu").exit_code == 0
    measured.clear()
    result = _invoke("knn", "-o", str(path), "--update", "--quick", "--device", "cpu")
    assert result.exit_code == 1
    assert "quick and full results are not mixed" in " ".join(result.output.split())
    assert measured == []


@pytest.mark.parametrize("use_json", [True, False])
def test_a_failed_part_is_reported_and_the_others_are_kept(
    use_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(name: str, settings: Settings) -> Part:
        if name == "knn":
            raise RuntimeError("no memory")
        return PART

    monkeypatch.setattr(run, "measure_part", measure)
    path = tmp_path / "speed.json"
    arguments = ["knn", "encode", "-o", str(path), "--device", "cpu", *(["--json"] if use_json else [])]
    result = _invoke(*arguments)
    assert result.exit_code == 1
    assert "error: part knn failed: RuntimeError: no memory" in result.stderr
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert list(kept["parts"]) == ["encode"]
    assert kept["failures"] == {"knn": "RuntimeError: no memory"}
    if use_json:
        assert json.loads(result.stdout)["failures"] == kept["failures"]
    else:
        for text in ("Speed", "0.0897", "Parts that failed", "RuntimeError: no memory", "written"):
            assert text in result.stdout
    assert "Traceback" not in result.stderr
    assert "Traceback" in _invoke(*arguments, "--overwrite", "--debug").stderr


def test_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(*_: Any) -> Part:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure_part", stop)
    result = _invoke("knn", "-o", str(tmp_path / "speed.json"), "--device", "cpu")
    assert result.exit_code == 130
    assert "interrupted" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--xfeat", "missing.onnx"], "no XFeat network at missing.onnx"),
        (["--weights", "geometrc"], "no shipped weights 'geometrc': expected one of geometric"),
        (["--device", "abacus"], "--device must be cpu, cuda"),
        (["-o", "nowhere/speed.json"], "nowhere does not exist"),
    ],
)
def test_wrong_settings(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'baselines' is not installed")
    monkeypatch.chdir(tmp_path)
    result = _invoke("knn", *arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_curves_are_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    columns = (Column("size", "count"), Column("time", "ms"), Column("extra memory", "MB"))
    table = Table("Side: encoding", columns, ((1, 1.0, 3.0), (2, 4.0, 3.0), (4, 16.0, None)))
    monkeypatch.setattr(run, "measure_part", lambda *_: Part((table,)))
    folder = tmp_path / "curves"
    result = _invoke("growth", "--device", "cpu", "--plots", str(folder))
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in folder.iterdir()) == ["growth.png", "growth.svg"]
    assert "growth.svg" in result.output
    again = _invoke("growth", "--device", "cpu", "--plots", str(folder))
    assert again.exit_code == 1
    assert "exists already" in again.output


def test_a_real_quick_run() -> None:
    result = _invoke("transformer", "--quick", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    (table,) = json.loads(result.stdout)["parts"]["transformer"]["tables"]
    assert table["rows"][0][:2] == ["float32", "forward"]
    assert table["rows"][0][2] > 0
