"""Recipe files: strict YAML that becomes a `TrainConfig`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ucn.config import TrainConfig
from ucn.errors import ConfigError
from ucn.train.start import names_weights
from ucn.train.teacher import note_teacher
from ucn.weights import load_weights

_MAX_BYTES = 2**20


def read_recipe(path: Path, overrides: Sequence[str] = (), data: Sequence[str] = ()) -> TrainConfig:
    """Reads a recipe and applies what the command line changes.

    ``${NAME}`` in `init`, in the teacher's weights and in the folders of sources is replaced by the
    environment variable. Where `init` is a whole network, keys of `model` that are not given are those of
    that network. A teacher gets the hash of its file.

    Args:
        path: a .yaml file.
        overrides: each ``key=value``, keys dotted (``loss.radius``, ``sources.0.weight``), values in YAML.
        data: each ``name=folder``: the folder of the recipe's source of that name, or a further source. A
            name that comes twice means two sources.

    Raises:
        ConfigError: the file is missing, too large or not YAML, has unknown or repeated keys or values out of
            range, or names an environment variable that is not set.
        WeightsError: `init` or the teacher is a whole network whose file is missing or damaged.
    """
    try:
        if not path.is_file():
            raise ConfigError(f"no recipe at {path}: expected a .yaml file")
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} has {path.stat().st_size} bytes; recipes have at most {_MAX_BYTES}")
        values = _parse(path.read_text(encoding="utf-8"))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError) as error:  # PyYAML lets a ValueError of a bad date through
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, got {type(values).__name__}")
    given = _take_folders(values, data)
    for override in overrides:  # last, so that they reach the sources that `data` adds
        _apply(values, override)
    _fill_in(values, given)
    _take_model(values)
    try:
        config = TrainConfig.from_dict(values)
    except ConfigError as error:
        changes = [*overrides, *data]
        where = f"{path} with {', '.join(changes)}" if changes else path
        raise ConfigError(f"{where}: {error}") from None
    return note_teacher(config)


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but 1e-3 is a number, as in YAML 1.2 and everywhere else, and no key may stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; PyYAML itself would keep the last of equal keys."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key '{key.value[:80]}' stands twice; keep one"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def _take_folders(values: dict[str, Any], data: Sequence[str]) -> list[int]:
    """Gives sources the folders of the command line; returns which sources these are."""
    sources = values.setdefault("sources", [])
    given: list[int] = []
    if not isinstance(sources, list):
        return given  # `from_dict` says what is wrong with it
    for text in data:
        name, separator, folder = text.partition("=")
        if not (separator and name.strip() and folder.strip()):
            raise ConfigError(f"data must be NAME=DIR, got '{text[:80]}'")
        names = [source.get("name") if isinstance(source, dict) else None for source in sources]
        place = next((i for i, known in enumerate(names) if known == name and i not in given), None)
        if place is None:
            place = len(sources)
            sources.append({"name": name})
        sources[place]["folder"] = folder
        given.append(place)
    return given


def _fill_in(values: dict[str, Any], given: Sequence[int]) -> None:
    """Puts environment variables into `init`, the teacher's weights and folders, but not `given` ones."""
    if isinstance(values.get("init"), str):
        values["init"] = _fill_in_variables(values["init"], "init")
    teacher = values.get("teacher")
    if isinstance(teacher, dict) and isinstance(teacher.get("weights"), str):
        teacher["weights"] = _fill_in_variables(teacher["weights"], "teacher.weights")
    sources = values.get("sources")
    for place, source in enumerate(sources if isinstance(sources, list) else ()):
        if place not in given and isinstance(source, dict) and isinstance(source.get("folder"), str):
            remedy = f", or give the folder itself: --data {str(source.get('name'))[:80]}=DIR"
            source["folder"] = _fill_in_variables(source["folder"], f"sources[{place}].folder", remedy)


def _take_model(values: dict[str, Any]) -> None:
    """Gives `model` the keys of the whole network that training starts from, but those the recipe has."""
    init, model = values.get("init"), values.get("model", {})
    is_whole = values.get("init_part", "whole") == "whole"
    if is_whole and isinstance(init, str) and isinstance(model, dict) and names_weights(init):
        values["model"] = load_weights(init).model.config.to_dict() | model


def _fill_in_variables(text: str, key: str, remedy: str = "") -> str:
    filled = os.path.expandvars(text)
    unset = re.search(r"\$\{(\w+)\}", filled)
    if unset:
        raise ConfigError(
            f"{key} is {text}, but the environment variable {unset[1]} is not set; set it to the folder that "
            f"holds the data{remedy}"
        )
    return filled


def _enter(values: Any, parent: str, key: str) -> Any:
    """What a part of a dotted key names: the value of a key, or the entry of a list, counted from 0."""
    if isinstance(values, dict):
        return values.setdefault(parent, {})
    if parent not in map(str, range(len(values))):
        raise ConfigError(f"there is no entry '{parent}' for '{key}': that list has {len(values)}, from 0")
    return values[int(parent)]


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"an override must be key=value, got '{override}'")
    *parents, last = key.split(".")
    for parent in parents:
        values = _enter(values, parent, key)
        if not isinstance(values, dict | list):
            raise ConfigError(f"'{parent}' in '{key}' has no keys of its own")
    if not isinstance(values, dict):
        raise ConfigError(f"'{key}' is an entry of a list: set its keys, as in '{key}.weight'")
    try:
        values[last] = _parse(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"the value of '{override}' is not YAML: {error}") from error
