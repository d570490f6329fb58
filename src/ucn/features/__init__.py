"""Other ways to describe images, behind the same protocol as the network, so that all are measured alike."""

from ucn.features.classical import DenseDaisy, DenseKaze, DenseSift
from ucn.features.extractor import Extractor
from ucn.features.hog import DenseHog
from ucn.features.trunk import UntrainedTrunk
from ucn.features.xfeat import XFeat

__all__ = ["DenseDaisy", "DenseHog", "DenseKaze", "DenseSift", "Extractor", "UntrainedTrunk", "XFeat"]
