"""Exact nearest neighbours in bounded memory: search.py chooses among reference.py, cpu/ and triton/."""

from ucn.knn.exclusion import ExclusionRadius
from ucn.knn.search import Neighbours, SearchCache, mutual_nearest, nearest

__all__ = ["ExclusionRadius", "Neighbours", "SearchCache", "mutual_nearest", "nearest"]
