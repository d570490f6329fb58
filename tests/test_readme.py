"""The pages can be followed: their Python runs, their commands parse, their figures are filled in."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ucn.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LANGUAGES = {"python", "bash", "console", "text", "csv", "bibtex", "yaml"}
SHELLS = {"bash", "console"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is that of its first line of content, from 1."""

    page: Path
    language: str
    line: int
    text: str


def _read_blocks(page: Path) -> Iterator[Block]:
    fence, language, start, content = "", "", 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        opening = re.match(r"\s*(```+)\s*(\S*)", line)
        if not fence and opening:
            fence, language, start, content = opening[1], opening[2], number + 1, []
        elif fence and line.strip() == fence:
            yield Block(page, language, start, "\n".join(content))
            fence = ""
        elif fence:
            content.append(line)
    assert not fence, f"{page}:{start - 1}: this block is never closed"


BLOCKS = [block for page in PAGES for block in _read_blocks(page)]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _read_commands() -> Iterator[tuple[str, list[str]]]:
    """Where it stands, and the words of every command in the pages' shell blocks."""
    for block in BLOCKS:
        if block.language not in SHELLS:
            continue
        prompts = [line for line in block.text.splitlines() if line.startswith("$ ")]
        lines = [line[2:] for line in prompts] or block.text.replace("\\\n", " ").splitlines()
        for line in lines:
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if word[0] not in "|&;<>":
                    words.append(word)
                elif words:
                    yield f"{_name(block.page)}:{block.line}: {line}", _without_variables(words)
                    words = []


def _without_variables(words: list[str]) -> list[str]:
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words


COMMANDS = list(_read_commands())
INLINE = [
    (f"{_name(page)}: `{code}`", code.split())
    for page in PAGES
    for code in re.findall(r"`((?:make|ucn) [^`\n]+)`", page.read_text(encoding="utf-8"))
]


def _params(commands: list[tuple[str, list[str]]], program: str) -> list[Any]:
    """The commands that call one program, once each."""
    chosen = {" ".join(words): (where, words) for where, words in commands if words[:1] == [program]}
    return [pytest.param(*command, id=text) for text, command in chosen.items()]


def _find_command(where: str, words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words after `ucn` call, of a group (`ucn data check`) too, and what follows it."""
    command, rest = typer.main.get_command(app), words
    while hasattr(command, "commands"):
        verbs = command.commands
        if not rest:  # a group alone, which running it would answer with its help
            break
        assert rest[0] in verbs, f"{where}: there is no such command; there are {', '.join(verbs)}"
        command, rest = verbs[rest[0]], rest[1:]
        if rest == ["--help"]:
            break
    return command, rest


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({b.page for b in BLOCKS if b.language == "python"}), ids=_name)
def test_python_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}  # one reader, from top to bottom
    for block in BLOCKS:
        if block.page == page and block.language == "python":
            # Blank lines before it make a traceback name the page's own line.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=_name)
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
        command.make_context(words[1], arguments)  # raises where an option is unknown or missing


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


def test_every_block_says_its_language() -> None:
    odd = [f"{_name(b.page)}:{b.line}: '{b.language}'" for b in BLOCKS if b.language not in LANGUAGES]
    assert not odd


def test_readme_shows_python_and_both_commands() -> None:
    readme = ROOT / "README.md"
    assert any(b.page == readme and b.language == "python" for b in BLOCKS)
    shown = [words for where, words in COMMANDS if where.startswith("README.md")]
    assert ["make", "demo"] in shown
    assert ["make", "test"] in shown


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_figure_is_missing(page: Path) -> None:
    missing = re.findall(r"@@\w*@@", page.read_text(encoding="utf-8"))
    assert not missing
