"""What a method is to an evaluation: its name and key, what describes images, and what answers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from ucn.errors import ConfigError
from ucn.features import Extractor
from ucn.paper import NearestNeighbours, PairMatcher

if TYPE_CHECKING:
    from ucn.evaluate.core.benchmark_pairs import Entry
    from ucn.evaluate.core.preparation import Prepared


class Answerer(Protocol):
    """Answers a pair by itself, without dense features."""

    @property
    def images(self) -> int:
        """How many images of a pair it describes."""

    def find(self, entry: Entry, prepared: Prepared) -> Tensor:
        """Where the points of a pair lie in its image 1, in pixels as it is shown: (N, 2)."""


@dataclass(frozen=True, eq=False)
class MethodInfo:
    """What a report says of a method.

    Attributes:
        name: its row in tables.
        title: what it is, with its settings.
        key: everything its answers depend on, as plain JSON values.
    """

    name: str
    title: str
    key: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Method(MethodInfo):
    """A method that is measured.

    Attributes:
        extractor: describes images.
        matcher: turns the descriptions of two images into answers.
        is_transfer: it copies parts of training images instead, which `transferring` gives it.
        answerer: answers in place of both; of a method that copies parts, once it has them.
    """

    extractor: Extractor
    matcher: PairMatcher = field(default_factory=NearestNeighbours)
    is_transfer: bool = False
    answerer: Answerer | None = None

    @property
    def is_nearest(self) -> bool:
        """Whether it answers by nearest neighbours of its descriptions, as most do."""
        is_other = self.is_transfer or self.answerer is not None
        return isinstance(self.matcher, NearestNeighbours) and not is_other


@dataclass(frozen=True)
class MethodFiles:
    """Files that methods need beside the package.

    Attributes:
        weights: files of `ucn train`; each is a method, named after its file.
        trunk: GoogLeNet's ImageNet weights; None looks in the folder that ``UCN_DATA`` names.
        xfeat: XFeat's ONNX file; None looks there too.
        siamese: a Siamese network; None takes the package's.
        vgg: VGG-16's weights; None looks in the folder that ``UCN_DATA`` names.
    """

    weights: Sequence[Path] = ()
    trunk: Path | None = None
    xfeat: Path | None = None
    siamese: Path | None = None
    vgg: Path | None = None


@dataclass(frozen=True)
class LoadedMethods:
    """What can be measured, and why something cannot.

    Attributes:
        methods: in the order asked for.
        skipped: reasons by name.
    """

    methods: list[Method] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def list_wanted(names: Sequence[str], weights: Sequence[Path], legal: Sequence[str]) -> list[str | Path]:
    """What is measured, in order: files that nobody named, then what was named.

    Args:
        names: that were asked for.
        weights: files of `ucn train`; each is measured, and answers to its own name.
        legal: names of methods that need no such file; such a name never means a file.
    """
    wanted: list[str | Path] = [path for path in weights if path.stem in legal or path.stem not in names]
    for name in names:
        own = [] if name in legal else [path for path in weights if path.stem == name]
        wanted += own or [name]
    return wanted


def refuse_repeated(names: Sequence[str]) -> None:
    """Raises `ConfigError` where two methods have the same name."""
    for name in sorted(set(names)):
        if names.count(name) > 1:
            raise ConfigError(f"two methods have the name '{name}'; rename one of the weights files")


def hint_at(name: str, legal: Iterable[str]) -> str:
    """What may have been meant by an unknown name, for the end of a clause; empty where nothing is close."""
    close = difflib.get_close_matches(name, list(legal), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
