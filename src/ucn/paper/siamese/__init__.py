"""A Siamese patch-similarity network: what the network of this package replaces, to be measured beside it."""

from ucn.paper.siamese.files import SHIPPED, load_siamese, save_siamese
from ucn.paper.siamese.matcher import PatchDescriber, SiameseMatcher, find_best
from ucn.paper.siamese.network import SiameseConfig, SiameseNetwork, build_siamese, cut_patches

__all__ = [
    "SHIPPED",
    "PatchDescriber",
    "SiameseConfig",
    "SiameseMatcher",
    "SiameseNetwork",
    "build_siamese",
    "cut_patches",
    "find_best",
    "load_siamese",
    "save_siamese",
]
