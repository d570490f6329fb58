"""A Siamese patch-similarity network, the baseline of the paper for patch-wise matching."""

from ucn.paper.siamese.files import SHIPPED, load_siamese, read_siamese_config, save_siamese
from ucn.paper.siamese.matcher import PatchExtractor, SiameseMatcher, find_best
from ucn.paper.siamese.network import SiameseConfig, SiameseNetwork, build_siamese, cut_patches

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
