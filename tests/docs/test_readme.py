"""The Python of the pages runs, their commands parse, and no placeholder is left."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

from support.docs_cases import BLOCKS, COMMANDS, INLINE, PAGES, ROOT, Command, name_of
from support.scene_cases import make_scene
from ucn.cli.app import app
from ucn.weights import LoadedWeights, load_weights

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS_ARGUMENTS = {"convert_caffemodel.py"}  # tests/examples runs it
LANGUAGES = {"python", "bash", "console", "text", "csv", "bibtex", "yaml"}


def _params(commands: list[Command], program: str) -> list[Any]:
    """The commands of one program, once each."""
    chosen = {" ".join(command.words): command for command in commands if command.words[0] == program}
    return [pytest.param(command.where, list(command.words), id=text) for text, command in chosen.items()]


def _find_command(where: str, words: list[str]) -> tuple[Any, list[str]]:
    """The command of the words after `ucn`, also of a group (`ucn data check`), and its arguments."""
    command, rest = typer.main.get_command(app), words
    while hasattr(command, "commands"):
        verbs = command.commands
        if not rest:  # a group alone prints its help
            break
        assert rest[0] in verbs, f"{where}: there is no such command; there are {', '.join(verbs)}"
        command, rest = verbs[rest[0]], rest[1:]
        if rest == ["--help"]:
            break
    return command, rest


@pytest.fixture
def small_images(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matchers reduce images to 320 px unless told otherwise, so that pages run in seconds."""
    if page.name == "web.md":  # quick, and tells the size of a map
        return

    def load(name: str | Path) -> LoadedWeights:
        loaded = load_weights(name)
        return replace(loaded, max_side=min(loaded.max_side or 320, 320))

    for place in ("ucn.matching.matcher", "ucn.weights"):  # exports are compared at that side, too
        monkeypatch.setattr(f"{place}.load_weights", load)


@pytest.mark.slow
@pytest.mark.usefixtures("few_pairs", "small_images")
@pytest.mark.parametrize("page", sorted({b.page for b in BLOCKS if b.language == "python"}), ids=name_of)
def test_python_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.name == "tasks.md":
        make_scene(tmp_path / "photos", count=4)
    namespace: dict[str, Any] = {"__name__": "__main__"}  # blocks of a page continue each other
    for block in BLOCKS:
        if block.page == page and block.language == "python":
            # Blank lines before it make line numbers of tracebacks those of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [path for path in EXAMPLES if path.name not in NEEDS_ARGUMENTS], ids=name_of
)
def test_example_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(script)])
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(("where", "words"), _params(COMMANDS, "ucn"))
def test_ucn_command_parses(where: str, words: list[str]) -> None:
    if words[1:] in (["--help"], ["--version"]):
        return
    command, arguments = _find_command(where, words[1:])
    if arguments != ["--help"]:
        command.make_context(words[1], arguments)  # raises if an option is unknown or missing


@pytest.mark.parametrize(("where", "words"), _params([*COMMANDS, *INLINE], "make"))
def test_make_target_exists(where: str, words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, flags=re.MULTILINE))
    assert set(words[1:]) <= targets, f"{where}: the Makefile has {', '.join(sorted(targets))}"


@pytest.mark.parametrize(("where", "words"), _params(INLINE, "ucn"))
def test_inline_command_names_a_verb_and_its_options(where: str, words: list[str]) -> None:
    if words[1] in ("--help", "--version"):
        return
    command, arguments = _find_command(where, words[1:])
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    given = {word.split("=")[0] for word in arguments if word.startswith("-")}
    assert given <= known | {"--help"}, f"{where}: unknown options"


def test_scripts_and_tests_of_commands_exist() -> None:
    text = {page: page.read_text(encoding="utf-8") for page in PAGES}
    named = {
        (page, path)
        for page, content in text.items()
        for path in re.findall(r"(?:python|pytest)\s+((?:benchmarks|examples|tests)/[\w/.]+)", content)
    }
    assert len(named) >= 20
    missing = [f"{name_of(page)}: {path}" for page, path in named if not (ROOT / path).exists()]
    assert not missing


def test_every_block_names_its_language() -> None:
    odd = [f"{name_of(b.page)}:{b.line}: '{b.language}'" for b in BLOCKS if b.language not in LANGUAGES]
    assert not odd


def test_readme_shows_python_and_both_commands() -> None:
    readme = ROOT / "README.md"
    assert any(b.page == readme and b.language == "python" for b in BLOCKS)
    shown = [command.words for command in COMMANDS if command.where.startswith("README.md")]
    assert ("make", "demo") in shown
    assert ("make", "test") in shown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_placeholder_is_left(page: Path) -> None:
    missing = re.findall(r"@@\w*@@", page.read_text(encoding="utf-8"))
    assert not missing
