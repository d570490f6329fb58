from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from support.photo_cases import make_photo
from support.trunk_cases import make_arrays, write_npz
from ucn.errors import ImageReadError, WeightsError
from ucn.features.trunk import UntrainedTrunk
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.trunk_files import load_imagenet_trunk


def test_features_are_inception_4a_of_unit_length(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "trunk.npz", make_arrays())
    image = make_photo(48, 56)
    trunk = GoogLeNetTrunk().eval()
    load_imagenet_trunk(trunk, path)
    features = UntrainedTrunk(path).extract(image)
    with torch.no_grad():
        wanted = F.normalize(trunk(image[None]), dim=1)
    assert torch.allclose(features.map.features, wanted, atol=1e-5)
    assert (features.map.stride, features.map.offset, features.image_hw) == (4, 2, (48, 56))
    assert not features.map.features.requires_grad


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no trunk weights at"):
        UntrainedTrunk(tmp_path / "missing.npz")
    path = write_npz(tmp_path / "trunk.npz", make_arrays())
    with pytest.raises(ImageReadError, match="at least 32 px"):
        UntrainedTrunk(path).extract(torch.zeros(3, 20, 40))
