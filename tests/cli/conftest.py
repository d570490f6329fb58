"""A matcher that shifts every point, so that the commands can be tested without weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from support.pair_cases import SHIFT, FeatureShiftMatcher
from ucn.cli import _command
from ucn.config import MatchConfig
from ucn.types import Flow, ImageLike, Matches


class ShiftMatcher(FeatureShiftMatcher):
    """Answers with point + `SHIFT`; remembers how it was called."""

    def __init__(self, config: MatchConfig | None) -> None:
        super().__init__(config)
        self.calls: list[dict[str, Any]] = []
        self.images: list[ImageLike] = []

    def match(
        self, image0: ImageLike, image1: ImageLike, *, progress: Callable[[str], None], **options: Any
    ) -> Matches:
        from ucn.data.io import to_tensor

        self.calls.append(options)
        self.images += [image0, image1]
        progress("encoding image 0 tile 1/2")
        progress("encoding image 0 tile 2/2")
        sizes = [(int(t.shape[1]), int(t.shape[2])) for t in (to_tensor(image0), to_tensor(image1))]
        points = options.get("points")
        if points is None:
            points = np.random.default_rng(0).uniform(10, 60, (40, 2)).astype(np.float32)
        count = len(points)
        points1 = (points + SHIFT).astype(np.float32)
        scores = np.full(count, 0.5, np.float32)
        return Matches(points, points1, scores, np.ones(count, np.bool_), 0.25, sizes[0], sizes[1])

    def flow(self, image0: ImageLike, image1: ImageLike, *, progress: Callable[[str], None]) -> Flow:
        from ucn.data.io import to_tensor

        self.images += [image0, image1]
        size_hw, _ = (to_tensor(image).shape[1:] for image in (image0, image1))  # reads both
        vectors = np.broadcast_to(np.array(SHIFT, np.float32), (*size_hw, 2)).copy()
        return Flow(vectors, np.ones(size_hw, np.float32))


@pytest.fixture
def shift_matchers(monkeypatch: pytest.MonkeyPatch) -> list[ShiftMatcher]:
    """Replaces the real matcher; the list holds those that commands loaded."""
    loaded: list[ShiftMatcher] = []

    def load(weights: str, config: MatchConfig | None = None, device: str | None = None) -> ShiftMatcher:
        loaded.append(ShiftMatcher(config))
        return loaded[-1]

    monkeypatch.setattr(_command, "load_matcher", load)
    return loaded


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Two readable images, 80 × 64, in the folder ``tmp_path / "in"``."""
    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = folder / "a.png", folder / "b.png"
    for path in paths:
        PIL.Image.fromarray(rng.integers(0, 256, (64, 80, 3), dtype=np.uint8)).save(path)
    return str(paths[0]), str(paths[1])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty folder for outputs."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def random_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights file of an untrained network."""
    import torch

    from ucn.config import ModelConfig
    from ucn.nn import build_model
    from ucn.weights import save_weights

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(ModelConfig())
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    save_weights(path, model)
    return path
