"""VGG-16's conv4_3: against a slow reference, where its cells lie, and files that are not it."""

import io
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from ucn.errors import ConfigError, WeightsError
from ucn.features.extractor import load_tensors
from ucn.features.method import MethodFiles
from ucn.features.vgg import VggConv4
from ucn.paper.registry import METHODS
from ucn.paper.results import find_systems

CONVOLUTIONS = {0: (3, 64), 2: (64, 64), 5: (64, 128), 7: (128, 128), 10: (128, 256), 12: (256, 256)} | {
    14: (256, 256),
    17: (256, 512),
    19: (512, 512),
    21: (512, 512),
}
POOLS = (4, 9, 16)


def make_arrays(scale: float = 1.4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    arrays = {}
    for place, (channels_in, channels_out) in CONVOLUTIONS.items():
        shape = (channels_out, channels_in, 3, 3)
        spread = scale / (9 * channels_in) ** 0.5
        arrays[f"features.{place}.weight"] = spread * torch.randn(shape, generator=generator)
        arrays[f"features.{place}.bias"] = torch.zeros(channels_out)
    arrays["classifier.0.bias"] = torch.zeros(5)  # the rest of the network may be there
    return arrays


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vgg") / "vgg16.safetensors"
    save_file(make_arrays(), path)
    return path


def describe_slowly(image: Tensor) -> Tensor:
    """Torchvision's layers one by one, up to number 22."""
    arrays = make_arrays()
    x = torch.stack(
        [
            (channel - mean) / spread
            for channel, mean, spread in zip(image, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)
        ]
    )[None]
    for place in range(23):
        if place in CONVOLUTIONS:
            x = F.conv2d(x, arrays[f"features.{place}.weight"], arrays[f"features.{place}.bias"], padding=1)
        elif place in POOLS:
            x = F.max_pool2d(x, 2)
        else:
            x = x.clamp_min(0)
    return F.normalize(x[0], dim=0)


def test_it_is_torchvisions_network(path: Path) -> None:
    image = torch.rand(3, 45, 67, generator=torch.Generator().manual_seed(1))
    found = VggConv4(path).extract(image)
    assert found.map.features.shape == (1, 512, 5, 8)
    assert (found.map.stride, found.map.offset, found.image_hw) == (8, 3.5, (45, 67))
    torch.testing.assert_close(found.map.features[0], describe_slowly(image), atol=1e-5, rtol=1e-4)


def test_receptive_fields_are_centred_on_cells(path: Path) -> None:
    extractor = VggConv4(path)
    grey = torch.full((3, 160, 160), 0.5)
    plain = extractor.extract(grey).map.features[0]
    spot = grey.clone()
    spot[:, 76:84, 60:68] = 1.0  # around x = 63.5, y = 79.5
    change = (extractor.extract(spot).map.features[0] - plain).norm(dim=0)
    weights = change / change.sum()
    y, x = torch.meshgrid(8 * torch.arange(20) + 3.5, 8 * torch.arange(20) + 3.5, indexing="ij")
    assert float((weights * x).sum()) == pytest.approx(63.5, abs=1.5)
    assert float((weights * y).sum()) == pytest.approx(79.5, abs=1.5)


def test_pickles_of_arrays_are_read(path: Path, tmp_path: Path) -> None:
    torch.save(make_arrays(), tmp_path / "vgg16.pth")
    image = torch.rand(3, 40, 40)
    first, second = (VggConv4(file).extract(image) for file in (path, tmp_path / "vgg16.pth"))
    assert torch.equal(first.map.features, second.map.features)


def test_damaged_pickles_are_read_or_refused(tmp_path: Path) -> None:
    """torch raises IndexError, AssertionError, struct.error and others, which are not ours."""
    whole, damaged = io.BytesIO(), tmp_path / "vgg16.pth"
    torch.save({"features.0.bias": torch.zeros(4)}, whole, _use_new_zipfile_serialization=False)
    rng, refused = random.Random(0), 0
    for _ in range(200):
        content = bytearray(whole.getvalue())
        for _ in range(rng.randint(1, 10)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        damaged.write_bytes(content[: rng.choice((len(content), rng.randrange(len(content))))])
        for read in (VggConv4, lambda path: load_tensors(path, "VGG", dict)):
            try:
                read(damaged)
            except WeightsError:
                refused += 1
    assert refused > 200


class Harmful:
    """Would write a file when it is read."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (Path("harm.txt"), "done")


def test_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=r"does not end in \.safetensors, \.pth"):
        VggConv4(tmp_path / "vgg16.bin")
    with pytest.raises(WeightsError, match=r"no file .*vgg16\.pth: expected torchvision's vgg16"):
        VggConv4(tmp_path / "vgg16.pth")
    for suffix, content in itertools.product((".pth", ".safetensors"), (b"", b"not weights at all")):
        (tmp_path / f"damaged{suffix}").write_bytes(content)
        with pytest.raises(WeightsError, match="is not a file of weights"):
            VggConv4(tmp_path / f"damaged{suffix}")
    torch.save(Harmful(), tmp_path / "harmful.pth")
    with pytest.raises(WeightsError, match="is not a file of weights"):
        VggConv4(tmp_path / "harmful.pth")
    assert not (tmp_path / "harm.txt").exists()
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(WeightsError, match="holds list"):
        VggConv4(tmp_path / "list.pth")


@pytest.mark.parametrize("change", ["missing", "shape", "finite"])
def test_wrong_arrays(tmp_path: Path, change: str) -> None:
    arrays = make_arrays()
    if change == "missing":
        del arrays["features.21.bias"]
    elif change == "shape":
        arrays["features.21.bias"] = torch.zeros(256)
    else:
        arrays["features.21.bias"][3] = float("nan")
    save_file(arrays, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match=r"features\.21\.bias"):
        VggConv4(tmp_path / "a.safetensors")


@pytest.mark.slow
def test_as_a_method(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)
    assert "vgg" in METHODS.list_names()
    assert "`MethodFiles.vgg`" in METHODS.load_dense(["vgg"]).skipped["vgg"]
    assert "vgg" not in METHODS.load_dense(None).skipped
    loaded = METHODS.load_dense(["vgg", "vgg+sift-flow"], MethodFiles(vgg=path))
    assert [method.name for method in loaded.methods] == ["vgg", "vgg+sift-flow"]
    assert find_systems(loaded.methods[1]) == ("conv4 flow",)
    assert "vgg" in [method.name for method in METHODS.load_dense(None, MethodFiles(vgg=path)).methods]
    assert np.isfinite(loaded.methods[0].extractor.extract(torch.rand(3, 40, 40)).map.features.numpy()).all()
    with pytest.raises(WeightsError, match="`vgg` must be a file"):
        METHODS.load_dense(["vgg"], MethodFiles(vgg=path.with_name("absent.pth")))
    with pytest.raises(ConfigError, match="no method 'vggg'; did you mean 'vgg'"):
        METHODS.load_dense(["vggg"])
