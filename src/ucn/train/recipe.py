"""Recipe files: strict YAML that becomes a `TrainConfig`."""

from __future__ import annotations

import os
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
        ConfigError: the file is missing, too large, not YAML, or has unknown keys or values out of range.
    """
    if not path.is_file():
        raise ConfigError(f"no recipe at {path}: expected a .yaml file")
    if path.stat().st_size > _MAX_BYTES:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes; recipes have at most {_MAX_BYTES}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, got {type(values).__name__}")
    for override in overrides:
        _apply(values, override)
    missing = {"name", "steps"} - values.keys()
    if missing:
        raise ConfigError(f"{path} lacks the key '{sorted(missing)[0]}'")
    if isinstance(values.get("init"), str):
        values["init"] = os.path.expandvars(values["init"])
    return TrainConfig.from_dict(values)


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
        values[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of '{override}' is not YAML: {error}") from error
