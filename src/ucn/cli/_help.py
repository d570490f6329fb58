"""Help of the commands: which option is in which panel (`PANELS`), and how panels are printed."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from copy import copy
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_INPUT, _FEATURES, _PAIRS, _MATCHING = "Input", "Features", "Pairs", "Matching"
_MODEL, _TRAINING, _EVALUATION, _SERVER = "Model", "Training", "Evaluation", "Server"
_OUTPUT, _GENERAL = "Output", "General"
ORDER = (
    *(_INPUT, _FEATURES, _PAIRS, _MATCHING, _MODEL, _TRAINING, _EVALUATION, _SERVER),
    *(_OUTPUT, _GENERAL),
)
"""Panels in the order of the help."""

_NAMES = {
    _INPUT: "points mask mask0 mask1 intrinsics intrinsics0 intrinsics1 images data split options pairs grid "
    "root use_all max_frames limit class_masks classes scenes subset size parts quick thorough "
    "limit_seconds",
    _FEATURES: "method detector max_keypoints scales batch shard executor workers",
    _PAIRS: "pairing overlap neighbours",
    _MATCHING: "weights keypoints ratio min_score mutual refine align max_side consensus views verify "
    "estimator threshold min_inliers min_similarity seed",
    _MODEL: "camera_model shared refine_principal_point adjust threads",
    _TRAINING: "overrides use_skipping is_resumed is_overfit",
    _EVALUATION: "methods weights_files trunk xfeat siamese vgg seeds refinement jobs update cache",
    _SERVER: "host port allow_host max_upload max_megapixels max_sessions memory idle",
    _OUTPUT: "output draw overlay blink matrix matches plots sheet count width max_points fps use_video pair "
    "file_format max_lines use_gains layout colmap "
    "k use_board overwrite json verbose",
    _GENERAL: "device debug version help",
}
PANELS = {name: panel for panel, names in _NAMES.items() for name in names.split()}
"""The panel of each parameter by its name in Python. Arguments are in the first panel, Input."""
# Where a command means something else by a name.
_OWN_PANELS = {
    ("match", "max_keypoints"): _MATCHING,
    ("stitch", "max_megapixels"): _OUTPUT,
    ("reconstruct", "seed"): _MODEL,
    ("evaluate", "limit"): _EVALUATION,
    ("evaluate", "seed"): _EVALUATION,
    ("evaluate", "max_side"): _EVALUATION,
    ("bench", "update"): _OUTPUT,
    ("bench", "xfeat"): _INPUT,
    ("bench", "weights"): _INPUT,
    ("bench", "seed"): _INPUT,
    ("convert", "limit"): _OUTPUT,
    ("convert", "seed"): _OUTPUT,
}

_INFOS = (OptionInfo, ArgumentInfo)
_HARD_SPACE = "\N{NO-BREAK SPACE}"
_SHORT_DEFAULT = re.compile(r"\[default: [^]]{,24}\]$")
_MAX_WIDTH = 120
_WIDE = 100
_NAME_WIDTH, _WIDE_NAME_WIDTH = 26, 42  # columns for an option and its value


def find_panel(command: str, name: str) -> str | None:
    """The panel of a parameter of a command; None where the tables do not name it."""
    return _OWN_PANELS.get((command, name), PANELS.get(name))


def arrange(command: str, run: Callable[..., None]) -> Callable[..., None]:
    """Gives the options of a command their panels, flags no value, and choices their values for the help."""

    @functools.wraps(run)
    def arranged(*arguments: Any, **options: Any) -> None:
        run(*arguments, **options)

    parameters = [
        _arrange_parameter(command, parameter)
        for parameter in inspect.signature(run, eval_str=True).parameters.values()
    ]
    arranged.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    arranged.__annotations__ = {each.name: each.annotation for each in parameters}
    return arranged


def _arrange_parameter(command: str, parameter: inspect.Parameter) -> inspect.Parameter:
    kind, *details = get_args(parameter.annotation) or (parameter.annotation,)
    if get_origin(parameter.annotation) is not Annotated or not isinstance(details[0], _INFOS):
        return parameter
    info = copy(details[0])  # several commands share it
    panel = find_panel(command, parameter.name)
    info.rich_help_panel = _INPUT if isinstance(info, ArgumentInfo) else panel or _GENERAL
    if info.metavar is None:
        info.metavar = _name_values(kind)
    return parameter.replace(annotation=Annotated[kind, info])


def _name_values(annotation: Any) -> str | None:
    """The values of an enumeration, nothing for a flag, else None."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for kind in kinds:
        if kind is bool:
            return ""
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(member.value) for member in kind)
    return None


class HelpCommand(TyperCommand):
    """A command that prints its help in panels."""

    def get_usage(self, ctx: Any) -> str:
        """The line ``Usage:``, also of errors."""
        return _tidy_usage(super().get_usage(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help."""
        _print_help(self, ctx)


class HelpGroup(TyperGroup):
    """A group of commands that prints its help in panels."""

    def get_usage(self, ctx: Any) -> str:
        """The line ``Usage:``, also of errors."""
        return _tidy_usage(super().get_usage(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help."""
        _print_help(self, ctx)


def _tidy_usage(usage: str) -> str:
    """Without typer's braces around an argument, and dots after a name that has its own."""
    return re.sub(r"(\.\.\.( [A-Z]+)?)\.\.\.", r"\1", usage.replace("{", "").replace("}", ""))


def _print_help(command: Any, ctx: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    console.width = min(console.width, _MAX_WIDTH)
    console.print(f"\n {command.get_usage(ctx)}\n", style="bold", soft_wrap=True)
    for line in _wrap(inspect.cleandoc(command.help or ""), console.width - 2):
        console.print(f" {line}".rstrip())
    console.print()
    panels: dict[str, list[tuple[Text, str]]] = {}
    if isinstance(command, TyperGroup):
        found = {name: command.get_command(ctx, name) for name in command.list_commands(ctx)}
        panels["Commands"] = [
            (Text(name, "bold cyan"), _first_paragraph(each.help)) for name, each in found.items() if each
        ]
    parameters = [each for each in command.get_params(ctx) if not getattr(each, "hidden", False)]
    for panel in ORDER:
        own = [each for each in parameters if (getattr(each, "rich_help_panel", None) or _GENERAL) == panel]
        if own:
            panels[panel] = [(_format_name(each), _format_meaning(each)) for each in own]
    _print_panels(console, panels)


def _print_panels(console: Console, panels: dict[str, list[tuple[Text, str]]]) -> None:
    """Prints panels of two columns, which are aligned across all of them."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    limit = _WIDE_NAME_WIDTH if console.width >= _WIDE else _NAME_WIDTH
    lines = [line for rows in panels.values() for name, _ in rows for line in name.plain.splitlines()]
    widths = [len(line) for line in lines if len(line) <= limit]
    width = max([*widths, *(len(word) for line in lines for word in line.split())])
    for title, rows in panels.items():
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=width)
        table.add_column()
        for name, meaning in rows:
            wrapped = _wrap(_SHORT_DEFAULT.sub(_keep_together, meaning), console.width - width - 6)
            text = Text("\n".join(wrapped).replace(_HARD_SPACE, " "))
            text.highlight_regex(r"\[default: [^]]*\]$", "dim")
            text.highlight_regex(r"\[required\]$", "red")
            table.add_row(name, text)
        console.print(Panel(table, title=title, title_align="left", border_style="dim"))


def _format_name(parameter: Any) -> Text:
    """An argument, or the names of an option and its value; the opposite of a flag is in a line below."""
    from rich.text import Text

    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return Text(name if " " in name else name.strip("[]"), "bold cyan")
    names = sorted(parameter.opts, key=len)
    value = (f" {parameter.metavar}", "yellow") if parameter.metavar else ""
    opposite = f"\n{', '.join(parameter.secondary_opts)}" if parameter.secondary_opts else ""
    return Text.assemble((", ".join(names), "bold cyan"), value, (opposite, "bold cyan"))


def _format_meaning(parameter: Any) -> str:
    """The help of a parameter and its default."""
    default = _format_default(parameter)
    is_required = parameter.required and parameter.param_type_name == "option"
    note = f"[default: {default}]" if default else "[required]" if is_required else ""
    return f"{' '.join((parameter.help or '').split())} {note}".strip()


def _keep_together(found: re.Match[str]) -> str:
    return found[0].replace(" ", _HARD_SPACE)


def _format_default(parameter: Any) -> str:
    shown, default = parameter.show_default, parameter.default
    if isinstance(shown, str):
        return shown
    if not shown or default is None or (default is False and not parameter.secondary_opts):
        return ""
    if isinstance(default, bool):
        return str((parameter.opts if default else parameter.secondary_opts)[0]).lstrip("-")
    if isinstance(default, float):
        return f"{default:g}"
    return f"{default.value if isinstance(default, Enum) else default}"


def _first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


def _wrap(text: str, width: int) -> Iterable[str]:
    """Lines of a docstring for a width: paragraphs, and lists whose items begin with a dash."""
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ""
        items: list[str] = []
        for line in paragraph.splitlines():
            if items and not line.startswith("- "):
                items[-1] += f" {line.strip()}"
            else:
                items.append(line)
        for item in items:
            indent = "  " if item.startswith("- ") else ""
            yield from textwrap.wrap(
                item, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
