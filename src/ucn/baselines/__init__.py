"""Other ways to describe images, behind the same protocol as the network, so that all are measured alike."""

from ucn.baselines.classical import DenseDaisy, DenseKaze, DenseSift
from ucn.baselines.extractor import Extractor
from ucn.baselines.hog import DenseHog
from ucn.baselines.trunk import UntrainedTrunk
from ucn.baselines.xfeat import XFeat

__all__ = ["DenseDaisy", "DenseHog", "DenseKaze", "DenseSift", "Extractor", "UntrainedTrunk", "XFeat"]
