"""The list of data sets, and the one function that opens them.

To add a data set, describe it in `ucn.data.descriptions`, write a reader in `ucn.data.sets` (its docstring
has the steps), and name its module in `_MODULES` below. Commands, recipes and benchmarks then find it by
name.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from ucn.data.descriptions import DESCRIPTIONS, DataInfo
from ucn.data.pairs import PairData
from ucn.errors import DataError
from ucn.files.suggestions import suggest

Option = str | int | float | bool
"""The value of an option of a reader."""


# Each module of `ucn.data.sets` has `open_folder(folder, split, **options) -> PairData`.
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
    "multiview": "posed.scenes",
    "video": "video.tracking",
}


def list_data() -> tuple[DataInfo, ...]:
    """Descriptions of all data sets that can be read."""
    return DESCRIPTIONS


def find_info(name: str) -> DataInfo:
    """The description of a data set; raises `DataError` where the name is unknown."""
    _check_name(name)
    return next(info for info in DESCRIPTIONS if info.name == name)


def _check_name(name: str) -> None:
    if name not in _MODULES:
        hint = suggest(name, _MODULES)
        raise DataError(f"no data set '{name[:80]}'{hint} (there are {', '.join(_MODULES)})")


def _find_module(name: str) -> ModuleType:
    """The module of `ucn.data.sets` that reads a data set."""
    _check_name(name)
    return importlib.import_module(f"ucn.data.sets.{_MODULES[name]}")


def open_data(
    name: str, folder: str | Path, split: str | None = None, options: Mapping[str, Option] | None = None
) -> PairData:
    """Opens a data set: indexes its folder, and reads no pair yet.

    Args:
        name: the name of a data set, as `list_data` has it.
        folder: its folder.
        split: one of its `splits`; None selects the first.
        options: options of this reader, such as ``{"ground_truth": "occ"}``; text is converted to the type
            of the option's default.

    Raises:
        DataError: the name, split or an option is unknown, or the folder does not hold that data set; the
            message names the data set that it looks like.
    """
    info = find_info(name)
    split = info.splits[0] if split is None else split
    if split not in info.splits:
        raise DataError(f"{name} has no split '{split[:80]}' (there are {', '.join(info.splits)})")
    arguments = _read_options(name, options or {})
    try:
        data: PairData = _find_module(name).open_folder(Path(folder), split, **arguments)
    except DataError as error:
        likely = guess_data(Path(folder))
        if likely and name not in likely:
            raise DataError(f"{error}; it looks like '{likely[0]}'") from error
        raise
    return data


def guess_data(folder: Path) -> list[str]:
    """Names of the data sets whose markers a folder has, most specific first.

    `synthetic` and `video` are not considered: they match any folder of images.
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
    """The options of a data set's reader, with their defaults."""
    parameters = inspect.signature(_find_module(name).open_folder).parameters
    return {parameter.name: parameter.default for parameter in list(parameters.values())[2:]}


def explain_options(name: str) -> dict[str, str]:
    """The description of each option of a reader, from the docstring of its ``open_folder``."""
    documentation = inspect.getdoc(_find_module(name).open_folder) or ""
    arguments = documentation.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, flags=re.MULTILINE)
    meanings = {key: " ".join(text.split()) for key, text in entries}
    return {key: meanings.get(key, "") for key in list_options(name)}


def parse_options(texts: Iterable[str]) -> dict[str, Option]:
    """Parses options written ``key=value``; raises `DataError` for others."""
    options: dict[str, Option] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise DataError(f"an option must be key=value, got '{text[:80]}'")
        options[key.strip()] = value.strip()
    return options


def _read_options(name: str, options: Mapping[str, Option]) -> dict[str, Option]:
    """Converts options to the types of their defaults; raises `DataError` for unknown ones."""
    defaults = list_options(name)
    read: dict[str, Option] = {}
    for key, value in options.items():
        if key not in defaults:
            legal = ", ".join(defaults) or "none"
            raise DataError(f"{name} has no option '{key[:80]}' (there are: {legal})")
        read[key] = _convert(value, type(defaults[key]), f"option {key} of {name}")
    return read


def _convert(value: Option, kind: type, where: str) -> Option:
    text = str(value).lower()
    if kind is bool and text in ("true", "false", "yes", "no", "1", "0"):
        return text in ("true", "yes", "1")
    if type(value) is kind:
        return value
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number: int | float = kind(text)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    raise DataError(f"{where} must be {kind.__name__}, got {str(value)[:40]!r}")
