"""Which levels of descriptors match a pair: the fine level for one scene, all levels for parts of objects.

A network may append a semantic level to its fine descriptors (`ucn.nn.semantic`). Fine descriptors tell the
places of a scene apart; the semantic level finds the same part of another object, but blurs places. So a pair
is matched by fine descriptors first. Where patches around these matches look alike, it shows the same surface
(`ucn.matching.alignment`), and that is all. Else both images are matched small, at the size for objects, by a
regular set of points: once by fine descriptors, once by those of all levels. Where all levels agree better,
the pair shows parts and is matched like that. It takes no name of a class.
"""

from __future__ import annotations

from dataclasses import replace

from ucn.matching.consensus import Consensus
from ucn.types import Features

# Chosen on validation data (docs/development/experiments.md, "Levels by the pair").
PARTS_SIDE = 224
"""Longest side in pixels at which parts of objects are matched; smaller images are not enlarged."""
MIN_LEAD = 0.1
"""By how much the agreement of all levels must exceed that of the fine level."""


def without_semantic(features: Features) -> Features:
    """The features with fine descriptors alone."""
    return replace(features, map=features.map.without_semantic())


def find_parts_scale(features: Features) -> float:
    """By how much an image is scaled to match parts: at most 1."""
    return min(1.0, PARTS_SIDE / max(features.map.image_hw))


def measure_agreement(consensus: Consensus | None) -> float:
    """How far the matches of a regular set of points agree with each other: 0 to 2.

    That is the mean trust in the local affine maps through them, over both images, and the share of them that
    are cycle-consistent. Trust alone does not notice that places blur.
    """
    if consensus is None or consensus.priors is None:
        return 0.0
    there, back = consensus.priors
    return float((there.trust.mean() + back.trust.mean()) / 2 + consensus.mutual_share)


def shows_parts(all_levels: Consensus | None, fine: Consensus | None) -> bool:
    """Whether a pair shows parts of different objects, by both ways to match it."""
    return measure_agreement(all_levels) > measure_agreement(fine) + MIN_LEAD
