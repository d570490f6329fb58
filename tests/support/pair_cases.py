"""A matcher of encoded images that shifts points, and keeps a diary of what it encodes."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray

from ucn.config import MatchConfig
from ucn.data.io import to_tensor
from ucn.types import FeatureMap, Features, ImageLike, Matches

SHIFT = (5.0, -2.0)
OUTLIERS = 10
"""The last of the 40 matches, which go elsewhere."""


class FeatureShiftMatcher:
    """Answers with point + `SHIFT`, for all but the last `OUTLIERS` of 40 points."""

    def __init__(self, config: MatchConfig | None = None) -> None:
        self.config = config or MatchConfig()
        self.weights = SimpleNamespace(name="shift", sha256="ab" * 32)
        self.encoded: list[ImageLike] = []
        self.matched = 0

    def extract(self, image: ImageLike) -> Features:
        self.encoded.append(image)
        pixels = to_tensor(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        return Features(
            FeatureMap(torch.ones(1, 1, 2, 2), 4, 1.5, image_hw), image_hw, torch.zeros(0, 2), grey=None
        )

    def match_features(self, features0: Features, features1: Features) -> Matches:
        self.matched += 1
        rng = np.random.default_rng(0)
        points0 = rng.uniform(10, 60, (40, 2)).astype(np.float32)
        points1 = points0 + np.asarray(SHIFT, np.float32)
        points1[-OUTLIERS:] = rng.uniform(200, 400, (OUTLIERS, 2))
        scores = np.full(40, 0.5, np.float32)
        return Matches(
            points0, points1, scores, np.ones(40, np.bool_), 0.75, features0.image_hw, features1.image_hw
        )


class QueryShiftMatcher(FeatureShiftMatcher):
    """Answers query points with point + `SHIFT` and score 0.75; the last of several gets 0.125."""

    def match_features(  # type: ignore[override]
        self, features0: Features, features1: Features, *, points: NDArray[np.float32]
    ) -> Matches:
        self.matched += 1
        moved = (points + np.asarray(SHIFT)).astype(np.float32)
        scores = np.full(len(points), 0.75, np.float32)
        scores[1:][-1:] = 0.125
        mutual = np.ones(len(points), np.bool_)
        return Matches(points, moved, scores, mutual, 0.5, features0.image_hw, features1.image_hw)


def write_tiny_images(folder: Path, *names: str) -> None:
    """Images of one colour, 80 × 64."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("RGB", (80, 64), (90, 120, 150)).save(path)
