import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.evaluation_cases import write_ramp, write_sequence
from ucn.cli.app import app
from ucn.evaluate.evaluations import EVALUATIONS
from ucn.features.names import COLMAP_SIFT
from ucn.files.scratch import lock_output
from ucn.paper.registry import METHODS
from ucn.weights import list_weights

runner = CliRunner()


def run(*arguments: object) -> tuple[int, str]:
    result = runner.invoke(app, ["evaluate", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def no_sample_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)


@pytest.mark.slow
def test_shipped_pair_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "results"
    code, output = run("motorcycle", "--methods", "daisy,hog,xfeat", "-o", out, "--verbose")
    assert code == 0, output
    assert "skipped xfeat: XFeat's ONNX network not found" in output
    assert "or give its path as --xfeat" in " ".join(output.split())
    for words in ("daisy", "@10", "median error", "no ratio test", "2,000 points"):
        assert words in output
    assert output.count("┏") == 3 and "--verbose" not in output
    assert {path.name for path in out.iterdir()} == {
        "predictions",
        *(f"motorcycle.{end}" for end in ("json", "csv", "md", "tex", "png", "svg")),
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

    before = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".csv", ".tex")}
    code, output = run("motorcycle", "--methods", "daisy,hog,xfeat", "-o", out, "--overwrite")
    assert code == 0, output
    assert output.count("┏") == 1  # a table alone, and how to read it
    lines = output.splitlines()[-4:]
    assert [line.split()[0] for line in lines] == ["data", "score", "more", "written"]
    assert "2,000 points" in lines[0] and "PCK@T, the percentage of points" in lines[1]
    assert lines[2].endswith("2 more tables, protocol and methods with --verbose, and in motorcycle.md")
    assert lines[3].endswith(f"{out}/motorcycle.{{json,csv,md,tex,png,svg}}")
    after = {name: (out / name).read_bytes() for name in before}
    assert after["motorcycle.csv"] == before["motorcycle.csv"]  # files have everything either way
    assert after["motorcycle.tex"].count(b"tabular") == before["motorcycle.tex"].count(b"tabular")


@pytest.mark.slow
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
        (("motorcycle", "--methods", "trunk"), "no method can be evaluated: trunk: GoogLeNet"),
        (("motorcycle", "--methods", ","), "no method can be evaluated: none was given"),
        (("motorcycle", "--weights-file", "missing.safetensors", "--methods", "hog"), "no weights"),
        (("motorcycle", "--methods", "hog", "--device", "abacus"), "--device must be cpu"),
        (("own", "--data", "nowhere", "--methods", "hog"), "no folder nowhere"),
        (("hpatches-matches", "--data", "x", "--sheet", "2"), "hpatches-matches has no sheet of matches"),
        (("motorcycle", "--data", "x"), "motorcycle has its data in the package; leave --data out"),
        (("mini", "--data", "x"), "mini has its data in the package; leave --data out"),
        (("hpatches", "--data", "x", "--seeds", "5"), "hpatches does not average over seeds; leave --seeds"),
        (("hpatches", "--data", "x", "--scenes", "a"), "hpatches has no scenes to choose from; leave --sc"),
        (("multiview", "--data", "x", "--scenes", ","), "--scenes names no scene: expected names such as"),
        (("cub", "--data", "x", "--split", "val"), "cub has no choice of splits; leave --split out"),
        (("sintel", "--data", "x", "--subset", "a"), "sintel takes no list of its images; leave --subset"),
        (("cub", "--data", "x", "--subset", "nowhere"), "no list at nowhere: expected a text file of image"),
        (("multiview", "--data", "x", "--classes", "a"), "multiview has no classes to choose from; leave"),
        (("objects", "--data", "x", "--classes", ","), "--classes names no class: expected names such as"),
        (("self", "--data", "x"), "self has its data in the package; leave --data out"),
        (("reconstruction", "--data", "x", "--methods", "foo"), "xfeat-lighterglue, colmap-sift; "),
        (("kitti-odometry", "--data", "x", "--methods", "sfit"), "no method 'sfit'; did you mean 'sift'?"),
        (("pair-score", "--data", "nowhere", "--methods", "geometric"), "no folder nowhere"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    code, output = run(*arguments, "-o", tmp_path / "out")
    assert code == 1
    assert message in output
    assert "Traceback" not in output


def test_unknown_names_list_all_legal_ones(tmp_path: Path) -> None:
    _, output = run("zzz", "-o", tmp_path / "out")
    assert all(name in output for name in EVALUATIONS)
    _, output = run("motorcycle", "--methods", "zzz", "-o", tmp_path / "out")
    assert all(name in output for name in METHODS.list_names())


def test_help_names_every_benchmark_and_method() -> None:
    code, output = run("--help")
    assert code == 0
    words = set(re.findall(r"[\w-]+", output))
    assert set(EVALUATIONS) <= words
    weights = {info.name for info in list_weights()}
    assert {*METHODS.list_names(), *METHODS.list_names("sparse"), COLMAP_SIFT} - weights <= words
    assert "`ucn weights`" in output
    seed = output[output.index("--seed") :].partition("--refinement")[0]
    assert "estimators of pose" in " ".join(re.findall(r"[\w-]+", seed))


@pytest.mark.slow
def test_own_weights_alone(tmp_path: Path, random_weights: Path) -> None:
    arguments = ("motorcycle", "--weights-file", random_weights, "--methods", "random", "--max-side", 160)
    code, output = run(*arguments, "--no-refinement", "--json", "-o", tmp_path / "out")
    assert code == 0, output
    assert {figure["method"] for figure in json.loads(output)["figures"]} == {"random"}


@pytest.mark.parametrize(
    ("option", "value"), [("--limit", 0), ("--jobs", 0), ("--seed", -1), ("--max-side", 8), ("--sheet", -1)]
)
def test_options_out_of_range(option: str, value: int) -> None:
    code, output = run("motorcycle", option, value)
    assert code == 2
    assert option in output
    assert "greater than or equal to" in output


def test_a_second_run_for_the_same_results_is_refused(tmp_path: Path) -> None:
    with lock_output(tmp_path / "motorcycle"):
        code, output = run("motorcycle", "--methods", "daisy", "-o", tmp_path)
    assert code == 1
    assert f"another run is writing {tmp_path / 'motorcycle'}; wait" in " ".join(output.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_predictions_of_other_weights_are_refused_with_both_keys(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    arguments = ("hpatches", "--data", tmp_path / "data", "--methods", "daisy", "--limit", 1, "--overwrite")
    assert run(*arguments, "-o", tmp_path / "out")[0] == 0
    (key_file,) = (tmp_path / "out" / "predictions" / "hpatches").glob("daisy-refined-*/key.json")
    key = json.loads(key_file.read_text())
    key_file.write_text(json.dumps({**key, "method": {"ucn": "ab" * 32}}))
    code, output = run(*arguments, "-o", tmp_path / "out")
    assert code == 1
    flat = output.replace("\n", " ")
    assert f"{key_file.parent} holds predictions of another key" in flat
    assert '"ucn": "abab' in flat and '"daisy": {' in flat
    assert "delete the folder or use another cache folder" in flat


@pytest.mark.slow
def test_an_empty_result_is_an_error(tmp_path: Path) -> None:
    folder = write_sequence(tmp_path / "data", "v_one")
    for path in folder.glob("H_1_*"):
        path.write_text("1 0 500\n0 1 0\n0 0 1\n")  # beyond the image
    code, output = run("hpatches", "--data", tmp_path / "data", "--methods", "hog", "-o", tmp_path / "out")
    assert code == 1
    assert "no correspondences in the 5 pairs; nothing to evaluate" in output
    assert not (tmp_path / "out" / "hpatches.json").exists()


def test_own_pairs_with_a_sheet(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_ramp(tmp_path / "data" / f"{name}.png")
    (tmp_path / "data" / "pairs.csv").write_text(
        "image0,image1,points,class,pck_length\na.png,b.png,p.csv,mug,20\nb.png,a.png,p.csv,jug,20\n"
    )
    (tmp_path / "data" / "p.csv").write_text("x0,y0,x1,y1\n20,20,20,20\n")
    code, output = run(
        *("own", "--data", tmp_path / "data", "--methods", "hog", "-o", tmp_path / "out"),
        *("--sheet", 1, "--jobs", 2, "--max-side", 48, "--limit", 1, "--json"),
    )
    assert code == 0, output
    values = json.loads(output)
    assert f"--limit 1 --max-side 48 --sheet 1 --jobs 2 -o {tmp_path / 'out'}" in values["command"]
    assert values["unit"] == "alpha"
    assert {figure["group"] for figure in values["figures"]} == {"mug"}
    assert "images with a longer side than 48 px are reduced" in values["protocol"][1]
    assert (tmp_path / "out" / "own-sheet.jpg").stat().st_size > 1000
    assert str(tmp_path / "out" / "own-sheet.jpg") in values["outputs"]


def test_own_images_with_points(tmp_path: Path) -> None:
    rows = ["image,part,x,y,class,pck_length"]
    for number, name in enumerate("abcd"):
        write_ramp(tmp_path / "data" / f"{name}.png")
        rows += [f"{name}.png,{part},20,2{number},mug,20" for part in ("rim", "handle")]
    (tmp_path / "data" / "keypoints.csv").write_text("\n".join(rows))
    arguments = ("own", "--data", tmp_path / "data", "--methods", "hog", "-o", tmp_path / "out", "--json")
    code, output = run(*arguments, "--max-side", 48)
    assert code == 0, output
    values = json.loads(output)
    assert values["unit"] == "alpha"
    assert {figure["group"] for figure in values["figures"]} == {"mug"}
    assert values["pairs"] == 6


@pytest.mark.slow
def test_no_sheet_without_the_option(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    arguments = ("hpatches", "--data", tmp_path / "data", "--methods", "daisy", "--limit", 1)
    assert run(*arguments, "-o", tmp_path / "out")[0] == 0
    assert not list((tmp_path / "out").glob("*sheet*"))


def test_folder_of_another_set(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    code, output = run("cub", "--data", tmp_path / "data", "--methods", "hog", "-o", tmp_path / "out")
    assert code == 1
    assert "it looks like 'hpatches'" in output


def test_a_canvas_cannot_be_changed(tmp_path: Path) -> None:
    write_sequence(tmp_path / "data", "v_one")
    code, output = run(
        *("hpatches", "--data", tmp_path / "data", "--methods", "hog"),
        *("--max-side", 200, "-o", tmp_path / "out"),
    )
    assert code == 1
    assert "--max-side must be None: hpatches puts all images on a canvas" in output


@pytest.mark.slow
def test_paths_of_sample_data_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sequence(tmp_path / "data" / "planes", "v_one")
    monkeypatch.setenv("UCN_DATA", str(tmp_path / "data"))
    code, output = run(
        *("hpatches", "--data", tmp_path / "data" / "planes", "--methods", "daisy", "--limit", 1),
        *("-o", tmp_path / "out", "--json"),
    )
    assert code == 0, output
    assert "--data $UCN_DATA/planes " in json.loads(output)["command"]


class TestUpdate:
    @pytest.fixture
    def arguments(self, tmp_path: Path) -> tuple[object, ...]:
        write_sequence(tmp_path / "data", "v_one")
        given = ("hpatches", "--data", tmp_path / "data", "--limit", 1, "--no-refinement")
        return (*given, "-o", tmp_path / "out")

    @pytest.mark.slow
    def test_one_method_of_a_table(self, arguments: tuple[object, ...], tmp_path: Path) -> None:
        assert run(*arguments, "--methods", "daisy,hog")[0] == 0
        before = json.loads((tmp_path / "out" / "hpatches.json").read_text())
        code, output = run(*arguments, "--methods", "hog", "--update", "--cache", tmp_path / "new")
        assert code == 0, output
        after = json.loads((tmp_path / "out" / "hpatches.json").read_text())
        changing = ("seconds", "command")
        assert {key: value for key, value in after.items() if key not in changing} == {
            key: value for key, value in before.items() if key not in changing
        }
        first, second = after["command"].splitlines()
        assert first == before["command"]
        assert "--methods hog" in second and second.endswith("--update")
        assert not list((tmp_path / "new" / "hpatches").glob("daisy*"))

        code, output = run(*arguments, "--methods", "kaze", "--update", "--json")
        assert code == 0, output
        values = json.loads(output)
        assert [method["name"] for method in values["methods"]] == ["daisy", "hog", "kaze"]
        page = (tmp_path / "out" / "hpatches.md").read_text()
        assert all(f"| {name} |" in page for name in ("daisy", "hog", "kaze"))
        assert {Path(path).suffix for path in values["outputs"]} == {
            *(".json", ".csv", ".md", ".tex", ".png", ".svg")
        }

    @pytest.mark.slow
    def test_weights_of_a_file(
        self, arguments: tuple[object, ...], tmp_path: Path, random_weights: Path
    ) -> None:
        assert run(*arguments, "--methods", "daisy")[0] == 0
        code, output = run(
            *arguments, "--weights-file", random_weights, "--methods", "random", "--update", "--json"
        )
        assert code == 0, output
        values = json.loads(output)
        assert [method["name"] for method in values["methods"]] == ["daisy", "random"]
        assert f"--methods random --weights-file {random_weights} --limit 1" in values["command"]

    def test_nothing_there(self, arguments: tuple[object, ...]) -> None:
        code, output = run(*arguments, "--methods", "daisy", "--update")
        assert code == 1
        assert "hpatches.json to update; evaluate all methods first" in " ".join(output.split())
        assert "Traceback" not in output

    @pytest.mark.slow
    def test_refusals(self, arguments: tuple[object, ...], tmp_path: Path) -> None:
        assert run(*arguments, "--methods", "daisy,hog")[0] == 0
        before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("hpatches.*")}
        for options, message in (
            (("--seed", 3), "seed was 0, now it is 3"),
            (("--limit", 2), "pairs was 1, now it is 2"),
            (("--refinement",), "refinements was [false], now it is [true, false]"),
            (("--sheet", 1), "--sheet draws the predictions of all methods"),
        ):
            code, output = run(*arguments, "--methods", "daisy", "--update", *options)
            assert code == 1
            assert message in " ".join(output.split())
        assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("hpatches.*")} == before
        (tmp_path / "out" / "hpatches.json").write_text("{")
        code, output = run(*arguments, "--methods", "daisy", "--update")
        assert (code, "cannot be updated: it is not JSON" in " ".join(output.split())) == (1, True)

    def test_camera_motion(self, tmp_path: Path) -> None:
        code, output = run("kitti-raw", "--data", tmp_path, "--update", "-o", tmp_path / "out")
        assert code == 1
        flat = " ".join(output.split())
        assert "kitti-raw cannot be evaluated with --update: its report compares each method" in flat
        assert "evaluate all methods" in flat
