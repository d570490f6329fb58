import pickle
from pathlib import Path

import pytest
import torch

from support.photo_cases import make_photo
from ucn.data.example import example_pair
from ucn.data.io import read_image
from ucn.errors import WeightsError
from ucn.evaluate.points.predictions import find_points
from ucn.features.xfeat import XFeat, explain_unavailable

FILE = "peers/xfeat_vga.onnx"


@pytest.fixture(scope="module")
def xfeat(data_folder: Path) -> XFeat:
    pytest.importorskip("onnxruntime", reason="the extra 'baselines' is not installed")
    return XFeat(data_folder / FILE, threads=1)


def test_map_of_the_networks_own_size(xfeat: XFeat) -> None:
    features = xfeat.extract(make_photo(480, 640))
    assert features.map.features.shape == (1, 64, 60, 80)
    assert (features.map.stride, features.map.offset, features.map.image_hw) == (8, 3.5, (480, 640))
    assert torch.allclose(features.map.features.norm(dim=1), torch.ones(1, 60, 80), atol=1e-5)


def test_other_sizes_are_fitted_and_cells_beyond_the_image_cut_off(xfeat: XFeat) -> None:
    features = xfeat.extract(make_photo(100, 320))  # twice as large: 200 × 640
    assert (features.map.image_hw, features.image_hw) == ((200, 640), (100, 320))
    assert features.map.grid_hw == (25, 80)
    # Cell 0 lies on pixel 3.5 of the enlarged image, and the last on 8 * 79 + 3.5.
    assert features.keypoints[0].tolist() == pytest.approx([1.5, 1.5])
    assert features.keypoints[79].tolist() == pytest.approx([317.5, 1.5])


def test_enlarged_image_is_found_without_bias(xfeat: XFeat) -> None:
    """A wrong offset moves all matches of an enlarged image; of a shifted one it moves none."""
    photo = read_image(example_pair().image0_path)[
        :, 100:400, 100:500
    ].contiguous()  # 400 × 300, fitted by 1.6
    small = torch.nn.functional.pad(photo, (0, 240, 0, 180), value=0.5)  # the same in 640 × 480, not enlarged
    features0, features1 = xfeat.extract(small), xfeat.extract(photo)
    asked = features0.keypoints[(features0.keypoints < torch.tensor([380.0, 280.0])).all(dim=1)]
    found = find_points(features0, features1, asked, (0, 0, 400, 300), use_refinement=True)
    errors = found - asked
    near = errors[errors.norm(dim=1) < 6]
    assert len(near) > 0.3 * len(asked)
    assert near.mean(dim=0).abs().max() < 0.5


def test_it_can_be_copied_into_another_process(xfeat: XFeat) -> None:
    photo = make_photo(96, 128)
    copied = pickle.loads(pickle.dumps(xfeat))
    assert torch.equal(copied.extract(photo).map.features, xfeat.extract(photo).map.features)


def test_obstacles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'baselines' is not installed")
    with pytest.raises(WeightsError, match="no XFeat network at"):
        XFeat(tmp_path / "missing.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a network")
    with pytest.raises(WeightsError, match="not an ONNX network"):
        XFeat(tmp_path / "bad.onnx")
    monkeypatch.setattr("ucn.features.xfeat._MAX_FILE_BYTES", 3)
    assert "the limit for XFeat's network is 3" in explain_unavailable(tmp_path / "bad.onnx")


def test_error_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WeightsError, match=r"needs onnxruntime, .* pip install 'ucn\[baselines\]'"):
        XFeat(tmp_path / "any.onnx")
