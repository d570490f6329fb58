"""UCN as a method: the metadata of a weights file, and its `Matcher`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from ucn.config import MatchConfig
from ucn.errors import WeightsError
from ucn.features.method import DenseMethod, Method, MethodInfo, share
from ucn.features.sparse import KeypointMatches
from ucn.matching.matcher import Matcher
from ucn.nn.encoder import Engine, choose_exact_engine
from ucn.types import Features
from ucn.weights.store import read_weights_header

MethodKind = Literal["dense", "sparse"]
"""Dense methods find any given point; sparse methods detect keypoints and match those."""

# Benchmarks set the size of images, and refine matches by pixels themselves, alike for all methods.
SPARSE_CONFIG = MatchConfig(max_side=None, use_alignment=False)
"""Sparse methods without a detector of their own match corners of image 0, at the size of the image."""
_CONFIGS: dict[MethodKind, MatchConfig] = {
    "dense": MatchConfig(max_side=None, keypoints="grid"),
    "sparse": SPARSE_CONFIG,
}
_TRUNK_CHANNELS = {"googlenet": 512, "lite": 64}


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkMethod(Method):
    """UCN with the matches that `ucn.Matcher` keeps."""

    extractor: Matcher

    def match(self, features0: Features, features1: Features) -> KeypointMatches:
        """Mutual matches of the corners of image 0, ordered by score."""
        found = self.extractor.match_features(features0, features1)
        return KeypointMatches(*map(torch.from_numpy, (found.points0, found.points1, found.scores)))


def find_network(
    source: str | Path, name: str, kind: MethodKind = "dense", engine: Engine | None = None
) -> MethodInfo:
    """Metadata of a network, from the header of its weights file.

    Args:
        source: name of shipped weights, or a weights file.
        name: of the method.
        kind: dense or sparse.
        engine: of the `Matcher`; None takes one that computes in float32 on every device.

    Raises:
        WeightsError: the name is unknown, or the file is missing or not of ucn.
    """
    header = read_weights_header(source)
    sha256, model = header.info.sha256, header.model
    title = f"UCN, weights {name}, sha256 {sha256[:16]}"
    key: dict[str, Any] = {"ucn": sha256}
    if kind == "sparse":
        config = SPARSE_CONFIG
        title += (
            f": up to {config.max_keypoints:,} corners of image 0, matches with a round-trip error of at "
            f"most {config.mutual_tolerance:g} px and a score of at least {config.min_score:g}, ordered by "
            "score"
        )
        key["config"] = config.to_dict()
    return MethodInfo(
        name,
        title,
        key,
        dim=model.dim or _TRUNK_CHANNELS[model.trunk],
        stride=math.prod(model.strides),
        max_side=header.max_side,
        loader=partial(_load, source, kind, engine),
    )


def _load(
    source: str | Path, kind: MethodKind, engine: Engine | None, info: MethodInfo, device: str
) -> Method:
    """The method; its matcher is shared by all of this process that use it in the same way."""
    engine = engine or choose_exact_engine(device)
    sha256, config = info.key["ucn"], _CONFIGS[kind]

    def make() -> Matcher:
        matcher = Matcher.from_pretrained(source, config=config, device=device, engine=engine)
        if matcher.weights.sha256 != sha256:
            raise WeightsError(f"{source} has changed since the method was found; find it again")
        return matcher

    loaded = DenseMethod if kind == "dense" else NetworkMethod
    return loaded(**info.metadata(), extractor=share((sha256, config, device, engine), make))
