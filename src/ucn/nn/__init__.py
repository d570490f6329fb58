"""The network: `model.py` is the reference, `encoder.py` chooses the engine that runs it."""

from ucn.config import MIN_SIDE
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.model import CorrespondenceNetwork, build_model
from ucn.nn.transformer import ConvolutionalSpatialTransformer

__all__ = [
    "MIN_SIDE",
    "ConvolutionalSpatialTransformer",
    "CorrespondenceNetwork",
    "GoogLeNetTrunk",
    "build_model",
]
