"""Fenced blocks of the pages, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHELLS = {"bash", "console"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is the number of its first line of content, from 1."""

    page: Path
    language: str
    line: int
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a shell block.

    Attributes:
        where: page, number and text of the line.
        words: program and arguments, without environment variables and redirections.
        printed: the output that the page shows; may be empty.
    """

    where: str
    words: tuple[str, ...]
    printed: str = ""

    @property
    def text(self) -> str:
        """The words, quoted for a shell."""
        return shlex.join(self.words)


def name_of(path: Path) -> str:
    """The path of a file relative to the repository."""
    return str(path.relative_to(ROOT))


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
    assert not fence, f"{page}:{start - 1}: this block is not closed"


BLOCKS = [block for page in PAGES for block in _read_blocks(page)]


def _read_lines(block: Block) -> Iterator[tuple[str, str]]:
    """The command lines of a shell block, each with the output shown below it."""
    if not re.search(r"^\$ ", block.text, flags=re.MULTILINE):
        for line in block.text.replace("\\\n", " ").splitlines():
            yield line, ""
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, printed = part.partition("\n")
        yield line, printed.strip()


def _split_commands(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line, split at pipes and semicolons, without redirections and variables."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    is_file = False  # the next word is the target of a redirection
    for word in [*lexer, ";"]:
        if word[0] in "<>":
            is_file = True
        elif word[0] in "|&;":
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words:
                yield tuple(words)
            words = []
        elif is_file:
            is_file = False
        else:
            words.append(word)


COMMANDS = [
    Command(f"{name_of(block.page)}:{block.line}: {line}", words, printed)
    for block in BLOCKS
    if block.language in SHELLS
    for line, printed in _read_lines(block)
    for words in _split_commands(line)
]
INLINE = [
    Command(f"{name_of(page)}: `{code}`", tuple(code.split()))
    for page in PAGES
    for code in re.findall(r"`((?:make|ucn) [^`\n]+)`", page.read_text(encoding="utf-8"))
]
