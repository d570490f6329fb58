"""A Siamese patch-similarity network, the baseline of the paper for patch-wise matching."""

from ucn.paper.siamese.matcher import PatchExtractor, SiameseMatcher, find_best
from ucn.paper.siamese.network import (
    SHIPPED,
    SiameseConfig,
    SiameseNetwork,
    build_siamese,
    cut_patches,
    load_siamese,
    read_siamese_config,
    save_siamese,
)

__all__ = [
    "SHIPPED",
    "PatchExtractor",
    "SiameseConfig",
    "SiameseMatcher",
    "SiameseNetwork",
    "build_siamese",
    "cut_patches",
    "find_best",
    "load_siamese",
    "read_siamese_config",
    "save_siamese",
]
