"""The help: panels, options without types, lines that fit."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ucn.cli import _help
from ucn.cli.app import app
from ucn.cli.commands import COMMANDS, build_app

runner = CliRunner()
ROOT: Any = typer.main.get_command(app)


def list_commands() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        command = ROOT.commands[name]
        yield from getattr(command, "commands", {name: command}).items()


VERBS = [pytest.param(name, command, id=name) for name, command in list_commands()]


@pytest.mark.parametrize(("name", "command"), VERBS)
def test_every_option_has_a_panel(name: str, command: Any) -> None:
    options = [each for each in command.params if each.param_type_name == "option"]
    missing = [each.name for each in options if _help.find_panel(name, each.name) is None]
    assert not missing, f"`ucn {name}`: name the panel of {missing} in ucn.cli._help (PANELS)"
    assert all(each.rich_help_panel in _help.ORDER for each in command.params)


def test_panels_of_few_commands() -> None:
    """A name that another command uses with another meaning is in its panel by `_OWN_PANELS`."""
    users: dict[str, set[str]] = {}
    for name, command in list_commands():
        for each in command.params:
            users.setdefault(each.rich_help_panel, set()).add(name)
    few = {panel: names for panel, names in users.items() if panel not in ("Input", "Matching", "Output")}
    del few["General"]
    assert few == {
        "Features": {"extract", "reconstruct"},
        "Pairs": {"pairs", "reconstruct"},
        "Model": {"reconstruct"},
        "Training": {"train"},
        "Evaluation": {"evaluate"},
        "Server": {"serve"},
    }


def test_the_tables_name_no_other_options() -> None:
    known = {(name, each.name) for name, command in list_commands() for each in command.params}
    gone = set(_help.PANELS) - {option for _, option in known} - {"version", "help"}
    assert not gone, f"no command has these parameters: remove them from ucn.cli._help (PANELS): {gone}"
    assert set(_help._OWN_PANELS) <= known


def test_a_parameter_is_in_one_panel() -> None:
    names = [name for names in _help._NAMES.values() for name in names.split()]
    assert len(names) == len(set(names))


def read_help(*arguments: str, width: int = 80) -> str:
    small = build_app(arguments[:1] or COMMANDS)
    result = runner.invoke(small, [*arguments, "--help"], env={"COLUMNS": str(width)}, prog_name="ucn")
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize(("name", "command"), VERBS)
def test_lines_fit_and_flags_have_no_type(name: str, command: Any, width: int) -> None:
    group = ("data",) if name in ("list", "check", "show", "convert") else ()
    text = read_help(*group, name, width=width)
    assert max(map(len, text.splitlines())) <= min(width, 120)
    assert "<" not in text
    assert "─ Input" in text or name in ("demo", "serve")
    assert "─ Output" in text
    for option in command.params:
        for flag in (*option.opts, *option.secondary_opts):
            assert option.param_type_name == "argument" or re.search(rf"(^|[ ,]){flag}\b", text)


def test_match() -> None:
    lines = read_help("match").splitlines()
    panels = [line.split()[1] for line in lines if line.startswith("╭")]
    assert panels == ["Input", "Matching", "Output", "General"]
    assert " Usage: ucn match [OPTIONS] [A] [B]" in lines
    for shown in (
        r"│ A +First image, or a folder of images\. +│",
        r"│ --points FILE +Points in A",
        r"│ --keypoints corners\|grid +What .* \[default: corners\] +│",
        r"│ --mutual +Keep only",
        r"│ --no-mutual +check\. \[default: mutual\]",
        r"│ -o, --output FILE +Write matches",
        r"│ --json +Print one JSON object",
        r"│ --ratio R +",
        r"│ +\[default: 1\] +│",  # not torn apart
    ):
        assert any(re.match(shown, line) for line in lines), shown


def test_only_what_repeats_has_dots() -> None:
    assert " Usage: ucn transfer [OPTIONS] [REF]... FOLDER\n" in read_help("transfer")
    assert " Usage: ucn stitch [OPTIONS] IMAGE...\n" in read_help("stitch")


def test_root_lists_the_commands() -> None:
    lines = read_help().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("╭")] == ["Commands", "General"]
    for name in COMMANDS:
        assert any(line.startswith(f"│ {name} ") for line in lines)
    assert not any("<" in line for line in lines)


class Size(StrEnum):
    small = "small"
    large = "large"


def print_help_of(run: Any, width: int = 80) -> str:
    own = typer.Typer()
    own.command(cls=_help.HelpCommand)(_help.arrange("own", run))
    return runner.invoke(own, ["--help"], env={"COLUMNS": str(width)}).output


def test_unknown_options_are_general_and_text_is_not_markup() -> None:
    def run(
        strange: Annotated[float, typer.Option(metavar="X", help="A [bold] number.")] = 0.5,
        size: Annotated[Size | None, typer.Option(help="Its size.")] = None,
        needed: Annotated[int, typer.Option(metavar="N", help="Needed.")] = ...,
        plain: int = 3,
    ) -> None:
        """Do it.

        A paragraph
        of two lines.

        List:
        - one, which is so long that it does not fit into a line of eighty characters at all
        - two
        """

    text = print_help_of(run)
    assert re.search(r"╭─ General ─+╮\n│ --strange X +A \[bold\] number\. \[default: 0\.5\] +│", text)
    assert re.search(r"│ --needed N +Needed\. \[required\]", text)
    assert re.search(r"│ --plain +\[default: 3\]", text)
    assert re.search(r"╭─ Input ─+╮\n│ --size small\|large +Its size\. +│", text)
    assert "\n A paragraph of two lines.\n" in text
    assert "\n List:\n - one, which is so long" in text
    assert re.search(r"\n   [\w ]+\n - two\n", text)


def test_a_long_value_is_below_its_option() -> None:
    def run(intrinsics: Annotated[str, typer.Option(metavar="FILE|fx,fy,cx,cy", help="K.")] = "") -> None:
        """Do it."""

    assert re.search(r"│ --intrinsics +K\. +│\n│ FILE\|fx,fy,cx,cy +│", print_help_of(run))
    assert re.search(r"│ --intrinsics FILE\|fx,fy,cx,cy +K\. +│", print_help_of(run, 120))
