"""UCN as a method: the metadata of a weights file, and its `Matcher`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import MatchConfig
from ucn.errors import WeightsError
from ucn.features.method import DenseMethod, Method, MethodInfo, make_once
from ucn.features.names import CONSENSUS, MethodKind
from ucn.features.pair_matcher import CONSENSUS_SHA256, Alignment, NearestNeighbours
from ucn.features.sparse import KeypointMatches
from ucn.features.trained_on import list_training_parts
from ucn.matching.cells import match_forward
from ucn.matching.matcher import Matcher
from ucn.matching.views import (
    MAX_DEGREES,
    MAX_SCALE,
    MIN_AGREEMENT,
    MIN_VIEW_AGREEMENT,
    AlignedViews,
    cells_in_mask,
    to_caller,
    to_encoded,
)
from ucn.nn.encoder import Engine, choose_exact_engine
from ucn.types import Features
from ucn.weights.store import WeightsHeader, read_weights_header

# Benchmarks set the size of images, and refine matches by pixels themselves, alike for all methods.
SPARSE_CONFIG = MatchConfig(max_side=None, use_alignment=False)
"""Sparse methods without a detector of their own match corners of image 0, at the size of the image."""
_DENSE_CONFIG = MatchConfig(max_side=None, keypoints="grid")
_VIEW_SETTINGS = [MAX_SCALE, MAX_DEGREES, MIN_AGREEMENT, MIN_VIEW_AGREEMENT]
VIEWS = "views"
"""The entry of these settings in keys of predictions."""


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkMethod(Method):
    """UCN with the matches that `ucn.Matcher` keeps."""

    extractor: Matcher

    def match(self, features0: Features, features1: Features) -> KeypointMatches:
        """Mutual matches of the corners of image 0, ordered by score."""
        found = self.extractor.match_features(features0, features1)
        return KeypointMatches(*map(torch.from_numpy, (found.points0, found.points1, found.scores)))


def describe_sparse_config() -> dict[str, Any]:
    """`SPARSE_CONFIG` for keys of predictions; consensus has an entry of its own there."""
    return {name: value for name, value in SPARSE_CONFIG.to_dict().items() if name != CONSENSUS}


@dataclass(frozen=True)
class MatcherViews(NearestNeighbours):
    """Nearest neighbours with consensus, in views of other scales and rotations where they differ much.

    Attributes:
        extractor: encodes the views.
    """

    consensus: bool = True
    extractor: Matcher | None = None

    def align_features(
        self, features0: Features, features1: Features, is_allowed1: Tensor | None = None
    ) -> Alignment:
        """Aligns the views of a pair."""
        assert self.extractor is not None
        use1 = None
        if is_allowed1 is not None:
            grid = is_allowed1.view(1, 1, *features1.map.grid_hw).float()
            use1 = F.interpolate(grid, features1.image_hw)[0, 0] > 0
        views = self.extractor.align_views(features0, features1, use1=use1)
        return _ViewAlignment(features0, features1, views, use1, is_allowed1)


@dataclass(frozen=True, eq=False)
class _ViewAlignment:
    features0: Features
    features1: Features
    views: AlignedViews
    use1: Tensor | None
    is_allowed1: Tensor | None

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """See `Alignment.find`."""
        view0, view1 = self.views.features0, self.views.features1
        is_allowed1 = self.is_allowed1 if view1 is self.features1 else cells_in_mask(view1, self.use1)
        found = match_forward(
            view0.map,
            view1.map,
            to_encoded(to_caller(points0, self.features0), view0),
            consensus=self.views.consensus,
            is_allowed1=is_allowed1,
            use_refinement=use_refinement,
        )
        return to_encoded(to_caller(found.points, view1), self.features1)


def find_network(
    source: str | Path,
    name: str,
    kind: MethodKind = "dense",
    engine: Engine | None = None,
    *,
    consensus: bool = False,
) -> MethodInfo:
    """Metadata of a network, from the header of its weights file.

    Args:
        source: name of shipped weights, or a weights file.
        name: of the method.
        kind: dense or sparse.
        engine: of the `Matcher`; None takes one that computes in float32 on every device.
        consensus: guide matches by neighbourhood consensus, as `Matcher` does by default.

    Raises:
        WeightsError: the name is unknown, or the file is missing or not of ucn.
    """
    header = read_weights_header(source)
    sha256, model = header.info.sha256, header.model
    title = f"UCN, weights {name}, sha256 {sha256[:16]}"
    key: dict[str, Any] = {"ucn": sha256}
    variant = find_variant(header)
    if variant is not None:
        title, key["variant"] = f"{title}; the paper's variant {variant}", variant
    config = _DENSE_CONFIG
    if kind == "sparse":
        config = replace(SPARSE_CONFIG, consensus=consensus)
        title += (
            f": up to {config.max_keypoints:,} corners of image 0, matches with a round-trip error of at "
            f"most {config.mutual_tolerance:g} px and a score of at least {config.min_score:g}, ordered by "
            "score"
        )
        key["config"] = describe_sparse_config()
        if consensus:
            title += "; guided by neighbourhood consensus"
            key |= {CONSENSUS: CONSENSUS_SHA256, VIEWS: _VIEW_SETTINGS}
    info = MethodInfo(
        name,
        title,
        key,
        dim=model.dimensions - model.semantic_dim,  # `Matcher` encodes the fine level
        stride=math.prod(model.strides),
        max_side=header.max_side,
        trained_on=list_training_parts(header.training),
        loader=partial(_load, source, kind, config, engine),
    )
    if not consensus or kind == "sparse":
        return info
    return replace(
        info,
        title=f"{title}; guided by neighbourhood consensus, in views of other scales and rotations",
        key={**key, CONSENSUS: CONSENSUS_SHA256, VIEWS: _VIEW_SETTINGS},
        loader=partial(_load_views, info),
    )


def find_variant(header: WeightsHeader) -> str | None:
    """RN, HN or HN-ST for weights of a recipe ``paper/…``; None for all others."""
    if not str(header.training.get("name", "")).startswith("paper-"):
        return None
    if header.model.transformer != "none":
        return "HN-ST"
    loss = header.training.get("loss")
    return "RN" if isinstance(loss, dict) and loss.get("mining") == "random" else "HN"


def _load_views(base: MethodInfo, info: MethodInfo, device: str) -> DenseMethod:
    method: DenseMethod = base.load(device)
    assert isinstance(method.extractor, Matcher)
    return replace(method, **info.metadata(), matcher=MatcherViews(extractor=method.extractor))


def _load(
    source: str | Path,
    kind: MethodKind,
    config: MatchConfig,
    engine: Engine | None,
    info: MethodInfo,
    device: str,
) -> Method:
    """The method; its matcher is shared by all of this process that use it in the same way."""
    engine = engine or choose_exact_engine(device)
    sha256 = info.key["ucn"]

    def make() -> Matcher:
        matcher = Matcher.from_pretrained(source, config=config, device=device, engine=engine)
        if matcher.weights.sha256 != sha256:
            raise WeightsError(f"{source} has changed since the method was found; find it again")
        return matcher

    loaded = DenseMethod if kind == "dense" else NetworkMethod
    return loaded(**info.metadata(), extractor=make_once((sha256, config, device, engine), make))
