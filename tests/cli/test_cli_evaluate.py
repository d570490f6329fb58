import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evaluation_cases import write_sequence
from ucn.cli.app import app

runner = CliRunner()


def run(*arguments: object) -> tuple[int, str]:
    result = runner.invoke(app, ["evaluate", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def no_sample_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)


def test_shipped_pair_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "results"
    code, output = run("motorcycle", "--methods", "daisy,hog,xfeat", "-o", out)
    assert code == 0, output
    assert "skipped xfeat: XFeat's ONNX file not found" in output
    for words in ("daisy", "@10", "median error", "no ratio test", "2,000 points"):
        assert words in output
    assert {path.name for path in out.iterdir()} == {
        "predictions",
        *(f"motorcycle.{end}" for end in ("json", "csv", "md", "png")),
    }
    assert (
        f"ucn evaluate motorcycle --methods daisy,hog,xfeat -o {out}" in (out / "motorcycle.md").read_text()
    )
    values = json.loads((out / "motorcycle.json").read_text())
    found = {
        (f["method"], f["use_refinement"], f["limit"]): f["per_point"]
        for f in values["figures"]
        if f["group"] == "motorcycle"
    }
    assert found["daisy", True, 10.0] > 0.6
    assert found["daisy", True, 3.0] > found["daisy", False, 3.0]

    code, output = run("motorcycle", "--methods", "daisy", "-o", out)
    assert (code, "exists already" in output) == (1, True)


def test_json_and_only_cells(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    code, output = run(
        *("hpatches", "--data", tmp_path / "data", "--methods", "daisy", "--limit", 1, "--seed", 3),
        *("--no-refinement", "-o", tmp_path / "out", "--cache", tmp_path / "kept", "--json"),
    )
    assert code == 0, output
    values = json.loads(output)
    assert {figure["use_refinement"] for figure in values["figures"]} == {False}
    assert (values["pairs"], values["pairs_of_benchmark"], values["seed"]) == (1, 5, 3)
    assert values["command"].endswith(
        f"--limit 1 --seed 3 --no-refinement -o {tmp_path / 'out'} --cache {tmp_path / 'kept'}"
    )
    assert (tmp_path / "kept" / "hpatches").is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hpatch",), "no benchmark 'hpatch'; did you mean 'hpatches'?"),
        (("hpatches",), "hpatches needs its data: give the folder with --data DIR"),
        (("motorcycle", "--methods", "shift"), "no method 'shift'; did you mean 'sift'?"),
        (("motorcycle", "--methods", "trunk"), "no method can be measured: trunk: GoogLeNet"),
        (("motorcycle", "--methods", ","), "no method can be measured: none was asked for"),
        (("motorcycle", "--weights-file", "missing.safetensors", "--methods", "hog"), "no weights"),
        (("motorcycle", "--methods", "hog", "--device", "abacus"), "--device must be cpu"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    code, output = run(*arguments, "-o", tmp_path / "out")
    assert code == 1
    assert message in output
    assert "Traceback" not in output


def test_folder_of_another_set(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    code, output = run("cub", "--data", tmp_path / "data", "--methods", "hog", "-o", tmp_path / "out")
    assert code == 1
    assert "it looks like 'hpatches'" in output


def test_paths_of_sample_data_are_said_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sequence(tmp_path / "data" / "planes", "v_one")
    monkeypatch.setenv("UCN_DATA", str(tmp_path / "data"))
    code, output = run(
        *("hpatches", "--data", tmp_path / "data" / "planes", "--methods", "daisy", "--limit", 1),
        *("-o", tmp_path / "out", "--json"),
    )
    assert code == 0, output
    assert "--data $UCN_DATA/planes " in json.loads(output)["command"]
