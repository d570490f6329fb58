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

_MAX_BYTES = 2**20


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Reads a recipe and applies ``key=value`` overrides, keys dotted, values in YAML.

    ``${NAME}`` in `init` is replaced by the environment variable.

    Raises:
        ConfigError: the file is missing, too large or not YAML, has unknown or repeated keys or values out of
            range, or names an environment variable that is not set.
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
    for override in overrides:
        _apply(values, override)
    if isinstance(values.get("init"), str):
        values["init"] = _fill_in_variables(values["init"])
    try:
        return TrainConfig.from_dict(values)
    except ConfigError as error:
        where = f"{path} with {', '.join(overrides)}" if overrides else path
        raise ConfigError(f"{where}: {error}") from None


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


def _fill_in_variables(text: str) -> str:
    filled = os.path.expandvars(text)
    unset = re.search(r"\$\{(\w+)\}", filled)
    if unset:
        raise ConfigError(f"init is {text}, but the environment variable {unset[1]} is not set")
    return filled


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"an override must be key=value, got '{override}'")
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ConfigError(f"'{parent}' in '{key}' has no keys of its own")
    try:
        values[last] = _parse(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"the value of '{override}' is not YAML: {error}") from error
