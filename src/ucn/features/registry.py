"""`Registry`, the class that finds and loads methods by name; it lists none itself.

The tables are elsewhere: `ucn.features.baselines` has UCN and the baselines, and says how to add a method.
`ucn.paper.registry` adds the systems of the paper; its `METHODS` is what all commands use.

To find a method gives a `MethodInfo` (name, title, dimensions, stride, key) and loads no weights. It imports
the modules of that method alone.
`MethodInfo.load` gives the `Method`, which extracts and matches features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import torch

from ucn.errors import ConfigError
from ucn.features.method import (
    DenseMethod,
    LoadedMethods,
    Method,
    MethodFiles,
    MethodInfo,
    UnavailableError,
    add_consensus,
    wrap_extractor,
)
from ucn.features.names import CONSENSUS, MethodKind, MethodNames
from ucn.features.network import find_network
from ucn.features.pair_matcher import PairMatcher
from ucn.nn.encoder import Engine
from ucn.weights.table import SHIPPED

Finder = Callable[[MethodFiles], MethodInfo]
"""Gives the metadata of a method without loading it; raises `UnavailableError` where it cannot run here."""


@dataclass(frozen=True)
class MatchingSystem:
    """A matcher that optimises over the whole image and takes the features of any dense method.

    Attributes:
        name: on the command line.
        title: what it is.
        published_title: the features that its authors used.
        published_extractor: extracts these; a dataclass with `dim` and `stride`.
        published_matcher: the matcher with its settings for these.
        matcher: the matcher with its settings for other features.
    """

    name: str
    title: str
    published_title: str
    published_extractor: Any
    published_matcher: Any
    matcher: Any

    def find_published(self) -> MethodInfo:
        """The system with the features and settings of its authors."""
        extractor = self.published_extractor
        features = {type(extractor).__name__: asdict(extractor), "opencv": cv2.__version__}
        return MethodInfo(
            self.name,
            f"{self.title}; over {self.published_title}",
            {self.name: asdict(self.published_matcher), "features": features},
            dim=extractor.dim,
            stride=extractor.stride,
            loader=wrap_extractor(extractor, self.published_matcher),
        )

    def with_features(self, info: MethodInfo) -> MethodInfo:
        """The system with the features of another method."""
        return replace(
            info,
            name=f"{info.name}+{self.name}",
            title=f"{self.title}; over: {info.title}",
            key={self.name: asdict(self.matcher), "features": info.key},
            loader=partial(_load_over, info, self.matcher),
        )


def _load_over(base: MethodInfo, matcher: PairMatcher, info: MethodInfo, device: str) -> DenseMethod:
    return DenseMethod(**info.metadata(), extractor=base.load(device).extractor, matcher=matcher)


@dataclass(frozen=True)
class Registry(MethodNames):
    """Methods by name. Shipped weights and weights files are methods too.

    Weights match as `ucn.Matcher` does by default, with neighbourhood consensus; ``geometric+nearest`` is the
    same without it. Other methods match as published; ``sift+consensus`` adds consensus to dense features.

    Attributes:
        baselines: finders of dense methods that are evaluated by default.
        optional: finders of dense methods that are evaluated only where they are named.
        without_features: as in `MethodNames`.
        systems: builders of matchers that take the features of other methods, by a name such as
            ``trunk+sift-flow``.
        sparse: finders of sparse methods, which detect keypoints and match those.
        at_corners: as in `MethodNames`.
        default_with_file: names of `optional` that are evaluated by default where the field of that name in
            `MethodFiles` has a file.
    """

    baselines: Mapping[str, Finder]
    optional: Mapping[str, Finder] = field(default_factory=dict)
    systems: Mapping[str, Callable[[], MatchingSystem]] = field(default_factory=dict)
    sparse: Mapping[str, Finder] = field(default_factory=dict)
    default_with_file: Collection[str] = ()

    def find(
        self,
        name: str,
        files: MethodFiles | None = None,
        *,
        kind: MethodKind = "dense",
    ) -> MethodInfo:
        """Finds a method by name, without loading its weights.

        Args:
            name: of `list_names`, ``FEATURES+SYSTEM``, ``WEIGHTS+nearest``, ``FEATURES+consensus``, or the
                name of a weights file in `files`.
            files: files that methods need beside the package.
            kind: dense or sparse; some names are of both kinds.

        Raises:
            ConfigError: the name is unknown.
            UnavailableError: a package or a file that it needs is missing.
            WeightsError: a given file is missing or of something else.
        """
        files = files or MethodFiles()
        self.check_name(name, kind=kind, others=[path.stem for path in files.weights])
        finders = self.sparse if kind == "sparse" else {**self.baselines, **self.optional}
        if name in finders:
            return finders[name](files)
        if kind == "dense" and name in self.systems:
            return self.systems[name]().find_published()
        weights: dict[str, str | Path] = {path.stem: path for path in reversed(files.weights)}
        weights |= {shipped: shipped for shipped in SHIPPED}
        if name in weights:
            return find_network(weights[name], name, kind, consensus=True)
        base, _, suffix = name.rpartition("+")
        known = finders.get(base)
        info = known(files) if known else find_network(weights[base], base, kind)
        if suffix in self.systems:
            return self.systems[suffix]().with_features(info)
        return replace(add_consensus(info) if suffix == CONSENSUS else info, name=name)

    def find_features(
        self, name_or_path: str, files: MethodFiles | None = None, engine: Engine | None = None
    ) -> MethodInfo:
        """Finds a dense method with features of single images, by name or weights file.

        Args:
            name_or_path: of `list_features`, or a .safetensors file of `ucn train`.
            files: files that methods need beside the package; weights files among them are not used.
            engine: of UCN's `Matcher`; None takes one that computes in float32 on every device.

        Raises:
            ConfigError: the name is unknown, or the method has no features of single images.
            UnavailableError: a package or a file that it needs is missing.
            WeightsError: a given file is missing or of something else.
        """
        self.check_name(name_or_path, needs_features=True)
        if self.is_file(name_or_path):
            return find_network(name_or_path, Path(name_or_path).stem, engine=engine)
        if name_or_path in SHIPPED:
            return find_network(name_or_path, name_or_path, engine=engine)
        return self.find(name_or_path, replace(files or MethodFiles(), weights=()))

    def load_dense(
        self,
        names: Iterable[str] | None,
        files: MethodFiles | None = None,
        device: str | torch.device = "cpu",
    ) -> LoadedMethods[DenseMethod]:
        """Loads dense methods; those whose files or packages are missing are skipped, with the reason.

        Args:
            names: as in `find`; None means shipped weights, `baselines`, and those of `default_with_file`
                whose file is given.
            files: files that methods need beside the package; weights files are loaded even where not named.
            device: where networks run.

        Raises:
            ConfigError: a name is unknown, or two methods have the same.
            WeightsError: a given file is missing, damaged or of something else.
        """
        files = files or MethodFiles()
        if names is None:
            given = (name for name in self.default_with_file if getattr(files, name) is not None)
            names = (*SHIPPED, *self.baselines, *given)
        return LoadedMethods(*self._load(names, files, device, "dense"))

    def load_sparse(
        self,
        names: Iterable[str] | None,
        files: MethodFiles | None = None,
        device: str | torch.device = "cpu",
    ) -> LoadedMethods[Method]:
        """Loads sparse methods; as `load_dense`, but None means all."""
        names = self.list_names("sparse") if names is None else names
        return LoadedMethods(*self._load(names, files or MethodFiles(), device, "sparse"))

    def _load(
        self, names: Iterable[str], files: MethodFiles, device: str | torch.device, kind: MethodKind
    ) -> tuple[list[Any], dict[str, str]]:
        chosen = list(dict.fromkeys(names))
        for name in chosen:  # before files are read
            self.check_name(name, kind=kind, others=[path.stem for path in files.weights])
        found: list[MethodInfo] = []
        skipped: dict[str, str] = {}
        for item in order_methods(chosen, files.weights, self.list_names(kind)):
            if isinstance(item, Path):
                found.append(find_network(item, item.stem, kind, consensus=True))
                continue
            try:
                found.append(self.find(item, files, kind=kind))
            except UnavailableError as error:
                skipped[item] = error.reason
        require_unique([info.name for info in found])
        return [info.load(device) for info in found], skipped


def order_methods(names: Sequence[str], weights: Sequence[Path], legal: Sequence[str]) -> list[str | Path]:
    """What to load, in order: weights files that are not named, alone or with a suffix, then the names.

    Args:
        names: the requested ones.
        weights: files of `ucn train`; each is loaded, and has the name of its file.
        legal: names of methods without such a file; these names never mean a file.
    """
    named = {*names, *(name.rpartition("+")[0] for name in names)}
    ordered: list[str | Path] = [path for path in weights if path.stem in legal or path.stem not in named]
    for name in names:
        own = [] if name in legal else [path for path in weights if path.stem == name]
        ordered += own or [name]
    return ordered


def require_unique(names: Sequence[str]) -> None:
    """Raises `ConfigError` where two methods have the same name."""
    for name in sorted(set(names)):
        if names.count(name) > 1:
            raise ConfigError(f"two methods have the name '{name}'; rename one of the weights files")
