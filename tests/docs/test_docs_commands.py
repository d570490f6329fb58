"""Commands of the pages do what the pages say: each is run, on small inputs of the names that it uses.

What cannot be run in seconds, or without a network or data, stands in `NOT_RUN`, with the reason and, where
there is one, the test that runs the same thing in another way.
"""

import re
import shutil
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner

from support.docs_cases import BLOCKS, COMMANDS, ROOT, Command
from support.scene_cases import make_scene
from ucn.cli.app import app
from ucn.data.example import example_pair
from ucn.weights import list_weights
from ucn.weights.table import shipped_path

NOT_RUN = {
    r"(make|pip|torchrun|ray) .*": "installs packages, runs these tests, or starts other machines",
    r"pytest .*": "is these tests",
    r"curl .*": "tests/serve/test_api.py asks the same routes",
    r"ucn serve": "does not end; tests/serve runs it",
    r"ucn demo.*": "tests/cli/test_cli_end_to_end.py runs it",
    r"ucn bench.*": "minutes; tests/cli/test_bench.py runs it on small inputs",
    r"ucn export .*": "tests/formats/test_onnx.py runs it",
    r"python examples/.*": "tests/docs/test_readme.py and tests/formats/test_onnx.py run the examples",
    r"python (benchmarks|tests)/.*": "minutes; tests of the scripts run them on small data",
    r"ucn extract .*--engine ray.*": "tests/folders/test_ray_engine.py runs a cluster of two workers",
    r"ucn evaluate .*": "minutes, and data sets; tests/evaluate and tests/cli/test_cli_evaluate.py run it",
    r"ucn train (?!recipes/own).*": "hours, and data sets; tests/cli/test_cli_train.py trains",
    r"ucn train .*(--resume|steps=3000)": "tests/cli/test_cli_train.py resumes; here all runs are cut short",
    r"ucn train .*(colmap|video)=.*": "as with own=my_pairs; `ucn data` reads their pairs here",
}
DATA_SETS = {"DIR": "cub", "CUB_200_2011": "cub"}
"""What pages call the folder of a data set, and which of the sample data that is."""

OUTPUTS = {"-o", "--draw", "--overlay", "--blink", "--matrix", "--matches"}
# What is added to commands that would take long; of an option that is given twice, the last one holds.
CUT_SHORT = {
    "train": "--set steps=1 --set batch=2 --set synthetic.side=64 --set synthetic.points=50",
    "convert": "--limit 20",
}
SIZE_HW = (150, 200)


def _reason(command: Command) -> str:
    text = " ".join(command.words)
    return next((reason for form, reason in NOT_RUN.items() if re.fullmatch(form, text)), "")


RUN = {" ".join(command.words): command for command in COMMANDS if not _reason(command)}


def _write_photographs(folder: Path) -> None:
    """Two photographs of one thing, points and masks for them, and the matrices of their cameras."""
    height, width = SIZE_HW
    pair = example_pair()
    for name, path, left in (("a.jpg", pair.image0_path, 300), ("b.jpg", pair.image1_path, 250)):
        PIL.Image.open(path).crop((left, 150, left + width, 150 + height)).save(folder / name, quality=95)
    for name in ("mine.csv", "points.csv"):
        (folder / name).write_text("x,y\n100,75\n60.5,50\n")
    mask = np.zeros(SIZE_HW, np.uint8)
    mask[:, 40:160] = 255
    for name in ("object.png", "same-size-as-both.png"):
        PIL.Image.fromarray(mask).save(folder / name)
    for name in ("K.txt", "left.txt", "phone.txt"):
        (folder / name).write_text(f"995 0 {width / 2}\n0 995 {height / 2}\n0 0 1\n")


def _write_clips(folder: Path) -> None:
    """A camera that turns to the right, as a clip, as a folder of clips, and as a folder of frames."""
    pixels = np.asarray(PIL.Image.open(example_pair().image0_path).convert("RGB"))
    frames = [pixels[150:270, 200 + 2 * t : 360 + 2 * t] for t in range(13)]
    (folder / "frames").mkdir()
    (folder / "my_clips").mkdir()
    for path, count in ((folder / "clip.mp4", 7), (folder / "my_clips" / "clip.mp4", 13)):
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, (160, 120))
        for frame in frames[:count]:
            writer.write(np.ascontiguousarray(frame[..., ::-1]))
        writer.release()
    for number, frame in enumerate(frames[:4]):
        PIL.Image.fromarray(frame).save(folder / "frames" / f"{number:02}.png")


def _invoke(arguments: list[str]) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.output


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that commands of the pages name, small."""
    folder = tmp_path_factory.mktemp("inputs")
    _write_photographs(folder)
    _write_clips(folder)
    make_scene(folder / "photos", count=4)
    shutil.copytree(folder / "photos", folder / "clip")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    shutil.copy(shipped_path(list_weights()[0]), folder / "my.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        page = next(b for b in BLOCKS if b.page.name == "own-data.md" and b.language == "python")
        exec(compile(page.text, str(page.page), "exec"), {})  # my_pairs, as the page makes it
    _invoke(["extract", str(folder / "photos"), "-o", str(folder / "features.h5")])
    return folder


@pytest.fixture(scope="module")
def scene(inputs: Path) -> Path:
    """A COLMAP model of the photographs, with them beside it."""
    pytest.importorskip("pycolmap", reason="the extra 'reconstruct' is not installed")
    _invoke(["reconstruct", str(inputs / "photos"), "-o", str(inputs / "model"), "--no-adjust"])
    shutil.copytree(inputs / "model" / "sparse", inputs / "my_scene" / "sparse")
    shutil.copytree(inputs / "photos", inputs / "my_scene" / "images")
    return inputs / "my_scene"


def _take_inputs(words: tuple[str, ...], inputs: Path, here: Path) -> None:
    """Copies what a command reads to where it runs; what it writes must not be there yet."""
    for before, word in pairwise(words):
        name = word.split("=")[-1].split("/")[0]
        source = inputs / name
        if before == "-o" or not name or not source.exists() or (here / name).exists():
            continue
        if source.is_dir():
            shutil.copytree(source, here / name)
        else:
            shutil.copy(source, here / name)


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN.values(), ids=RUN)
def test_command_runs(
    command: Command,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    words = list(command.words)
    if words[1] == "reconstruct":
        pytest.importorskip("pycolmap", reason="the extra 'reconstruct' is not installed")
    if "my_scene" in " ".join(words):
        request.getfixturevalue("scene")
    if DATA_SETS.keys() & set(words):
        data = request.getfixturevalue("data_folder")
        words = [str(data / DATA_SETS[word]) if word in DATA_SETS else word for word in words]
    _take_inputs(command.words, inputs, tmp_path)
    monkeypatch.chdir(tmp_path)
    verb = words[2] if words[1] == "data" else words[1]
    printed = _invoke([*words[1:], *CUT_SHORT.get(verb, "").split()])
    for line in command.printed.splitlines():
        assert line in printed, f"{command.where}: the page says that it prints '{line}'"
    for option, path in pairwise(words):
        if option in OUTPUTS:
            written = tmp_path / path
            assert any(written.iterdir()) if written.is_dir() else written.stat().st_size > 0, path


def test_every_command_is_run_or_has_a_reason() -> None:
    programs = {command.words[0] for command in RUN.values()}
    assert programs == {"ucn"}, "only `ucn` is run here; give a reason for the others in NOT_RUN"
    assert len(RUN) >= 30
    texts = [" ".join(command.words) for command in COMMANDS]
    for form in NOT_RUN:
        assert any(re.fullmatch(form, text) for text in texts), f"no command of any page is like {form}"


def test_reasons_name_tests_that_exist() -> None:
    for reason in NOT_RUN.values():
        for path in re.findall(r"tests/[\w/.]+", reason):
            assert (ROOT / path).exists(), f"there is no {path}"
