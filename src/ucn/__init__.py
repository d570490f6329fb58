"""Universal Correspondence Network: finds corresponding points in two images.

Start with `ucn.Matcher`. The public names below are imported when they are first used (PEP 562), so that
``import ucn`` and ``ucn --help`` are quick: neither imports torch or numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "FeatureMap",
    "Features",
    "Flow",
    "MatchConfig",
    "Matcher",
    "Matches",
    "ModelConfig",
    "PairContext",
    "PairSample",
    "SimilarityMap",
    "UcnError",
    "__version__",
    "build_model",
    "check_data",
    "draw_matches",
    "estimate_fundamental",
    "estimate_homography",
    "estimate_pose",
    "iterate_images",
    "list_data",
    "list_weights",
    "load_weights",
    "mutual_nearest",
    "nearest",
    "open_data",
    "track_points",
]

if TYPE_CHECKING:
    from ucn.config import MatchConfig, ModelConfig
    from ucn.data.catalogue import list_data, open_data
    from ucn.data.checking import check_data
    from ucn.errors import UcnError
    from ucn.geometry.fundamental import estimate_fundamental
    from ucn.geometry.homography import estimate_homography
    from ucn.geometry.pose import estimate_pose
    from ucn.knn import mutual_nearest, nearest
    from ucn.matching.many import iterate_images
    from ucn.matching.matcher import Matcher, PairContext
    from ucn.matching.tracking import track_points
    from ucn.nn import build_model
    from ucn.types import FeatureMap, Features, Flow, Matches, PairSample, SimilarityMap
    from ucn.viz import draw_matches
    from ucn.weights import list_weights, load_weights

    __version__: str
else:  # type checkers see the imports above, and so report misspelt names
    _HOMES = {
        "FeatureMap": "ucn.types",
        "Features": "ucn.types",
        "Flow": "ucn.types",
        "MatchConfig": "ucn.config",
        "Matcher": "ucn.matching.matcher",
        "Matches": "ucn.types",
        "ModelConfig": "ucn.config",
        "PairContext": "ucn.matching.matcher",
        "PairSample": "ucn.types",
        "SimilarityMap": "ucn.types",
        "UcnError": "ucn.errors",
        "build_model": "ucn.nn",
        "check_data": "ucn.data.checking",
        "draw_matches": "ucn.viz",
        "estimate_fundamental": "ucn.geometry.fundamental",
        "estimate_homography": "ucn.geometry.homography",
        "estimate_pose": "ucn.geometry.pose",
        "iterate_images": "ucn.matching.many",
        "list_data": "ucn.data.catalogue",
        "list_weights": "ucn.weights",
        "load_weights": "ucn.weights",
        "mutual_nearest": "ucn.knn",
        "nearest": "ucn.knn",
        "open_data": "ucn.data.catalogue",
        "track_points": "ucn.matching.tracking",
    }

    def __getattr__(name):
        """Imports a public name when it is first used."""
        import importlib

        if name == "__version__":
            value = _find_version()
        elif name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"module 'ucn' has no attribute '{name}'")
        globals()[name] = value
        return value

    def __dir__():
        """The public names, imported or not."""
        return sorted({*globals(), *__all__})

    def _find_version():
        import importlib.metadata

        try:
            return importlib.metadata.version("ucn")
        except importlib.metadata.PackageNotFoundError:
            return "unknown (not installed)"
