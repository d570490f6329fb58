"""Which methods can be measured, by name: shipped weights, weights of the user's, and the baselines."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import torch

from ucn.baselines import DenseDaisy, DenseHog, DenseKaze, DenseSift, Extractor, UntrainedTrunk, XFeat
from ucn.baselines.xfeat import find_obstacle
from ucn.config import MatchConfig
from ucn.errors import ConfigError, WeightsError
from ucn.predict import Matcher
from ucn.weights import list_weights

_TRUNK_FILE = "googlenet/bvlc_googlenet_conv1_to_inception_4a.npz"
_XFEAT_FILE = "peers/xfeat_vga.onnx"


@dataclass(frozen=True, eq=False)
class Method:
    """A method that is measured.

    Attributes:
        name: its row in tables.
        title: what it is, with its settings.
        key: everything its answers depend on, as plain JSON values.
        extractor: describes images.
    """

    name: str
    title: str
    key: dict[str, Any]
    extractor: Extractor


@dataclass(frozen=True)
class MethodFiles:
    """Files that methods need beside the package.

    Attributes:
        weights: files of `ucn train`; each is a method, named after its file.
        trunk: GoogLeNet's ImageNet weights; None looks in the folder that ``UCN_DATA`` names.
        xfeat: XFeat's ONNX file; None looks there too.
    """

    weights: Sequence[Path] = ()
    trunk: Path | None = None
    xfeat: Path | None = None


@dataclass(frozen=True)
class LoadedMethods:
    """What can be measured, and why something cannot.

    Attributes:
        methods: in the order asked for.
        skipped: reasons by name.
    """

    methods: list[Method] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


class _AbsentError(Exception):
    """A file or package that a method needs is not there."""


def list_methods() -> tuple[str, ...]:
    """Names of all methods that need no file of `ucn train`."""
    return (*(info.name for info in list_weights()), *_BASELINES)


def load_methods(
    names: Iterable[str] | None, files: MethodFiles | None = None, device: str | torch.device = "cpu"
) -> LoadedMethods:
    """Loads methods; those whose files or packages are absent are skipped, with the reason.

    Args:
        names: of `list_methods`; None means all of them.
        files: what they need beside the package.
        device: where networks of torch run.

    Raises:
        ConfigError: a name is unknown.
        WeightsError: a file is there, but damaged or of something else.
    """
    files = files or MethodFiles()
    chosen = list(dict.fromkeys(list_methods() if names is None else names))
    for name in chosen:
        _check_name(name)
    loaded = LoadedMethods()
    for path in files.weights:
        loaded.methods.append(_load_weights(str(path), path.stem, device))
    for name in chosen:
        try:
            if name in _BASELINES:
                loaded.methods.append(_BASELINES[name](files, device))
            else:
                loaded.methods.append(_load_weights(name, name, device))
        except _AbsentError as reason:
            loaded.skipped[name] = str(reason)
    repeated = {method.name for method in loaded.methods if _count(loaded, method.name) > 1}
    if repeated:
        raise ConfigError(f"two methods have the name '{min(repeated)}'; rename one of the weights files")
    return loaded


def _count(loaded: LoadedMethods, name: str) -> int:
    return sum(method.name == name for method in loaded.methods)


def _check_name(name: str) -> None:
    legal = list_methods()
    if name not in legal:
        close = difflib.get_close_matches(name, legal, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(
            f"no method '{name[:80]}'{hint} (there are {', '.join(legal)}; files of `ucn train` are given "
            "with --weights-file)"
        )


def _load_weights(name_or_path: str, name: str, device: str | torch.device) -> Method:
    # Benchmarks decide the size at which images are seen, so the matcher must not reduce them.
    matcher = Matcher.from_pretrained(
        name_or_path, config=MatchConfig(max_side=None, keypoints="grid"), device=str(device)
    )
    sha256 = matcher.weights.sha256
    return Method(name, f"UCN, weights {name}, sha256 {sha256[:16]}", {"ucn": sha256}, matcher)


def _classical(name: str, extractor: Any, title: str) -> Callable[[MethodFiles, Any], Method]:
    key = {name: asdict(extractor), "opencv": cv2.__version__}
    return lambda _files, _device: Method(name, title, key, extractor)


def _load_trunk(files: MethodFiles, device: str | torch.device) -> Method:
    path = _find(files.trunk, _TRUNK_FILE, "GoogLeNet's ImageNet weights", "--trunk")
    title = "GoogLeNet's inception_4a as trained on ImageNet, one cell per 4 px, 512 numbers"
    return Method("trunk", title, {"trunk": _hash(path)}, UntrainedTrunk(path, device))


def _load_xfeat(files: MethodFiles, _device: str | torch.device) -> Method:
    path = _find(files.xfeat, _XFEAT_FILE, "XFeat's ONNX file", "--xfeat")
    obstacle = find_obstacle(path)
    if obstacle:
        raise _AbsentError(obstacle)
    title = (
        "XFeat's dense descriptors, one per 8 px, 64 numbers; other sizes than 640 × 480 are fitted into it"
    )
    return Method("xfeat", title, {"xfeat": _hash(path)}, XFeat(path))


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
    "trunk": _load_trunk,
    "xfeat": _load_xfeat,
}
