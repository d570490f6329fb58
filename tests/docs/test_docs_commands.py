"""Every command of the pages runs, on small inputs with the names that the pages use.

`NOT_RUN` lists commands that take longer than seconds, or need a network or data, with the reason and the
test that covers them.
"""

import re
import shutil
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import PIL.ExifTags
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
    r"pytest .*": "runs these tests",
    r"curl .*": "tests/serve/test_api.py requests the same routes",
    r"ucn serve": "does not end; tests/serve runs it",
    r"ucn demo.*": "tests/cli/test_cli_end_to_end.py runs it",
    r"ucn bench.*": "minutes; tests/cli/test_bench.py runs it on small inputs",
    r"ucn export .*": "tests/formats/test_onnx.py runs it",
    r"python examples/.*": "tests/docs/test_readme.py, tests/examples and tests/formats run them",
    r"python -m support\.kill_cases .*": "minutes; tests/hostile/test_hostile_resume.py runs fewer cases",
    r"python -m support\.attack_table .*": "minutes; tests/hostile/test_hostile_files.py reads fewer files",
    r"python (benchmarks|tests)/.*": "minutes; tests of the scripts run them on small data",
    r"ucn extract .*--executor ray.*": "tests/folders/test_ray_executor.py runs a cluster of two workers",
    r"ucn evaluate .*": "minutes, and data sets; tests/evaluate and tests/cli/test_cli_evaluate.py run it",
    r"ucn train (?!own).*": "hours, and data sets; tests/cli/test_cli_train.py trains",
    r"ucn train .*(--resume|steps=3000)": "tests/cli/test_cli_train.py resumes runs",
    r"ucn train .*(colmap|video)=.*": "like own=my_pairs; `ucn data` reads their pairs here",
}
DATA_SETS = {"DIR": "cub", "CUB_200_2011": "cub"}
"""Names of data folders on the pages, and the sample data used for them."""

OUTPUTS = {"-o", "--draw", "--sheet", "--overlay", "--blink", "--matrix", "--matches"}
# Options added to slow commands; the last value of a repeated option wins.
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
    """Images of one scene, points, masks and camera matrices."""
    height, width = SIZE_HW
    pair = example_pair()
    exif = PIL.Image.Exif()
    exif.get_ifd(PIL.ExifTags.IFD.Exif)[PIL.ExifTags.Base.FocalLengthIn35mmFilm] = 172
    views = (
        ("a.jpg", pair.image0_path, 300),
        ("b.jpg", pair.image1_path, 250),
        ("c.jpg", pair.image0_path, 360),
        ("ref.jpg", pair.image0_path, 300),
    )
    for name, path, left in views:
        image = PIL.Image.open(path).crop((left, 150, left + width, 150 + height))
        image.save(folder / name, quality=95, exif=exif)
    for name in ("mine.csv", "points.csv"):
        (folder / name).write_text("x,y\n100,75\n60.5,50\n")
    mask = np.zeros(SIZE_HW, np.uint8)
    mask[:, 40:160] = 255
    for name in ("object.png", "same-size-as-both.png"):
        PIL.Image.fromarray(mask).save(folder / name)
    for name in ("K.txt", "left.txt", "phone.txt"):
        (folder / name).write_text(f"995 0 {width / 2}\n0 995 {height / 2}\n0 0 1\n")


def _write_videos(folder: Path) -> None:
    """A camera that pans to the right, as a video, a folder of videos, and a folder of frames."""
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
    """A folder with every input that commands of the pages name."""
    folder = tmp_path_factory.mktemp("inputs")
    _write_photographs(folder)
    _write_videos(folder)
    make_scene(folder / "photos", count=4)
    (folder / "pairs.txt").write_text("000.png 001.png\n001.png 002.png\n")
    for name, source in (("before", "a.jpg"), ("after", "b.jpg")):
        (folder / name).mkdir()
        shutil.copy(folder / source, folder / name / "1.jpg")
    shutil.copytree(folder / "photos", folder / "clip")
    shutil.copy(shipped_path(list_weights()[0]), folder / "my.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pages = [b for b in BLOCKS if b.page.name == "own-data.md" and b.language == "python"]
        names: dict[str, object] = {}
        for block in pages[: 1 + next(i for i, b in enumerate(pages) if '"my_pairs"' in b.text)]:
            exec(compile(block.text, str(block.page), "exec"), names)  # creates my_images and my_pairs
    _invoke(["extract", str(folder / "photos"), "-o", str(folder / "features.h5")])
    return folder


@pytest.fixture(scope="module")
def scene(inputs: Path) -> Path:
    """A COLMAP reconstruction of the photographs, beside them."""
    pytest.importorskip("pycolmap", reason="the extra 'reconstruct' is not installed")
    _invoke(["reconstruct", str(inputs / "photos"), "-o", str(inputs / "model"), "--no-adjust"])
    shutil.copytree(inputs / "model" / "sparse", inputs / "my_scene" / "sparse")
    shutil.copytree(inputs / "photos", inputs / "my_scene" / "images")
    return inputs / "my_scene"


def _take_inputs(words: tuple[str, ...], inputs: Path, here: Path) -> None:
    """Copies the inputs of a command to its folder; outputs must not exist yet."""
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
@pytest.mark.usefixtures("few_pairs")
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
        assert line in printed, f"{command.where}: expected it to print '{line}'"
    for option, path in pairwise(words):
        if option in OUTPUTS:
            written = tmp_path / path
            assert any(written.iterdir()) if written.is_dir() else written.stat().st_size > 0, path


def test_every_command_is_run_or_has_a_reason() -> None:
    programs = {command.words[0] for command in RUN.values()}
    assert programs == {"ucn"}, "only `ucn` runs here; add the others to NOT_RUN with a reason"
    assert len(RUN) >= 30
    texts = [" ".join(command.words) for command in COMMANDS]
    for form in NOT_RUN:
        assert any(re.fullmatch(form, text) for text in texts), f"no command of any page matches {form}"


def test_reasons_name_tests_that_exist() -> None:
    for reason in NOT_RUN.values():
        for path in re.findall(r"tests/[\w/.]+", reason):
            assert (ROOT / path).exists(), f"there is no {path}"
