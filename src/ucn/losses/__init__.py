"""Losses, and the mining of their negatives. Read mining.py first, then contrastive.py."""

from ucn.losses.contrastive import (
    IGNORE,
    NEGATIVE,
    POSITIVE,
    correspondence_contrastive_loss,
    mined_contrastive_loss,
    one_correspondence_contrastive_loss,
)
from ucn.losses.distillation import descriptor_loss, distillation_loss
from ucn.losses.infonce import infonce_loss
from ucn.losses.mining import MinedNegatives, MiningMethod, mine_negatives
from ucn.losses.triplet import mined_triplet_loss, triplet_loss

__all__ = [
    "IGNORE",
    "NEGATIVE",
    "POSITIVE",
    "MinedNegatives",
    "MiningMethod",
    "correspondence_contrastive_loss",
    "descriptor_loss",
    "distillation_loss",
    "infonce_loss",
    "mine_negatives",
    "mined_contrastive_loss",
    "mined_triplet_loss",
    "one_correspondence_contrastive_loss",
    "triplet_loss",
]
