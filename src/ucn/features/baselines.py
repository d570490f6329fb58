"""`BASELINES`, the table of UCN and the baselines, and how each is found without loading it.

`ucn.features.registry` has the class of the table. `ucn.paper.registry` adds the systems of the paper to it.

How to add a method:

1. Write one module in this package with an extractor: a class with ``dim`` (dimensions of a descriptor),
   ``stride`` (pixels between cells), ``title`` (what it is, with its settings) and
   ``extract(image) -> Features`` (`extractor.Extractor`; `extractor.make_features` builds the result). Where
   it detects keypoints itself, add ``has_own_keypoints = True``. `hog.DenseHog` is an example without
   weights, `vgg.VggConv4` one with a file.
2. Write its finder below: a function from `MethodFiles` to `MethodInfo` that loads no weights.
   `_build_info` serves any dataclass of settings, `_build_file_info` any class that loads a file, which
   `_find_file` finds. It raises `UnavailableError`, with the remedy, where a package or file is missing.
   It imports the module itself, so that only methods in use are imported.
   A new file needs a field in `method.MethodFiles`, and an option in ``cli/evaluate.py`` to give it.
3. Enter the finder in `BASELINES`, in both tables where it serves as both kinds of method, and its name in
   `names.BASELINE_NAMES`:

   - dense, in ``baselines`` (evaluated by default) or ``optional`` (only where named): it finds any given
     point. ``ucn extract``, ``ucn reconstruct`` and all benchmarks but relative pose need dense features.
   - ``sparse``: it detects keypoints and matches those. The benchmarks of relative pose use it.
     `_find_sparse` makes one from a dense method, `_build_keypoint_info` from a `sparse.KeypointExtractor`.
     `lightglue.LightGlueMethod` brings its own matcher.

   ``ucn bench`` has a fixed list of baselines.
4. Name it in the help of ``ucn evaluate`` (the docstring of ``cli/evaluate.py``), and in docs/evaluation.md.
5. Test it beside the others in ``tests/features/``: values on a small image, and the errors.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2

from ucn.errors import WeightsError
from ucn.features.extractor import Extractor, has_own_keypoints
from ucn.features.method import (
    DenseMethod,
    KeypointMethod,
    MethodFiles,
    MethodInfo,
    UnavailableError,
    load_from_file,
    make_once,
    wrap_extractor,
)
from ucn.features.names import BASELINE_NAMES
from ucn.features.network import SPARSE_CONFIG, describe_sparse_config
from ucn.features.registry import Finder, Registry
from ucn.features.sparse import GridDescriptorsAtKeypoints, SiftKeypoints
from ucn.files.reading import hash_file

RATIO = 0.8
"""Threshold of Lowe's ratio test, as in his paper."""


def _find_file(name: str, given: Path | None, below_data: str, content: str) -> Path:
    """The file of a method: a given one, which must exist, or one in the folder that ``UCN_DATA`` names."""
    if given is not None:
        if not given.is_file():
            raise WeightsError(f"no file {given}: `{name}` must be a file with {content}")
        return given
    folder = os.environ.get("UCN_DATA")
    path = Path(folder) / below_data if folder else None
    if path is None or not path.is_file():
        unset = "" if folder else " (UCN_DATA is not set)"
        remedy = f"put it in $UCN_DATA/{below_data}{unset}, or give its path as `MethodFiles.{name}`"
        raise UnavailableError(name, f"{content} not found: {remedy}")
    return path


def find_trunk(files: MethodFiles) -> MethodInfo:
    """GoogLeNet's trunk with its ImageNet weights."""
    from ucn.features.trunk import UntrainedTrunk

    below_data = "googlenet/bvlc_googlenet_conv1_to_inception_4a.npz"
    path = _find_file("trunk", files.trunk, below_data, "GoogLeNet's ImageNet weights")
    return _build_file_info("trunk", UntrainedTrunk, path)


def _find_vgg(files: MethodFiles) -> MethodInfo:
    from ucn.features.vgg import VggConv4

    path = _find_file("vgg", files.vgg, "vgg/vgg16.safetensors", "torchvision's vgg16")
    return _build_file_info("vgg", VggConv4, path)


def _find_xfeat(files: MethodFiles) -> MethodInfo:
    from ucn.features import xfeat

    path = _find_file("xfeat", files.xfeat, "peers/xfeat_vga.onnx", "XFeat's ONNX network")
    _require_available("xfeat", xfeat.explain_unavailable(path))
    return _build_file_info("xfeat", xfeat.XFeat, path, _make_xfeat)


def _make_xfeat(path: Path, _device: str) -> Extractor:
    from ucn.features.xfeat import XFeat

    return XFeat(path)


def _find_disk(_files: MethodFiles) -> MethodInfo:
    from ucn.features import disk

    path = disk.find_weights()
    reason = disk.explain_unavailable(path)
    if reason or path is None:
        raise UnavailableError("disk", reason)
    info = _build_file_info("disk", disk.Disk, path)
    return replace(info, key={**info.key, "keypoints": disk.KEYPOINTS})


def _find_lightglue(name: str, _files: MethodFiles) -> MethodInfo:
    from ucn.features.lightglue import find_lightglue

    return find_lightglue(name)


def _find_surf(_files: MethodFiles) -> MethodInfo:
    from ucn.features import surf

    _require_available("surf", surf.explain_unavailable())
    return _build_info("surf", surf.DenseSurf(), {"mahotas": importlib.metadata.version("mahotas")})


def _require_available(name: str, reason: str) -> None:
    if reason:
        raise UnavailableError(name, reason)


def _find_sift(_files: MethodFiles) -> MethodInfo:
    from ucn.features.classical import DenseSift

    return _build_info("sift", DenseSift(), _OPENCV)


def _find_daisy(_files: MethodFiles) -> MethodInfo:
    from ucn.features.classical import DenseDaisy

    return _build_info("daisy", DenseDaisy(), _OPENCV)


def _find_kaze(_files: MethodFiles) -> MethodInfo:
    from ucn.features.classical import DenseKaze

    return _build_info("kaze", DenseKaze(), _OPENCV)


def _find_hog(_files: MethodFiles) -> MethodInfo:
    from ucn.features.hog import DenseHog

    return _build_info("hog", DenseHog(), _OPENCV)


def _find_pixel_sift(_files: MethodFiles) -> MethodInfo:
    from ucn.features.classical import PixelSift

    return _build_info("pixel-sift", PixelSift(), _OPENCV)


def _build_info(name: str, extractor: Any, versions: Mapping[str, str]) -> MethodInfo:
    """A method whose extractor is a dataclass of settings."""
    key = {name: asdict(extractor), **versions}
    # Methods over the same features have one extractor, so that evaluations extract once.
    extractor = make_once((type(extractor), str(key)), lambda: extractor)
    return MethodInfo(
        name,
        extractor.title,
        key,
        extractor.dim,
        extractor.stride,
        has_own_keypoints=has_own_keypoints(extractor),
        loader=wrap_extractor(extractor),
    )


def _build_file_info(name: str, kind: Any, path: Path, make: Callable[..., Any] | None = None) -> MethodInfo:
    """A method whose extractor, of the class `kind`, is loaded from a file."""
    return MethodInfo(
        name,
        kind.title,
        {name: hash_file(path)},
        kind.dim,
        kind.stride,
        has_own_keypoints=has_own_keypoints(kind),
        loader=partial(load_from_file, make or kind, path),
    )


def _find_sift_keypoints(_files: MethodFiles) -> MethodInfo:
    title = f"SIFT {_AT_SIFT}, mutual nearest neighbours ordered by their distance"
    return _build_keypoint_info("sift", title, SiftKeypoints())


def _find_sift_ratio(_files: MethodFiles) -> MethodInfo:
    title = f"the same with Lowe's ratio test, at most {RATIO:g}, ordered by that ratio"
    return _build_keypoint_info("sift-ratio", title, SiftKeypoints(), RATIO)


def _find_daisy_keypoints(_files: MethodFiles) -> MethodInfo:
    from ucn.features.classical import DenseDaisy

    title = f"DAISY, radius {DenseDaisy.radius:g} px, upright, {_AT_SIFT}, matched as sift"
    return _build_keypoint_info("daisy", title, GridDescriptorsAtKeypoints(DenseDaisy()))


def _find_kaze_keypoints(_files: MethodFiles) -> MethodInfo:
    from ucn.features.classical import DenseKaze

    samples = f"24 × 24 samples {DenseKaze.unit_pixels} px apart"
    title = f"KAZE, {samples}, upright, {_AT_SIFT}, matched as sift"
    return _build_keypoint_info("kaze", title, GridDescriptorsAtKeypoints(DenseKaze()))


def _find_surf_keypoints(_files: MethodFiles) -> MethodInfo:
    from ucn.features import surf

    _require_available("surf", surf.explain_unavailable())
    count = f"{surf.SurfKeypoints.max_count:,}"
    title = f"SURF at up to {count} keypoints of its own, by mahotas, matched as sift"
    return _build_keypoint_info("surf", title, surf.SurfKeypoints())


def _build_keypoint_info(name: str, title: str, extractor: Any, ratio: float = 1.0) -> MethodInfo:
    """A sparse method: classical features at keypoints."""
    key = {name: {"extractor": asdict(extractor), "ratio": ratio}, **_OPENCV}
    loader = partial(_load_keypoints, extractor, ratio)
    return MethodInfo(name, title, key, extractor.dim, loader=loader)


def _load_keypoints(extractor: Any, ratio: float, info: MethodInfo, _device: str) -> KeypointMethod:
    return KeypointMethod(**info.metadata(), extractor=extractor, ratio=ratio)


def _find_sparse(find: Finder, where: str, files: MethodFiles) -> MethodInfo:
    """A sparse method from a dense one: it matches corners of image 0, or its own keypoints."""
    info = find(files)
    title = f"{info.title}; {where}, mutual nearest neighbours ordered by their similarity"
    key = {**info.key, "config": describe_sparse_config()}
    return replace(info, title=title, key=key, loader=partial(_load_sparse, info))


def _load_sparse(base: MethodInfo, info: MethodInfo, device: str) -> DenseMethod:
    extractor = base.load(device).extractor
    max_corners = None if has_own_keypoints(extractor) else SPARSE_CONFIG.max_keypoints
    return DenseMethod(**info.metadata(), extractor=extractor, max_corners=max_corners)


_OPENCV = {"opencv": cv2.__version__}
_AT_SIFT = f"at up to {SiftKeypoints.max_count:,} keypoints of OpenCV's SIFT"
_CORNERS = f"up to {SPARSE_CONFIG.max_keypoints:,} corners of image 0"

BASELINES = Registry(
    baselines={
        "sift": _find_sift,
        "daisy": _find_daisy,
        "kaze": _find_kaze,
        "hog": _find_hog,
        "surf": _find_surf,
        "trunk": find_trunk,
        "xfeat": _find_xfeat,
        "disk": _find_disk,
    },
    optional={"vgg": _find_vgg, "pixel-sift": _find_pixel_sift},
    default_with_file=("vgg",),
    sparse={
        "sift": _find_sift_keypoints,
        "sift-ratio": _find_sift_ratio,
        "daisy": _find_daisy_keypoints,
        "kaze": _find_kaze_keypoints,
        "surf": _find_surf_keypoints,
        "trunk": partial(_find_sparse, find_trunk, _CORNERS),
        "xfeat": partial(_find_sparse, _find_xfeat, _CORNERS),
        "disk": partial(_find_sparse, _find_disk, "its own keypoints"),
        "disk-lightglue": partial(_find_lightglue, "disk-lightglue"),
        "aliked-lightglue": partial(_find_lightglue, "aliked-lightglue"),
        "xfeat-lighterglue": partial(_find_lightglue, "xfeat-lighterglue"),
    },
    at_corners=BASELINE_NAMES.at_corners,
)
"""UCN and the baselines, without the systems of the paper."""
