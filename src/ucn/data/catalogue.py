"""Which data sets can be read, what each is, and the one way to open them."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from ucn.data.pairs import PairData
from ucn.errors import DataError

Option = str | int | float | bool
"""What an option of a reader may be."""


@dataclass(frozen=True)
class DataInfo:
    """What a data set is.

    Attributes:
        name: how commands and recipes call it.
        title: its own name, with year.
        task: the same scene, or the same part of another instance.
        truth: where its correspondences come from.
        layout: the files that its reader looks for, a line each, relative to the folder.
        splits: names of its parts; the first is the default.
        licence: what its owner allows, and since many allow research only, in plain words.
        source: where to get it; empty for the user's own data.
        markers: paths or glob patterns of which one exists in such a folder.
        inside: official sub-folders in which they may be, too.
    """

    name: str
    title: str
    task: Literal["geometric", "semantic", "any"]
    truth: str
    layout: tuple[str, ...]
    splits: tuple[str, ...]
    licence: str
    source: str
    markers: tuple[str, ...]
    inside: tuple[str, ...] = ()


# Each module has `INFO`, a DataInfo, and `open_folder(folder, split, **options) -> PairData`.
_MODULES = {
    "kitti-flow": "flow.kitti_flow",
    "sintel": "flow.sintel",
    "middlebury-flow": "flow.middlebury_flow",
    "middlebury-stereo": "flow.middlebury_stereo",
    "hpatches": "hpatches",
    "kitti-raw": "kitti.raw",
    "kitti-odometry": "kitti.odometry",
    "seven-scenes": "posed.seven_scenes",
    "strecha": "posed.strecha",
    "cub": "semantic.cub",
    "faces": "semantic.faces",
    "pf-willow": "semantic.pf_willow",
    "pf-pascal": "semantic.pf_pascal",
    "spair": "semantic.spair",
    "pascal-berkeley": "semantic.pascal_berkeley",
    "flowweb": "semantic.flowweb",
    "synthetic": "synthetic",
    "own": "own.folder",
    "colmap": "posed.colmap",
    "video": "video.clips",
}


def list_data() -> tuple[DataInfo, ...]:
    """Every data set that can be read."""
    return tuple(_import(module).INFO for module in _MODULES.values())


def find_info(name: str) -> DataInfo:
    """What is known about a data set; raises `DataError`, naming the legal ones, where it is unknown."""
    info: DataInfo = _import(_module_of(name)).INFO
    return info


def _import(module: str) -> ModuleType:
    return importlib.import_module(f"ucn.data.sets.{module}")


def _module_of(name: str) -> str:
    """The module that reads a data set."""
    if name not in _MODULES:
        close = difflib.get_close_matches(name, _MODULES, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise DataError(f"no data set '{name[:80]}'{hint} (there are {', '.join(_MODULES)})")
    return _MODULES[name]


def open_data(
    name: str, folder: str | Path, split: str | None = None, options: Mapping[str, Option] | None = None
) -> PairData:
    """Opens a data set: indexes its folder, reads no pair yet.

    Args:
        name: one of `list_data`.
        folder: where it lies.
        split: one of its `splits`; None means the first of them.
        options: of this reader alone, such as ``truth=occ``; text is converted to what the reader declares.

    Raises:
        DataError: the name, split or an option is unknown, or the folder is not that data set (where it looks
            like another one, that is said).
    """
    info = find_info(name)
    split = info.splits[0] if split is None else split
    if split not in info.splits:
        raise DataError(f"{name} has no split '{split[:80]}' (there are {', '.join(info.splits)})")
    reader = _import(_module_of(name)).open_folder
    arguments = _read_options(name, options or {})
    try:
        data: PairData = reader(Path(folder), split, **arguments)
    except DataError as error:
        likely = guess_data(Path(folder))
        if likely and name not in likely:
            raise DataError(f"{error}; it looks like '{likely[0]}'") from error
        raise
    return data


def guess_data(folder: Path) -> list[str]:
    """Names of the data sets whose markers are in a folder, most specific first.

    Any folder of images could be synthetic or video, so those two are not named.
    """
    if not folder.is_dir():
        return []
    found: list[tuple[int, str]] = []
    for info in (info for info in list_data() if info.name not in ("synthetic", "video")):
        hits = [
            marker
            for marker in info.markers
            for place in (folder, *(folder / name for name in info.inside))
            if next(place.glob(marker), None) is not None
        ]
        if hits:
            found.append((max(len(marker) for marker in hits), info.name))
    return [name for _, name in sorted(found, reverse=True)]


def list_options(name: str) -> dict[str, Option]:
    """The options of a data set's reader with their defaults."""
    reader = _import(_module_of(name)).open_folder
    parameters = list(inspect.signature(reader).parameters.values())[2:]
    return {parameter.name: parameter.default for parameter in parameters}


def explain_options(name: str) -> dict[str, str]:
    """What each option of a data set's reader means: its line in the docstring of ``open_folder``."""
    documentation = inspect.getdoc(_import(_module_of(name)).open_folder) or ""
    arguments = documentation.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, flags=re.MULTILINE)
    meanings = {key: " ".join(text.split()) for key, text in entries}
    return {key: meanings.get(key, "") for key in list_options(name)}


def parse_options(texts: Iterable[str]) -> dict[str, Option]:
    """Options as the command line and recipes give them, ``key=value``; raises `DataError` for others."""
    options: dict[str, Option] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise DataError(f"an option must be key=value, got '{text[:80]}'")
        options[key.strip()] = value.strip()
    return options


def _read_options(name: str, options: Mapping[str, Option]) -> dict[str, Option]:
    """Options for a reader, text converted by the type of its default; unknown ones are refused."""
    defaults = list_options(name)
    read: dict[str, Option] = {}
    for key, value in options.items():
        if key not in defaults:
            legal = ", ".join(defaults) or "none"
            raise DataError(f"{name} has no option '{key[:80]}' (there are: {legal})")
        read[key] = _convert(value, type(defaults[key]), f"option {key} of {name}")
    return read


def _convert(value: Option, wanted: type, where: str) -> Option:
    text = str(value).lower()
    if wanted is bool and text in ("true", "false", "yes", "no", "1", "0"):
        return text in ("true", "yes", "1")
    if type(value) is wanted:
        return value
    if wanted in (int, float) and not isinstance(value, bool):
        try:
            number: int | float = wanted(text)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    raise DataError(f"{where} must be {wanted.__name__}, got {str(value)[:40]!r}")
