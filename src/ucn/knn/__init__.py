"""Exact nearest neighbours in bounded memory."""

from ucn.knn.exclusion import ExclusionRadius
from ucn.knn.search import Neighbours, mutual_nearest, nearest

__all__ = ["ExclusionRadius", "Neighbours", "mutual_nearest", "nearest"]
