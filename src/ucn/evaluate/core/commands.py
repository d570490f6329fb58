"""The command that makes a report again, where a report was made by several."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

# A word of a shell, with its quotes: as they are, $UCN_DATA/… still means what it did.
_WORD = re.compile(r"""(?:'[^']*'|"[^"\\]*"|[^\s'"\\])+""")
_METHODS, _WEIGHTS = "--methods", "--weights-file"
_FILES = ("--trunk", "--xfeat", "--siamese", "--vgg")


def extend_command(then: str, now: str, names: Sequence[str], added: Sequence[str]) -> str:
    """The command of an earlier run, so that it also makes what a later run added.

    Args:
        then: of the earlier run.
        now: of the later run, which measured some methods.
        names: of all methods.
        added: those of them that the earlier run did not have.

    Returns:
        The earlier command with the added methods and with the files that the later run was given; the later
        one with all methods where the earlier is none of ``ucn evaluate``.
    """
    before, after = _split(then), _split(now)
    if before is None:
        return then if after is None else _join(_set(after, _METHODS, _quote(names)))
    for option, *values in [] if after is None else after:
        if option in _FILES and values:
            before = _set(before, option, *values)
        elif option == _WEIGHTS and values:
            before = _add_weights(before, values)
    if added:
        listed = next((values for option, *values in before if option == _METHODS and values), None)
        asked = list(names) if listed is None else _unquote(listed[0]).split(",")
        asked += [name for name in added if name not in asked]
        before = _set(before, _METHODS, _quote(asked))
    return _join(before)


def _split(command: str) -> list[list[str]] | None:
    """Words of a command with their quotes, those of each option together; None where it is another's."""
    words = _WORD.findall(command)
    if words[:2] != ["ucn", "evaluate"] or " ".join(words) != command:
        return None
    groups = [words[:3]]
    for word in words[3:]:
        if word.startswith("-"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _join(groups: Sequence[Sequence[str]]) -> str:
    return " ".join(word for group in groups for word in group)


def _set(groups: list[list[str]], option: str, *values: str) -> list[list[str]]:
    """With an option in place of the one that is there, else after name, data and methods."""
    if any(group[0] == option for group in groups):
        return [[option, *values] if group[0] == option else group for group in groups]
    place = 1 + max(n for n, group in enumerate(groups) if n == 0 or group[0] in ("--data", _METHODS))
    return [*groups[:place], [option, *values], *groups[place:]]


def _add_weights(groups: list[list[str]], values: list[str]) -> list[list[str]]:
    """With a file of weights, in place of one of the same name."""
    stem = _stem(values[0])
    for number, (option, *own) in enumerate(groups):
        if option == _WEIGHTS and own and _stem(own[0]) == stem:
            return [*groups[:number], [_WEIGHTS, *values], *groups[number + 1 :]]
    place = 1 + max(
        n for n, group in enumerate(groups) if n == 0 or group[0] in ("--data", _METHODS, _WEIGHTS)
    )
    return [*groups[:place], [_WEIGHTS, *values], *groups[place:]]


def _stem(word: str) -> str:
    return PurePath(_unquote(word)).stem


def _quote(names: Sequence[str]) -> str:
    return shlex.quote(",".join(names))


def _unquote(word: str) -> str:
    return " ".join(shlex.split(word))
