"""Settings of matching, and the calibration of its scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ucn.config.base import (
    Config,
    require,
    require_above_zero,
    require_at_least,
    require_at_most,
    require_within,
)
from ucn.errors import ConfigError
from ucn.files import suggest

MIN_VISIBLE_SCORE = 0.4
"""The score from which a point carried over from labelled images counts as visible; chosen on training images
(docs/development/experiments.md, "Label transfer")."""


@dataclass(frozen=True)
class Calibration(Config):
    """Logistic regressions, fitted on held-out pairs, that turn similarities into probabilities.

    Every value is in [-10000, 10000].
    """

    match_bias: float = -2.0
    """Bias of a match's logit."""
    match_similarity: float = 3.0
    """Weight of the cosine similarity of the two points."""
    match_margin: float = 6.0
    """Weight of its margin over the second-best similarity, elsewhere in image 1."""
    match_round_trip: float = -4.0
    """Weight of the round-trip error in pixels, at most 16, divided by 16."""
    match_support: float = 0.0
    """Weight of the support that neighbourhood consensus gives the match, in [0, 1]."""
    match_uniformity: float = 0.0
    """Weight of how alike all descriptors of the emptier image are, as `ucn.matching.scoring` measures it."""
    pair_bias: float = -2.5
    """Bias of a pair's logit."""
    pair_support: float = 90.0
    """Weight of the mean over all queries of score times agreement with the matches around it; queries
    without a mutual match count as 0."""
    pair_similarity: float = 0.0
    """Weight of the mean cosine similarity of these matches, weighted by score times agreement."""
    pair_uniformity: float = 0.0
    """Weight of how alike all descriptors of the emptier image are: there is little to see in noise and on
    blank surfaces."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            require(abs(value) <= 1e4, f"{field.name} must be in [-10000, 10000]", value)


@dataclass(frozen=True)
class MatchConfig(Config):
    """Settings of matching."""

    max_side: Literal["auto"] | int | None = "auto"
    """Larger images are resized to this longest side, in pixels, before encoding; "auto": the side that the
    weights were made for (1024 for geometric, 160 for birds); None: full size."""
    tile_side: int = 1536
    """Images with a longer side, in pixels, are encoded in overlapping tiles; a multiple of 32."""
    keypoints: Literal["corners", "grid"] = "corners"
    """What is matched when no points are given: corners of image 0, or a regular grid."""
    max_keypoints: int = 4096
    """At most this many keypoints of an image are matched; 1..1,000,000."""
    grid_step: int = 4
    """Spacing of grid keypoints in pixels of the encoded image."""
    use_mutual: bool = True
    """Keep only matches that pass the forward-backward consistency check."""
    mutual_tolerance: float = 3.0
    """Largest round-trip error of that check, in pixels of the encoded image."""
    ratio: float = 1.0
    """Largest distance ratio of the best to the second-best match, in (0, 1]; 1 switches the ratio test
    off."""
    second_best_radius: float = 16.0
    """Pixels around the best match within which no candidate is the second best."""
    min_score: float = 0.5
    """Matches with a lower score, in [0, 1], are dropped; 0.5 keeps those more likely correct than not."""
    consensus: bool = True
    """Neighbourhood consensus: where descriptors alone do not decide, the matches around a point do."""
    use_views: bool = True
    """Encode an image again, reduced or rotated, where the scale differs by more than 1.4 or the rotation by
    more than 30°, and search scales from 1/4 to 4 where the images hardly agree; needs `consensus`."""
    use_refinement: bool = True
    """Sub-cell refinement of matches, by the shape of the similarity peak."""
    use_alignment: bool = True
    """Photometric sub-pixel refinement of matches, if both images show the same surfaces; needs
    `use_refinement`."""
    memory_bytes: int = 256 * 2**20
    """Budget of the temporaries of the nearest-neighbour search, and of those of consensus, in bytes."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(
            not isinstance(self.max_side, int) or self.max_side >= 32,
            "max_side must be at least 32, 'auto' (the side of the weights) or None (full size)",
            self.max_side,
        )
        require(
            self.tile_side >= 256 and self.tile_side % 32 == 0,
            "tile_side must be a multiple of 32 and at least 256",
            self.tile_side,
        )
        require_at_least(self, max_keypoints=1, grid_step=1, second_best_radius=0)
        require_above_zero(self, "mutual_tolerance")
        require(0 < self.ratio <= 1, "ratio must be in (0, 1]", self.ratio)
        require_within(self, {"min_score": (0, 1)})
        require(self.memory_bytes >= 2**20, "memory_bytes must be at least 1 MiB", self.memory_bytes)
        sizes = dict.fromkeys(("max_side", "tile_side", "max_keypoints", "grid_step"), 1_000_000)
        require_at_most(self, **sizes, memory_bytes=2**40)


def change_config(config: MatchConfig, settings: Mapping[str, Any]) -> MatchConfig:
    """The configuration with other values of some fields.

    Raises:
        ConfigError: a field is unknown (the closest is named), or a value is out of range.
    """
    legal = [field.name for field in dataclasses.fields(MatchConfig)]
    for name in settings:
        if name not in legal:
            close = suggest(name, (*legal, "config", "device", "engine"))  # other keywords of `Matcher`
            raise ConfigError(f"unknown setting '{name[:80]}'{close} (settings: {', '.join(legal)})")
    return dataclasses.replace(config, **settings)
