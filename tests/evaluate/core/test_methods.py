from pathlib import Path

import pytest
import torch

from support.trunk_cases import make_arrays, write_npz
from ucn.config import ModelConfig
from ucn.errors import ConfigError, WeightsError
from ucn.evaluate.core.methods import MethodFiles, list_methods, load_methods
from ucn.evaluate.motion.methods import load_motion_methods
from ucn.evaluate.reconstruction.report import load_reconstruction_methods
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.weights import save_weights


@pytest.fixture(autouse=True)
def no_sample_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)


def test_names() -> None:
    assert {"geometric", "sift", "daisy", "kaze", "hog", "trunk", "xfeat"} <= set(list_methods())


def test_unknown_names_list_the_legal_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"no method 'shift'; did you mean 'sift'\? \(there are geometric, "
    ):
        load_methods(["sift", "shift"])


def test_order_and_repetition() -> None:
    loaded = load_methods(["hog", "sift", "hog", "geometric"])
    assert [method.name for method in loaded.methods] == ["hog", "sift", "geometric"]
    assert len({str(method.key) for method in loaded.methods}) == 3
    assert "9 px" in loaded.methods[1].title


def test_the_network_sees_images_at_the_size_of_the_benchmark() -> None:
    (method,) = load_methods(["geometric"]).methods
    assert isinstance(method.extractor, Matcher)
    assert method.extractor.config.max_side is None
    assert method.key == {"ucn": method.extractor.weights.sha256}


def test_absent_files_are_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_methods(["trunk", "xfeat", "sift"])
    assert [method.name for method in loaded.methods] == ["sift"]
    assert "give --trunk FILE, or put it in $UCN_DATA/googlenet/" in loaded.skipped["trunk"]
    assert "give --xfeat FILE" in loaded.skipped["xfeat"]
    monkeypatch.setenv("UCN_DATA", str(tmp_path))
    assert set(load_methods(["trunk", "xfeat"]).skipped) == {"trunk", "xfeat"}


def test_absent_packages_are_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.onnx").write_bytes(b"x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    loaded = load_methods(["xfeat"], MethodFiles(xfeat=tmp_path / "x.onnx"))
    assert "onnxruntime, which is not installed" in loaded.skipped["xfeat"]


def test_files_that_were_given_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="--trunk expects GoogLeNet"):
        load_methods(["trunk"], MethodFiles(trunk=tmp_path / "missing.npz"))
    with pytest.raises(WeightsError, match="no weights"):
        load_methods([], MethodFiles(weights=[tmp_path / "missing.safetensors"]))


def test_trunk_from_a_file(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "trunk.npz", make_arrays())
    (method,) = load_methods(["trunk"], MethodFiles(trunk=path)).methods
    assert method.extractor.extract(torch.zeros(3, 32, 32)).map.features.shape == (1, 512, 8, 8)


def test_weights_files_are_methods_named_after_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    sha256 = save_weights(path, build_model(ModelConfig(dim=16)))
    loaded = load_methods(["sift"], MethodFiles(weights=[path]))
    assert [method.name for method in loaded.methods] == ["mine", "sift"]
    assert loaded.methods[0].key == {"ucn": sha256}
    (tmp_path / "other").mkdir()
    twin = path.rename(tmp_path / "other" / "sift.safetensors")
    with pytest.raises(ConfigError, match="two methods have the name 'sift'"):
        load_methods(["sift"], MethodFiles(weights=[twin]))


def test_weights_files_answer_to_their_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_weights(path, build_model(ModelConfig(dim=16)))
    files = MethodFiles(weights=[path])
    for names in (["mine"], ["hog", "mine"], ["mine+dsp", "mine", "hog"]):
        assert [method.name for method in load_methods(names, files).methods] == names
    assert [m.name for m in load_motion_methods(["sift", "mine"], files).methods] == ["sift", "mine"]
    assert [m.name for m in load_reconstruction_methods(["mine"], files)[0]] == ["mine"]
    for load in (load_methods, load_motion_methods, load_reconstruction_methods):
        with pytest.raises(ConfigError, match=r"no method 'mime'.*did you mean 'mine'\?.*mine"):
            load(["mime"], files)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "mine.safetensors" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        save_weights(path, build_model(ModelConfig(dim=16)))
    for load in (load_methods, load_motion_methods, load_reconstruction_methods):
        for names in (["mine"], ["sift"]):
            with pytest.raises(ConfigError, match="two methods have the name 'mine'"):
                load(names, MethodFiles(weights=paths))
