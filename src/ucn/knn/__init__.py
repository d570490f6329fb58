"""Exact nearest neighbours in bounded memory: search.py chooses among reference.py, cpu/ and triton/."""

from ucn.knn.cpu.binned import SearchCache
from ucn.knn.exclusion import ExclusionRadius
from ucn.knn.search import Neighbours, mutual_nearest, nearest

__all__ = ["ExclusionRadius", "Neighbours", "SearchCache", "mutual_nearest", "nearest"]
