"""Which parts of data sets weights were trained on, and whether measured pairs are among them.

A part is ``NAME PART``: a data set and its split (``cub train``), a scene (``multiview lund``) or frames
(``kitti-odometry 600-639``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ucn.data.catalogue import find_info
from ucn.errors import DataError

_NAMED_PARTS = ("scenes", "frames")  # options of readers that name parts of a set
_WITHOUT_PARTS = ("synthetic", "own", "classes", "video", "colmap")
_TRAINING, _HELD_OUT = "train", ("val", "test")


def list_training_parts(training: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts that a training record names; none for photographs and sets of your own."""
    sources = training.get("sources")
    parts: list[str] = []
    for source in sources if isinstance(sources, list) else ():
        name = str(source.get("name")) if isinstance(source, dict) else ""
        splits = _list_splits(name)
        if name in _WITHOUT_PARTS or not splits:
            continue
        options = dict(option.partition("=")[::2] for option in source.get("options") or ())
        named = next((options[key] for key in _NAMED_PARTS if options.get(key)), "")
        chosen = named.split(",") if named else [source.get("split") or splits[0]]
        parts += [f"{name} {part}" for part in chosen]
    return tuple(dict.fromkeys(parts))


def find_overlap(trained_on: Iterable[str], measured: Iterable[str]) -> list[str]:
    """The parts of `trained_on` that share pairs with one of `measured`.

    Different scenes share none, nor do a training and a held-out split. Anything else of one data set may.
    """
    measured = list(measured)
    return [part for part in trained_on if any(_may_share(part, other) for other in measured)]


def _may_share(trained: str, measured: str) -> bool:
    (name, _, part), (other_name, _, other) = trained.partition(" "), measured.partition(" ")
    if name != other_name:
        return False
    if part == _TRAINING and other in _HELD_OUT:
        return False
    splits = _list_splits(name)
    return part == other or part in splits or other in splits


def _list_splits(name: str) -> tuple[str, ...]:
    try:
        return find_info(name).splits
    except DataError:  # of another version, or images by class
        return ()
