"""Strict reading of settings from plain dictionaries, with errors that name the key and the value."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Self

from ucn.errors import ConfigError
from ucn.files import suggest


class Config:
    """Base of all settings: strict reading from plain dictionaries, and back."""

    def __post_init__(self) -> None:
        """Checks the type of every field; subclasses then check ranges."""
        for name, hint in typing.get_type_hints(type(self)).items():
            given = getattr(self, name)
            value = _read_value(hint, given, name)
            if value is not given:
                object.__setattr__(self, name, value)  # an int for a float, a list for a tuple

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "") -> Self:
        """Builds the config from nested dictionaries.

        Args:
            values: keys are field names; nested configs are dictionaries.
            where: dotted path printed in errors.

        Raises:
            ConfigError: a key is unknown (the closest legal one is named) or missing, or a value is of the
                wrong type or out of range.
        """
        if not isinstance(values, dict):
            raise ConfigError(f"{where or cls.__name__} must be a mapping, got {type(values).__name__}")
        hints = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        legal = [field.name for field in fields]
        given: dict[str, Any] = {}
        for key, value in values.items():
            name = str(key)[:80]
            path = f"{where}.{name}" if where else name
            if key not in legal:
                raise ConfigError(f"unknown key '{path}'{suggest(name, legal)} (legal: {', '.join(legal)})")
            given[key] = _read_value(hints[key], value, path)
        for field in fields:
            if field.name not in given and field.default is dataclasses.MISSING:
                raise ConfigError(f"{where or cls.__name__} lacks the key '{field.name}'")
        try:
            return cls(**given)
        except ConfigError as error:  # a message of `__post_init__` begins with the field's name
            raise ConfigError(f"{where}.{error}" if where else str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries that `from_dict` reads back to an equal config."""
        return _plain(dataclasses.asdict(self))  # type: ignore[call-overload, no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _read_value(hint: Any, value: Any, path: str) -> Any:
    """Checks one value against its annotation; ints become floats and lists tuples where annotated so."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, value, path)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise ConfigError(f"{path} must be one of {', '.join(map(str, arguments))}, got {_format(value)}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path} must be a list, got {_format(value)}")
        if arguments[-1] is Ellipsis:
            arguments = (arguments[0],) * len(value)
        if len(value) != len(arguments):
            raise ConfigError(f"{path} must have {len(arguments)} values, got {len(value)}")
        return tuple(
            _read_value(a, v, f"{path}[{i}]") for i, (a, v) in enumerate(zip(arguments, value, strict=True))
        )
    if isinstance(hint, type) and issubclass(hint, Config):
        return value if isinstance(value, hint) else hint.from_dict(value, path)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an int larger than any float
            number = math.inf
        if not math.isfinite(number):
            raise ConfigError(f"{path} must be a finite number, got {_format(value)}")
        return value if isinstance(value, float) else number
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{path} must be {hint.__name__}, got {_format(value)}")
    return value


def _read_union(members: tuple[Any, ...], value: Any, path: str) -> Any:
    """Checks a value against the members of a union: None, words of a `Literal`, and one other type."""
    if value is None and type(None) in members:
        return None
    literals = [member for member in members if typing.get_origin(member) is Literal]
    others = [member for member in members if member is not type(None) and member not in literals]
    if not others:
        return _read_value(literals[0], value, path)
    words = [word for literal in literals for word in typing.get_args(literal)]
    if words and isinstance(value, str):
        legal = ", ".join([others[0].__name__, *map(repr, words)])
        legal += " or None" if type(None) in members else ""
        require(value in words, f"{path} must be {legal}", value)
        return value
    return _read_value(others[0], value, path)


def require(condition: bool, rule: str, value: Any) -> None:
    """Raises a `ConfigError` with the rule, which begins with the field's name, unless it holds."""
    if not condition:
        raise ConfigError(f"{rule}, got {_format(value)}")


def require_within(config: Config, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises a `ConfigError` where a field lies outside its range, whose ends are included."""
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        require(low <= value <= high, f"{name} must be in [{low}, {high}]", value)


def require_at_least(config: Config, **limits: float) -> None:
    """Raises a `ConfigError` where a field lies below its limit; None lies nowhere."""
    for name, limit in limits.items():
        value = getattr(config, name)
        require(value is None or value >= limit, f"{name} must be at least {limit}", value)


def require_above_zero(config: Config, *names: str) -> None:
    """Raises a `ConfigError` where a field is not above 0."""
    for name in names:
        require(getattr(config, name) > 0, f"{name} must be above 0", getattr(config, name))


def require_at_most(config: Config, **limits: float) -> None:
    """Raises a `ConfigError` for sizes far above any use, so that a typing error does not exhaust memory."""
    for name, limit in limits.items():
        value = getattr(config, name)
        is_legal = value is None or isinstance(value, str) or value <= limit
        require(is_legal, f"{name} must be at most {limit}", value)


def _format(value: Any) -> str:
    """A value as errors print it, shortened."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to print ints of more than 4300 digits
        return f"{type(value).__name__} of over 4300 digits"
