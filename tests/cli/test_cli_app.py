import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import typer
from typer.testing import CliRunner

from ucn.cli import _command
from ucn.cli._progress import Stages
from ucn.cli.app import app
from ucn.cli.commands import report_errors
from ucn.weights import WeightsInfo

runner = CliRunner()


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["match", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['ucn', *{arguments!r}]\n"
        "from ucn.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as leave:\n    assert leave.code in (0, None), leave.code\n"
        "heavy = {'torch', 'numpy', 'cv2', 'PIL', 'h5py'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert "ucn" in result.stdout


def test_python_m_ucn() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "ucn", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0
    assert "Usage: ucn" in result.stdout


def test_help_lists_the_verbs() -> None:
    output = runner.invoke(app, ["--help"]).output
    for verb in ("demo", "match", "flow", "weights"):
        assert verb in output


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["match"], ["match", "a.png"], ["match", "a", "b", "--max-side", "x"], ["--no"]],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


class TestReportErrors:
    def run(self, error: BaseException, *arguments: str) -> tuple[int, str]:
        small = typer.Typer(pretty_exceptions_enable=False)

        def verb(debug: bool = False) -> None:
            raise error

        small.command()(report_errors(verb))
        result = runner.invoke(small, list(arguments))
        return result.exit_code, result.stderr

    def test_value_error_is_one_line(self) -> None:
        assert self.run(ValueError("first\n  second\n")) == (1, "error: first; second\n")

    def test_unexpected_error_is_one_line(self) -> None:
        code, text = self.run(KeyError("x"))
        assert code == 1
        assert text.startswith("error: unexpected KeyError: 'x'")
        assert text.count("\n") == 1

    @pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried …")])
    def test_memory(self, error: Exception) -> None:
        code, text = self.run(error)
        assert code == 1
        assert text == "error: not enough memory; try smaller images, a smaller batch, or --device cpu\n"

    def test_interrupt_exits_130(self) -> None:
        assert self.run(KeyboardInterrupt()) == (130, "interrupted\n")

    def test_debug_shows_the_traceback(self) -> None:
        small = typer.Typer(pretty_exceptions_enable=False)

        def verb(debug: bool = False) -> None:
            raise ValueError("x")

        small.command()(report_errors(verb))
        assert isinstance(runner.invoke(small, ["--debug"]).exception, ValueError)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda"])
def test_unknown_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device .*(must be cpu, cuda|finds no CUDA)"):
        _command.load_matcher("geometric", device=device)


class TestStages:
    def test_tiles_are_one_stage_and_the_total_is_the_sum(self) -> None:
        with Stages(is_quiet=True) as stages:
            stages("encoding image 0 tile 1/2")
            stages("encoding image 0 tile 2/2")
            stages("matching")
        report = stages.report()
        assert list(report) == ["starting", "encoding image 0", "matching", "total"]
        assert report["total"] == pytest.approx(sum(stages.seconds.values()), abs=1e-3)

    def test_shows_on_a_terminal_only(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        with Stages(is_quiet=False) as stages:
            stages("matching")
            assert stages._status is not None
        with Stages(is_quiet=True) as stages:
            assert stages._status is None


class TestWeights:
    """With a table of two, since what is shipped changes."""

    @pytest.fixture(autouse=True)
    def _table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        metrics = {"HPatches PCK@5": 0.5}
        first = WeightsInfo(
            "first", "ab" * 32, "geometric", "photos", "MIT", "none", "One.", metrics, 2_500_000
        )
        second = replace(first, name="second", metrics={}, file_bytes=0)
        monkeypatch.setattr("ucn.weights.list_weights", lambda: (first, second))

    def test_lists_all(self) -> None:
        result = runner.invoke(app, ["weights"])
        assert result.exit_code == 0, result.output
        for words in ("first", "second", "2.5 MB", "HPatches PCK@5: 0.5", "MIT"):
            assert words in result.stdout

    def test_json(self) -> None:
        table = json.loads(runner.invoke(app, ["weights", "--json"]).stdout)["weights"]
        assert [weights["name"] for weights in table] == ["first", "second"]
        assert table[0]["metrics"] == {"HPatches PCK@5": 0.5}

    def test_one(self) -> None:
        result = runner.invoke(app, ["weights", "first"])
        assert result.exit_code == 0
        for words in ("ab" * 32, "MIT", "One.", "2.5 MB"):
            assert words in result.stdout

    def test_unknown_name_lists_the_legal_ones(self) -> None:
        result = runner.invoke(app, ["weights", "nonsense"])
        assert result.exit_code == 1
        assert result.stderr == "error: no weights 'nonsense': expected one of first, second\n"


def test_demo_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    result = runner.invoke(app, ["demo", "-o", str(tmp_path / "f")])
    assert result.exit_code == 1
    assert "it is a file; give a folder with -o" in result.stderr


def test_demo_parent_is_missing(tmp_path: Path) -> None:
    result = runner.invoke(app, ["demo", "-o", str(tmp_path / "no" / "demo")])
    assert result.exit_code == 1
    assert "does not exist; create it first" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_demo_folder_name_too_long(tmp_path: Path) -> None:
    result = runner.invoke(app, ["demo", "-o", str(tmp_path / ("x" * 300))])
    assert result.exit_code == 1
    assert "file name too long" in result.stderr
    assert "unexpected" not in result.stderr


def test_a_command_imports_no_other() -> None:
    code = (
        "import sys; from ucn.cli import main; sys.argv = ['ucn', 'match', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n"
        "    print({'ucn.cli.match', 'ucn.cli.extract', 'ucn.cli.train', 'torch'} & set(sys.modules))"
    )
    assert run_python(code).stdout.splitlines()[-1] == "{'ucn.cli.match'}"


@pytest.mark.slow
def test_match_of_large_photographs_is_light(tmp_path: Path) -> None:
    """It imports what it needs, reads the weights once, and two images of 12 megapixels take under 1 GB."""
    for name in ("0.jpg", "1.jpg"):
        small = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
        PIL.Image.fromarray(small).resize((4000, 3000)).save(tmp_path / name)
    code = (
        "import os, resource, sys; from ucn.cli import main; opened = []\n"
        "sys.addaudithook(lambda event, given: event == 'open' and opened.append(str(given[0])))\n"
        f"sys.argv = ['ucn', 'match', {str(tmp_path / '0.jpg')!r}, {str(tmp_path / '1.jpg')!r},"
        " '--json', '--device', 'cpu']\n"
        "try:\n    main()\nexcept SystemExit as leave:\n    assert leave.code in (0, None)\n"
        "heavy = {'sympy', 'torch._dynamo', 'torch.fx.experimental.symbolic_shapes', 'matplotlib', 'h5py',"
        " 'poselib', 'rich', 'ucn.viz', 'ucn.evaluate', 'ucn.features', 'ucn.train'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        # The kind of the file is checked before torch is imported, and again by who reads it.
        "count = sum(name.endswith('geometric.safetensors') for name in opened)\n"
        "assert count == 3, count\n"
        "assert os.environ['OMP_WAIT_POLICY'] == 'PASSIVE'\n"
        # On Linux ru_maxrss begins with that of the parent.
        "own = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')]"
        " if sys.platform == 'linux' else []\n"
        "peak = 1024 * int(own[0]) if own else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert peak < 1e9, peak\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["command"] == "match"
