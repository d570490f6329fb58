"""YAML of plain values: what settings need, and nothing by which a small file takes long or grows large.

No tags and no merge keys; few nodes, little depth; an alias (*name) counts as what it stands for. 1e-3 is a
number, as in YAML 1.2, and a date is text. Whatever is wrong is a `yaml.YAMLError` with a reason on one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from ucn.files.reading import QUOTED, shorten

MAX_NODES = 20_000
"""The most keys, values and lists of a text."""
MAX_DEPTH = 32
"""How deeply lists and mappings may be nested."""

_MAX_DIGITS = 64  # characters of a number
_PLAIN = ("null", "bool", "int", "float")
_TAG = "tag:yaml.org,2002:"


def load_yaml(text: str, tags: Sequence[str] = ()) -> Any:
    """The values of a YAML text.

    Args:
        text: the whole document.
        tags: names of tags that mark plain mappings, such as "opencv-matrix".

    Raises:
        yaml.YAMLError: it is not YAML, has another tag, repeats a key, or is too large.
    """
    try:
        loader = _Loader(text)  # checks characters
        loader.allowed = frozenset(f"{_TAG}{tag}" for tag in tags)
        return loader.get_single_data()
    except (yaml.YAMLError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise yaml.YAMLError(_explain(error)) from error


def _explain(error: Exception) -> str:
    """What is wrong and where, without the text that PyYAML quotes."""
    mark = getattr(error, "problem_mark", None)
    reason = shorten(getattr(error, "problem", None) or error) or type(error).__name__
    return reason if mark is None else f"{reason} (line {mark.line + 1}, column {mark.column + 1})"


class _Loader(yaml.SafeLoader):
    """Refuses while it parses, before anything is built."""

    allowed: frozenset[str] = frozenset()
    _nodes = _depth = 0

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[str, int] = {}  # of finished nodes by anchor

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        before = self._nodes
        if isinstance(event, yaml.AliasEvent):
            # One inside itself, which never ends, has no size yet.
            self._count(self._sizes.get(str(event.anchor), MAX_NODES), mark)
            return super().compose_node(parent, index)
        if event.tag not in (None, "!") and event.tag not in self.allowed:
            problem = f"the tag {event.tag[:QUOTED]!r} is not read; write the plain value"
            raise yaml.composer.ComposerError(None, None, problem, mark)
        self._count(1, mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            problem = f"it is nested too deeply, over {MAX_DEPTH} levels"
            raise yaml.composer.ComposerError(None, None, problem, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = self._nodes - before
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS:
            raise yaml.composer.ComposerError(None, None, f"a number has over {_MAX_DIGITS} digits", mark)
        return node

    def _count(self, nodes: int, mark: Any) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            problem = f"it has over {MAX_NODES:,} values, or an alias in itself"
            raise yaml.composer.ComposerError(None, None, problem, mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses repeated keys, of which PyYAML would keep the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key '{key.value[:QUOTED]}' is repeated; keep one"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in self.allowed:
            if not isinstance(node, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "its value is not a mapping", node.start_mark
                )
            return self.construct_mapping(node, deep=True)
        return super().construct_object(node, deep)


_NUMBERS = (f"{_TAG}int", f"{_TAG}float")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.removeprefix(_TAG) in _PLAIN]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
