"""`METHODS`, the table of all methods that commands use: the baselines plus the systems of the paper.

`ucn.features.baselines` has the baselines and says how to add one; `ucn.features.registry` has the class.
Each method is imported when it is found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from ucn.features.baselines import BASELINES, find_trunk
from ucn.features.method import DenseMethod, MethodFiles, MethodInfo, UnavailableError
from ucn.features.registry import MatchingSystem
from ucn.files.reading import hash_file
from ucn.paper.names import METHOD_NAMES, SIAMESE, TRANSFER


def _build_sift_flow() -> MatchingSystem:
    from ucn.features.classical import PixelSift
    from ucn.paper.sift_flow import TITLE, SiftFlow

    return MatchingSystem(
        name="sift-flow",
        title=TITLE,
        published_title=f"SIFT at every pixel, 4 × 4 histograms of {PixelSift.bin_pixels:g} px",
        published_extractor=PixelSift(),
        published_matcher=SiftFlow(),
        matcher=SiftFlow(smoothness=0.4),
    )


def _build_dsp() -> MatchingSystem:
    from ucn.features.classical import DenseSift
    from ucn.paper.dsp import TITLE, SpatialPyramid

    return MatchingSystem(
        name="dsp",
        title=TITLE,
        published_title=f"dense SIFT, 4 × 4 histograms of {DenseSift.bin_pixels:g} px, one cell per 4 px",
        published_extractor=DenseSift(),
        published_matcher=SpatialPyramid(),
        matcher=SpatialPyramid(),
    )


def _build_deep_matching() -> MatchingSystem:
    from ucn.paper.deep_matching import TITLE, DeepMatching
    from ucn.paper.deep_pixels import DeepPixels

    return MatchingSystem(
        name="deepmatching",
        title=TITLE,
        published_title="its own descriptors of the pixels of the half-size image",
        published_extractor=DeepPixels(),
        published_matcher=DeepMatching(),
        matcher=DeepMatching(atom_cells=2, finest_pixels=4),
    )


def is_nearest(info: MethodInfo) -> bool:
    """Whether a method matches by nearest neighbours, with consensus or without; from its key alone.

    Reports have the key, too.
    """
    return not any(name in info.key for name in ("transfer", SIAMESE, *METHODS.systems))


def _find_transfer(files: MethodFiles) -> MethodInfo:
    from ucn.paper.transfer import SQUARES

    trunk = find_trunk(files)
    title = (
        "NN transfer: the parts of the training image most similar by GoogLeNet's inception_4a, averaged in "
        f"{SQUARES} × {SQUARES} squares of the object's box, which is given"
    )
    loader = partial(_load_transfer, trunk)
    return replace(trunk, name=TRANSFER, title=title, key={"transfer": trunk.key}, loader=loader)


def _load_transfer(trunk: MethodInfo, info: MethodInfo, device: str) -> DenseMethod:
    from ucn.paper.transfer import UnboundTransfer

    extractor = trunk.load(device).extractor
    return DenseMethod(**info.metadata(), extractor=extractor, matcher=UnboundTransfer())


def _find_siamese(files: MethodFiles) -> MethodInfo:
    from ucn.paper.siamese.matcher import STRIDE, format_title
    from ucn.paper.siamese.network import SHIPPED, read_siamese_config

    path = files.siamese or SHIPPED
    if files.siamese is None and not path.is_file():
        reason = (
            "train a network with benchmarks/siamese_training.py and give its path as `MethodFiles.siamese`"
        )
        raise UnavailableError(SIAMESE, reason)
    config = read_siamese_config(path)
    title, key = format_title(config), {"siamese": hash_file(path)}
    return MethodInfo(SIAMESE, title, key, config.dim, STRIDE, loader=partial(_load_siamese, path))


def _load_siamese(path: Path, info: MethodInfo, device: str) -> DenseMethod:
    from ucn.paper.siamese import PatchExtractor, SiameseMatcher, load_siamese

    extractor = PatchExtractor(load_siamese(path), device)
    matcher = SiameseMatcher(extractor.model.decision)
    return DenseMethod(**info.metadata(), extractor=extractor, matcher=matcher)


METHODS = replace(
    BASELINES,
    optional={TRANSFER: _find_transfer, SIAMESE: _find_siamese, **BASELINES.optional},
    without_features=METHOD_NAMES.without_features,
    systems={"sift-flow": _build_sift_flow, "dsp": _build_dsp, "deepmatching": _build_deep_matching},
)
"""Every method by name."""
