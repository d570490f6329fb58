"""`MethodNames`, the names of methods: the command line checks them before torch is imported.

`ucn.features.registry.Registry` is the same with what finds the methods.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ucn.errors import ConfigError
from ucn.files.suggestions import suggest
from ucn.weights.table import SHIPPED

MethodKind = Literal["dense", "sparse"]
"""Dense methods find any given point; sparse methods detect keypoints and match those."""
NEAREST = "nearest"
"""``WEIGHTS+nearest`` is a network without neighbourhood consensus."""
CONSENSUS = "consensus"
"""``FEATURES+consensus`` adds neighbourhood consensus; a method with it has this in its key."""
COLMAP_SIFT = "colmap-sift"
"""COLMAP's own keypoints, descriptors and matches, for reconstruction alone."""


@dataclass(frozen=True)
class MethodNames:
    """Names of methods. Those of shipped weights, and of weights files, are added to all of them.

    Attributes:
        baselines: dense methods that are evaluated by default.
        optional: dense methods that are evaluated only where they are named.
        without_features: those of `optional` that have no features of single images for others to use.
        systems: matchers that take the features of other methods, by a name such as ``trunk+sift-flow``.
        sparse: sparse methods, which detect keypoints and match those.
        at_corners: those of `sparse` with dense features at corners of image 0, to which consensus can be
            added.
    """

    baselines: Collection[str]
    optional: Collection[str] = ()
    without_features: Collection[str] = ()
    systems: Collection[str] = ()
    sparse: Collection[str] = ()
    at_corners: Collection[str] = ()

    def list_names(self, kind: MethodKind = "dense") -> tuple[str, ...]:
        """Names of all methods of a kind, but those of weights files."""
        if kind == "sparse":
            return (*SHIPPED, *self.sparse)
        return (*SHIPPED, *self.baselines, *self.optional, *self.systems)

    def list_features(self) -> tuple[str, ...]:
        """Names of the dense methods with features of single images, which others can use."""
        optional = (name for name in self.optional if name not in self.without_features)
        return (*SHIPPED, *self.baselines, *optional)

    def has_name(
        self,
        name: str,
        *,
        kind: MethodKind = "dense",
        needs_features: bool = False,
        others: Sequence[str] = (),
    ) -> bool:
        """Whether a method has this name; arguments as of `check_name`."""
        if needs_features:
            return name in (*self.list_features(), *others) or self.is_file(name)
        return name in (*self.list_names(kind), *others, *self._list_combined(kind, others))

    def check_name(
        self,
        name: str,
        *,
        kind: MethodKind = "dense",
        needs_features: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        """Checks the name of a method.

        Args:
            name: the name; a weights file too where `needs_features`.
            kind: of the method.
            needs_features: only methods with features of single images will do.
            others: further legal names, such as those of weights files.

        Raises:
            ConfigError: no method has the name, or it has no features of single images but needs them.
        """
        if self.has_name(name, kind=kind, needs_features=needs_features, others=others):
            return
        legal = (*(self.list_features() if needs_features else self.list_names(kind)), *others)
        combined = [] if needs_features else self._list_combined(kind, others)
        choices = [f"there are {', '.join(legal)}"]
        if combined:
            if kind == "dense" and self.systems:
                example = f"trunk+{next(iter(self.systems))}"
                choices.append(f"{', '.join(self.systems)} also work on features of others, as {example}")
            choices.append(f"weights without consensus are NAME+{NEAREST}, others with it NAME+{CONSENSUS}")
        if needs_features:
            choices.append("or give a .safetensors file of `ucn train`")
        else:
            choices.append("a file of `ucn train` is given among the weights files")
        listed = "; ".join(choices)
        if needs_features and (name in self.list_names() or name.rpartition("+")[2] in self.systems):
            raise ConfigError(
                f"method '{name[:80]}' matches whole images and has no descriptors of keypoints; choose "
                f"another ({listed})"
            )
        hint = suggest(name, [*legal, *combined])
        raise ConfigError(f"no method '{name[:80]}'{hint} ({listed})")

    def is_file(self, name_or_path: str) -> bool:
        """Whether a name is the path of a weights file; names of methods never are."""
        return name_or_path.endswith(".safetensors") or (
            name_or_path not in self.list_names() and Path(name_or_path).is_file()
        )

    def _list_combined(self, kind: MethodKind, others: Sequence[str]) -> list[str]:
        """Names of two parts: weights without consensus, features with it or with a matching system."""
        own = [name for name in self.list_features() if name not in SHIPPED]
        weights = [*SHIPPED, *(name for name in others if name not in own)]
        names = [f"{base}+{NEAREST}" for base in weights]
        names += [f"{base}+{CONSENSUS}" for base in (own if kind == "dense" else self.at_corners)]
        systems = self.systems if kind == "dense" else ()
        return names + [f"{base}+{system}" for base in (*own, *weights) for system in systems]


BASELINE_NAMES = MethodNames(
    baselines=("sift", "daisy", "kaze", "hog", "surf", "trunk", "xfeat", "disk"),
    optional=("vgg", "pixel-sift"),
    sparse=(
        *("sift", "sift-ratio", "daisy", "kaze", "surf", "trunk", "xfeat", "disk"),
        *("disk-lightglue", "aliked-lightglue", "xfeat-lighterglue"),
    ),
    at_corners=("trunk", "xfeat"),
)
"""Names of `ucn.features.baselines.BASELINES`."""
