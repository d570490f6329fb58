"""Shipped weights (`table`) and the weights file format (`store`)."""

from ucn.weights.store import LoadedWeights, load_weights, save_weights
from ucn.weights.table import WeightsInfo, list_weights

__all__ = ["LoadedWeights", "WeightsInfo", "list_weights", "load_weights", "save_weights"]
