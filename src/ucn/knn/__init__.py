"""Exact nearest neighbours in bounded memory."""

from ucn.knn.exclusion import Outside
from ucn.knn.search import Neighbours, mutual_nearest, nearest

__all__ = ["Neighbours", "Outside", "mutual_nearest", "nearest"]
