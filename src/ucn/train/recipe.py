"""Recipe files: YAML, read strictly into a `TrainConfig`.

Modules that import torch are imported where they are needed: the command line finds a recipe before that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ucn.config import TrainConfig
from ucn.config.strict_yaml import load_yaml
from ucn.errors import ConfigError, DataError
from ucn.files.reading import read_text
from ucn.files.suggestions import suggest

_MAX_BYTES = 2**18
_SHIPPED = Path(__file__).parents[1] / "recipes"


def list_recipes() -> tuple[str, ...]:
    """Names of the shipped recipes, such as "own" or "paper/semantic-hn"."""
    paths = (path.relative_to(_SHIPPED).with_suffix("") for path in _SHIPPED.rglob("*.yaml"))
    return tuple(sorted(path.as_posix() for path in paths))


def find_recipe(name_or_path: str | Path) -> Path:
    """The given file, or the file of a shipped recipe by its name.

    Raises:
        ConfigError: it is neither, or cannot be looked up.
    """
    path, names = Path(name_or_path), list_recipes()
    try:
        if path.is_file():
            return path
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror or error}") from error
    if path.as_posix() in names:
        return _SHIPPED / f"{path.as_posix()}.yaml"
    raise ConfigError(
        f"no recipe at {path}{suggest(path.as_posix(), names)}: expected a .yaml file or the name of a "
        f"shipped recipe ({', '.join(names)})"
    )


def read_recipe(recipe: str | Path, overrides: Sequence[str] = (), data: Sequence[str] = ()) -> TrainConfig:
    """Reads a recipe and applies overrides.

    ``${NAME}`` in `init`, in the weights of teachers and in the folders of sources is replaced by the
    environment variable. Where `init` is a whole network, missing keys of `model` are taken from it. A
    teacher gets the hash of its file.

    Args:
        recipe: a .yaml file, or the name of a shipped recipe.
        overrides: each ``key=value``, with dotted keys (``loss.radius``, ``sources.0.weight``) and YAML
            values.
        data: each ``name=folder``: the folder of the recipe's source of that name, or of an additional
            source. The same name twice means two sources.

    Raises:
        ConfigError: the file is missing, too large or not YAML, has unknown or repeated keys or values out of
            range, or names an environment variable that is not set.
        WeightsError: `init` or a teacher is a whole network whose file is missing or damaged.
    """
    from ucn.train.teacher import record_teacher_hash

    path = find_recipe(recipe)
    try:
        values = load_yaml(read_text(path, "recipe", _MAX_BYTES))
    except DataError as error:
        raise ConfigError(str(error), path=path) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}", path=path) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, got {type(values).__name__}")
    given = _set_folders(values, data)
    for override in overrides:  # after `data`, whose sources they may change
        _apply(values, override)
    _expand_variables(values, given)
    _inherit_model(values)
    try:
        config = TrainConfig.from_dict(values)
    except ConfigError as error:
        changes = [*overrides, *data]
        where = f"{path} with {', '.join(changes)}" if changes else path
        raise ConfigError(f"{where}: {error}") from None
    return record_teacher_hash(config)


def _set_folders(values: dict[str, Any], data: Sequence[str]) -> list[int]:
    """Sets the folders of sources from `data`; returns the indices of these sources."""
    sources = values.setdefault("sources", [])
    given: list[int] = []
    if not isinstance(sources, list):
        return given  # `from_dict` raises the error
    for text in data:
        name, separator, folder = text.partition("=")
        if not (separator and name.strip() and folder.strip()):
            raise ConfigError(f"data must be NAME=DIR, got '{text[:80]}'")
        names = [source.get("name") if isinstance(source, dict) else None for source in sources]
        index = next((i for i, known in enumerate(names) if known == name and i not in given), None)
        if index is None:
            index = len(sources)
            sources.append({"name": name})
        sources[index]["folder"] = folder
        given.append(index)
    return given


def _expand_variables(values: dict[str, Any], given: Sequence[int]) -> None:
    """Expands environment variables in `init`, the weights of teachers and folders, except `given` ones."""
    if isinstance(values.get("init"), str):
        values["init"] = _expand(values["init"], "init")
    teacher = values.get("teacher")
    if isinstance(teacher, dict) and isinstance(teacher.get("weights"), str):
        teacher["weights"] = _expand(teacher["weights"], "teacher.weights")
    sources = values.get("sources")
    for index, source in enumerate(sources if isinstance(sources, list) else ()):
        if index not in given and isinstance(source, dict) and isinstance(source.get("folder"), str):
            remedy = f", or give the folder: data {str(source.get('name'))[:80]}=DIR"
            source["folder"] = _expand(source["folder"], f"sources[{index}].folder", remedy)
        if isinstance(source, dict) and isinstance(source.get("teacher"), str):
            source["teacher"] = _expand(source["teacher"], f"sources[{index}].teacher")


def _inherit_model(values: dict[str, Any]) -> None:
    """Fills in missing keys of `model` from the network that training starts from."""
    from ucn.train.start import names_weights
    from ucn.weights import load_weights

    init, model = values.get("init"), values.get("model", {})
    is_whole = values.get("init_part", "whole") == "whole"
    if is_whole and isinstance(init, str) and isinstance(model, dict) and names_weights(init):
        values["model"] = load_weights(init).model.config.to_dict() | model


def _expand(text: str, key: str, remedy: str = "") -> str:
    expanded = os.path.expandvars(text)
    unset = re.search(r"\$\{(\w+)\}", expanded)
    if unset:
        raise ConfigError(
            f"{key} is {text}, but the environment variable {unset[1]} is not set; set it to the folder that "
            f"holds the data{remedy}"
        )
    return expanded


def _enter(values: Any, parent: str, key: str) -> Any:
    """The value at one part of a dotted key: of a mapping by key, of a list by index from 0."""
    if isinstance(values, dict):
        return values.setdefault(parent, {})
    if parent not in map(str, range(len(values))):
        raise ConfigError(f"'{key}' has no entry {parent}: the list has {len(values)}, counted from 0")
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
        values[last] = load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of '{override}' is not YAML: {error}") from error
