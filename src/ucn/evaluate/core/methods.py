"""Which methods can be measured, by name: shipped weights, weights of the user's, and the baselines."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import torch

from ucn.config import MatchConfig
from ucn.errors import ConfigError, WeightsError
from ucn.evaluate.core.method_types import LoadedMethods as LoadedMethods
from ucn.evaluate.core.method_types import Method as Method
from ucn.evaluate.core.method_types import MethodFiles as MethodFiles
from ucn.evaluate.core.method_types import MethodInfo as MethodInfo
from ucn.evaluate.core.method_types import hint_at, list_wanted, refuse_repeated
from ucn.features import DenseDaisy, DenseHog, DenseKaze, DenseSift, UntrainedTrunk, XFeat
from ucn.features import disk as disk_network
from ucn.features import surf as mahotas_surf
from ucn.features.vgg import VggConv4
from ucn.features.xfeat import find_obstacle
from ucn.matching.matcher import Matcher
from ucn.nn.encoder import Engine, choose_exact_engine
from ucn.paper import (
    DeepMatching,
    DeepPixels,
    PixelSift,
    SiftFlow,
    SpatialPyramid,
)
from ucn.paper.siamese import SHIPPED, PatchDescriber, SiameseMatcher, load_siamese
from ucn.paper.transfer import SQUARES
from ucn.weights import list_weights

_TRUNK_FILE = "googlenet/bvlc_googlenet_conv1_to_inception_4a.npz"
_VGG_FILE = "vgg/vgg16.safetensors"
_XFEAT_FILE = "peers/xfeat_vga.onnx"


class _AbsentError(Exception):
    """A file or package that a method needs is not there."""


def list_methods() -> tuple[str, ...]:
    """Names of all methods that need no file of `ucn train`.

    Each of `OPTIMISERS` also works on the features of another, by a name such as ``trunk+sift-flow``.
    """
    return (*_list_quick(), *_ON_REQUEST, *OPTIMISERS)


def list_features() -> tuple[str, ...]:
    """Names of the methods among them that describe single images, so that others can work on that."""
    return (*_list_quick(), *(name for name in _ON_REQUEST if name not in _WITHOUT_FEATURES))


def _list_quick() -> tuple[str, ...]:
    """Methods that are measured where none are named; the others take seconds a pair."""
    return (*(info.name for info in list_weights()), *_BASELINES)


def load_methods(
    names: Iterable[str] | None,
    files: MethodFiles | None = None,
    device: str | torch.device = "cpu",
    engine: Engine | None = None,
) -> LoadedMethods:
    """Loads methods; those whose files or packages are absent are skipped, with the reason.

    Args:
        names: of `list_methods`, ``FEATURES+OPTIMISER``, and those of given weights files; None means all
            that take no seconds a pair.
        files: what they need beside the package; weights files are measured even where they are not named.
        device: where networks of torch run.
        engine: of a `Matcher`; None takes one that computes in float32, whatever the device.

    Raises:
        ConfigError: a name is unknown.
        WeightsError: a file is there, but damaged or of something else.
    """
    files = files or MethodFiles()
    # Nobody has VGG's weights by chance: who gives them wants them measured.
    quick = (*_list_quick(), *(("vgg",) if files.vgg is not None else ()))
    chosen = list(dict.fromkeys(quick if names is None else names))
    for name in chosen:
        _check_name(name, [path.stem for path in files.weights])
    loaded = LoadedMethods()
    own = {path: _load_weights(str(path), path.stem, device, engine) for path in files.weights}
    features = {method.name: method for method in own.values()}
    for item in list_wanted(chosen, files.weights, list_methods()):
        if isinstance(item, Path):
            loaded.methods.append(own[item])
            continue
        try:
            loaded.methods.append(_load(item, features, files, device, engine))
        except _AbsentError as reason:
            loaded.skipped[item] = str(reason)
    refuse_repeated([method.name for method in loaded.methods])
    return loaded


def _check_name(name: str, weights: Sequence[str]) -> None:
    legal = (*list_methods(), *weights)
    features, plus, optimiser = name.partition("+")
    own = (*list_features(), *weights)
    if name in legal or (plus and features in own and optimiser in OPTIMISERS):
        return
    hint = hint_at(name, [*legal, *(f"{a}+{b}" for a in own for b in OPTIMISERS)])
    raise ConfigError(
        f"no method '{name[:80]}'{hint} (there are {', '.join(legal)}; {', '.join(OPTIMISERS)} also work on "
        f"features of others, as trunk+{next(iter(OPTIMISERS))}; files of `ucn train` are given with "
        "--weights-file)"
    )


def _load(
    name: str,
    features: dict[str, Method],
    files: MethodFiles,
    device: str | torch.device,
    engine: Engine | None,
) -> Method:
    """A method by name; `features` keeps those whose features others may share."""
    base, plus, optimiser = name.partition("+")
    if plus:
        return OPTIMISERS[optimiser].work_on(_load(base, features, files, device, engine))
    if name in OPTIMISERS:
        return OPTIMISERS[name].alone()
    if name not in features:
        loaders = {**_BASELINES, **_ON_REQUEST}
        features[name] = (
            loaders[name](files, device) if name in loaders else _load_weights(name, name, device, engine)
        )
    return features[name]


def _load_weights(name_or_path: str, name: str, device: str | torch.device, engine: Engine | None) -> Method:
    # Benchmarks decide the size at which images are seen, so the matcher must not reduce them.
    config = MatchConfig(max_side=None, keypoints="grid")
    engine = engine or choose_exact_engine(device)
    matcher = Matcher.from_pretrained(name_or_path, config=config, device=str(device), engine=engine)
    sha256 = matcher.weights.sha256
    return Method(name, f"UCN, weights {name}, sha256 {sha256[:16]}", {"ucn": sha256}, matcher)


def _classical(name: str, extractor: Any, title: str) -> Callable[[MethodFiles, Any], Method]:
    key = {name: asdict(extractor), "opencv": cv2.__version__}
    return lambda _files, _device: Method(name, title, key, extractor)


def _load_trunk(files: MethodFiles, device: str | torch.device) -> Method:
    path = _find(files.trunk, _TRUNK_FILE, "GoogLeNet's ImageNet weights", "--trunk")
    title = "GoogLeNet's inception_4a as trained on ImageNet, one cell per 4 px, 512 numbers"
    return Method("trunk", title, {"trunk": _hash(path)}, UntrainedTrunk(path, device))


def _load_vgg(files: MethodFiles, device: str | torch.device) -> Method:
    path = _find(files.vgg, _VGG_FILE, "torchvision's vgg16", "--vgg")
    title = "VGG-16's conv4_3 as trained on ImageNet, one cell per 8 px, 512 numbers"
    return Method("vgg", title, {"vgg": _hash(path)}, VggConv4(path, device))


def _load_xfeat(files: MethodFiles, _device: str | torch.device) -> Method:
    path = _find(files.xfeat, _XFEAT_FILE, "XFeat's ONNX file", "--xfeat")
    obstacle = find_obstacle(path)
    if obstacle:
        raise _AbsentError(obstacle)
    title = (
        "XFeat's dense descriptors, one per 8 px, 64 numbers; other sizes than 640 × 480 are fitted into it"
    )
    return Method("xfeat", title, {"xfeat": _hash(path)}, XFeat(path))


def _load_surf(_files: MethodFiles, _device: str | torch.device) -> Method:
    obstacle = mahotas_surf.find_obstacle()
    if obstacle:
        raise _AbsentError(obstacle)
    extractor = mahotas_surf.DenseSurf()
    key = {"surf": asdict(extractor), "mahotas": importlib.metadata.version("mahotas")}
    title = (
        f"dense SURF, 4 × 4 squares of {5 * extractor.scale} px, 64 numbers, turned to the dominant "
        "direction, one cell per 4 px"
    )
    return Method("surf", title, key, extractor)


def _load_disk(_files: MethodFiles, device: str | torch.device) -> Method:
    path = disk_network.find_weights()
    obstacle = disk_network.find_obstacle(path)
    if obstacle or path is None:
        raise _AbsentError(obstacle)
    title = "DISK's descriptors of every pixel (weights depth), 128 numbers; own keypoints where those count"
    key = {"disk": _hash(path), "keypoints": disk_network.KEYPOINTS}
    return Method("disk", title, key, disk_network.Disk(path, device))


def _find(given: Path | None, below_data: str, what: str, option: str) -> Path:
    """A file that was given, or the one in the folder of sample data; a given one must be there."""
    if given is not None:
        if not given.is_file():
            raise WeightsError(f"no file {given}: {option} expects {what}")
        return given
    folder = os.environ.get("UCN_DATA")
    path = Path(folder) / below_data if folder else None
    if path is None or not path.is_file():
        raise _AbsentError(f"{what} not found: give {option} FILE, or put it in $UCN_DATA/{below_data}")
    return path


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _describe_grid(name: str, what: str) -> str:
    return f"dense {name}, {what}, upright, one cell per 4 px"


@dataclass(frozen=True)
class Optimiser:
    """A system that weighs all points of a pair against each other, whatever features it is given.

    Attributes:
        name: how the command line calls it.
        title: what it is.
        own_title: the features it takes where none are named.
        own_extractor: those.
        own_matcher: how it works on those.
        matcher: how it works on others.
    """

    name: str
    title: str
    own_title: str
    own_extractor: Any
    own_matcher: Any
    matcher: Any

    def alone(self) -> Method:
        """The system as its authors published it."""
        features = {type(self.own_extractor).__name__: asdict(self.own_extractor), "opencv": cv2.__version__}
        title = f"{self.title}; over {self.own_title}"
        key = {self.name: asdict(self.own_matcher), "features": features}
        return Method(self.name, title, key, self.own_extractor, self.own_matcher)

    def work_on(self, method: Method) -> Method:
        """The system over the features of a method."""
        title = f"{self.title}; over: {method.title}"
        key = {self.name: asdict(self.matcher), "features": method.key}
        return Method(f"{method.name}+{self.name}", title, key, method.extractor, self.matcher)


OPTIMISERS: dict[str, Optimiser] = {
    optimiser.name: optimiser
    for optimiser in (
        Optimiser(
            name="sift-flow",
            title="SIFT Flow (Liu et al. 2011), coarse-to-fine belief propagation",
            own_title=f"SIFT at every pixel, 4 × 4 histograms of {PixelSift.bin_pixels:g} px",
            own_extractor=PixelSift(),
            own_matcher=SiftFlow(),
            matcher=SiftFlow(smoothness=0.4),
        ),
        Optimiser(
            name="dsp",
            title="DSP (Kim et al. 2013), belief propagation on a pyramid of 21 nodes, then each point alone",
            own_title=f"dense SIFT, 4 × 4 histograms of {DenseSift.bin_pixels:g} px, one cell per 4 px",
            own_extractor=DenseSift(),
            own_matcher=SpatialPyramid(),
            matcher=SpatialPyramid(),
        ),
        Optimiser(
            name="deepmatching",
            title="DeepMatching (Revaud et al. 2016), correlation pyramid, densified by the nearest match",
            own_title="its own descriptors of the pixels of the half-size image",
            own_extractor=DeepPixels(),
            own_matcher=DeepMatching(),
            matcher=DeepMatching(atom_cells=2, finest_pixels=4),
        ),
    )
}
"""Systems that optimise, by name."""

_TRANSFER, _SIAMESE = "nn-transfer", "siamese"
_OTHER_KEYS = ("transfer", "siamese", *OPTIMISERS)  # in the keys of methods that match in another way
# One looks at whole objects; descriptors of the other's patches mean nothing without its decision layers.
_WITHOUT_FEATURES = (_TRANSFER, _SIAMESE)


def is_nearest(method: MethodInfo) -> bool:
    """Whether a method answers by nearest neighbours; of one that a file tells of, its key says so."""
    if isinstance(method, Method):
        return method.is_nearest
    return not any(name in method.key for name in _OTHER_KEYS)


def _load_transfer(files: MethodFiles, device: str | torch.device) -> Method:
    method = _load_trunk(files, device)
    title = (
        "NN transfer: the parts of the training image most similar by GoogLeNet's inception_4a, averaged in "
        f"{SQUARES} × {SQUARES} squares of the object's box, which is given"
    )
    return Method(_TRANSFER, title, {"transfer": method.key}, method.extractor, is_transfer=True)


def _load_siamese(files: MethodFiles, device: str | torch.device) -> Method:
    path = files.siamese or SHIPPED
    if files.siamese is None and not path.is_file():
        raise _AbsentError(
            "no Siamese network: train one with benchmarks/siamese_training.py, give --siamese"
        )
    describer = PatchDescriber(load_siamese(path), device)
    matcher = SiameseMatcher(describer.model.decision)
    return Method(_SIAMESE, describer.title, {"siamese": _hash(path)}, describer, matcher)


_ON_REQUEST: dict[str, Callable[[MethodFiles, Any], Method]] = {
    _TRANSFER: _load_transfer,
    _SIAMESE: _load_siamese,
    "vgg": _load_vgg,
    "pixel-sift": _classical(
        "pixel-sift",
        PixelSift(),
        f"SIFT at every pixel, 4 × 4 histograms of {PixelSift.bin_pixels:g} px, upright; SIFT Flow's own",
    ),
}
"""Methods that are measured only where they are named."""

_BASELINES: dict[str, Callable[[MethodFiles, Any], Method]] = {
    "sift": _classical(
        "sift",
        DenseSift(),
        _describe_grid("SIFT", f"4 × 4 histograms of {DenseSift.bin_pixels:g} px, 128 numbers"),
    ),
    "daisy": _classical(
        "daisy", DenseDaisy(), _describe_grid("DAISY", f"radius {DenseDaisy.radius:g} px, 200 numbers")
    ),
    "kaze": _classical(
        "kaze",
        DenseKaze(),
        _describe_grid(
            "KAZE",
            f"24 × 24 samples {DenseKaze.unit_pixels} px apart, level {DenseKaze.level}, 64 numbers",
        ),
    ),
    "hog": _classical(
        "hog",
        DenseHog(),
        _describe_grid(
            "HOG",
            f"{DenseHog.histograms} × {DenseHog.histograms} histograms {DenseHog.histogram_pixels} px apart, "
            f"{DenseHog.directions} signed directions, 128 numbers",
        ),
    ),
    "surf": _load_surf,
    "trunk": _load_trunk,
    "xfeat": _load_xfeat,
    "disk": _load_disk,
}
