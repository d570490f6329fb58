"""Images are encoded once, results equal those of `Matcher`, and memory and waiting are bounded."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from support.serve_cases import make_image
from ucn.config import ModelConfig
from ucn.data.io import MAX_PIXELS, decode_image
from ucn.errors import PointsError, WeightsError
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.serve.images import StoredImage, decode_upload
from ucn.serve.limits import Limits
from ucn.serve.samples import PAIRS, Samples
from ucn.serve.service import MatchService
from ucn.serve.uploads import NotFoundError
from ucn.types import FeatureMap, Features
from ucn.weights import list_weights, save_weights


@pytest.fixture(scope="module")
def own_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mine.safetensors"
    save_weights(path, build_model(ModelConfig(), torch.Generator().manual_seed(0)))
    return path


@pytest.fixture
def own(own_weights: Path) -> Iterator[MatchService]:
    """A service with untrained weights, called mine, and memory for features of 8 MiB."""
    service = MatchService(
        Limits(memory_bytes=16 * 2**20, max_waiting=2), own_weights=own_weights, device="cpu"
    )
    yield service
    service.close()


def _hold(seed: int, width: int = 64, height: int = 48) -> StoredImage:
    return decode_upload(f"image-{seed}", make_image(width, height, seed), MAX_PIXELS)


def test_answers_are_those_of_the_matcher(own: MatchService, own_weights: Path) -> None:
    first, second, points = _hold(0), _hold(1), [(10.0, 12.5), (40.25, 30.0)]
    matcher = Matcher.from_pretrained(own_weights, device="cpu")
    expected = matcher.match(decode_image(first.content), decode_image(second.content), points=points)
    for _ in range(2):  # made, then remembered
        found = own.match_points(first, second, "mine", points)
        np.testing.assert_allclose(found.points1, expected.points1, atol=1e-4)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
        assert found.pair_score == pytest.approx(expected.pair_score)
    mutual = own.match(first, second, "mine")
    expected = matcher.match(decode_image(first.content), decode_image(second.content))
    np.testing.assert_allclose(mutual.points1, expected.points1, atol=1e-4)
    assert own.match(first, second, "mine") is mutual


def test_similarities_are_cosines_and_peak_at_the_match(own: MatchService) -> None:
    image = _hold(0)
    found = own.compute_similarity(image, image, "mine", (22.0, 18.0))
    row, column = np.unravel_index(found.similarities.argmax(), found.similarities.shape)
    x, y = (found.first_cell[i] + found.cell_step[i] * (column, row)[i] for i in range(2))
    assert (x, y) == (22.0, 18.0)
    assert found.similarities.max() == pytest.approx(1.0, abs=1e-5)


def test_each_image_is_encoded_once(own: MatchService, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"extract": 0, "pair_context": 0}
    for name in counts:
        original = getattr(Matcher, name)

        def count(*arguments: Any, name: str = name, original: Any = original) -> Any:
            counts[name] += 1
            return original(*arguments)

        monkeypatch.setattr(Matcher, name, count)
    first, second = _hold(0), _hold(1)
    threads = [Thread(target=own.match_points, args=(first, second, "mine", [(5.0, 5.0)])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own.compute_similarity(first, second, "mine", (9.0, 9.0))
    own.match(first, second, "mine")
    assert counts == {"extract": 2, "pair_context": 1}
    own.match_points(second, first, "mine", [(5.0, 5.0)])
    assert counts == {"extract": 2, "pair_context": 2}
    own.forget(first.name)
    own.match_points(first, second, "mine", [(5.0, 5.0)])
    assert counts == {"extract": 3, "pair_context": 3}


def test_features_beyond_the_budget_are_evicted(own: MatchService) -> None:
    empty = torch.zeros(0, 2)
    features = Features(
        FeatureMap(torch.zeros(1, 96, 96, 96), 4, 2.0, (384, 384)), (384, 384), empty
    )  # 3.4 MiB
    matcher: Any = SimpleNamespace(extract=lambda image: features)
    images = [_hold(seed) for seed in range(4)]
    for image in images:
        own._encode(matcher, image, "mine")
        assert own.memory_bytes <= 8 * 2**20  # half of the memory
    assert own.memory_bytes > 6 * 2**20
    for image in images:
        own.forget(image.name)
    assert own.memory_bytes == 0


def test_weights_of_the_user_are_offered_beside_the_shipped_ones(own: MatchService) -> None:
    infos = own.list_weights()
    assert [info.name for info in infos] == [*(info.name for info in list_weights()), "mine"]
    assert infos[-1].description == "Weights of your own."


def test_own_weights_do_not_hide_shipped_ones_of_their_name(own_weights: Path, tmp_path: Path) -> None:
    shutil.copy(own_weights, tmp_path / "geometric.safetensors")
    service = MatchService(Limits(), own_weights=tmp_path / "geometric.safetensors", device="cpu")
    assert service.default_weights == "geometric (own)"
    shipped, *_, own = service.list_weights()
    assert (shipped.name, own.name) == ("geometric", "geometric (own)")
    assert shipped.sha256 != own.sha256
    service.close()


def test_errors(own: MatchService) -> None:
    image = _hold(0)
    with pytest.raises(NotFoundError, match="no such weights; there are geometric"):
        own.match(image, image, "nonsense")
    with pytest.raises(PointsError, match=r"point \(64, 3\) lies outside the image"):
        own.match_points(image, image, "mine", [(64.0, 3.0)])
    missing = MatchService(Limits(), own_weights=Path("missing.safetensors"))
    with pytest.raises(WeightsError, match="missing"):
        missing.list_weights()
    missing.close()


def test_no_points_give_the_pair_score(own: MatchService) -> None:
    found = own.match_points(_hold(0), _hold(1), "mine", [])
    assert len(found) == 0
    assert 0 <= found.pair_score <= 1


def test_every_sample_can_be_read() -> None:
    samples = Samples()
    assert samples.find("sample-nothing") is None
    for pair in PAIRS:
        first, second = samples.find(pair.image0), samples.find(pair.image1)
        assert first is not None
        assert second is not None
        assert samples.find(pair.image0) is first
        assert first.shown != second.shown
        assert min(*first.image_hw, *second.image_hw) >= 200
