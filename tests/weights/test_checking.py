import io
import os
import pickle
import sys
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from ucn.errors import WeightsError
from ucn.weights import check_weights, checking, list_weights


@pytest.mark.parametrize("name", [info.name for info in list_weights()])
def test_shipped_names(name: str) -> None:
    check_weights(name)


def test_a_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"words")  # `load_weights` finds out
    check_weights(path)


@pytest.mark.parametrize("count", [1, 40])  # headers of different lengths, some of which begin as a pickle
def test_safetensors_are_no_pickles(tmp_path: Path, count: int) -> None:
    for extra in range(64):
        content = safetensors.torch.save({"x": torch.zeros(1)}, {"y": "z" * (16 * count + extra)})
        (tmp_path / "w.safetensors").write_bytes(content)
        check_weights(tmp_path / "w.safetensors")


def test_unknown_names() -> None:
    with pytest.raises(WeightsError, match=r"no weights 'geometrik'; did you mean 'geometric'\?: expected"):
        check_weights("geometrik")


@pytest.mark.parametrize("name", ["my.safetensors", "net.pth", "folder/my"])
def test_a_missing_file_is_called_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(WeightsError, match=rf"no weights file .*{name}: it is missing; check the path, or"):
        check_weights(tmp_path / name)
    with pytest.raises(WeightsError, match=rf"no weights file {name}: it is missing"):
        check_weights(name)


def test_a_missing_file_with_the_name_of_shipped_weights() -> None:
    with pytest.raises(WeightsError, match=r"it is missing; .*; did you mean 'birds'\?"):
        check_weights("birds.safetensors")


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"are a folder; give a \.safetensors file"):
        check_weights(tmp_path)


def test_names_that_are_too_long() -> None:
    with pytest.raises(WeightsError, match="File name too long"):
        check_weights("x" * 300)


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_MAX_FILE_BYTES", 4)
    (tmp_path / "w.safetensors").write_bytes(b"words")
    with pytest.raises(WeightsError, match="has 5 bytes; weights have at most 4"):
        check_weights(tmp_path / "w.safetensors")


def save_tensors(**options: bool) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, file, **options)
    return file.getvalue()


def zip_file(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"x")
    return file.getvalue()


@pytest.mark.parametrize("name", ["net.pth", "net.safetensors"])
@pytest.mark.parametrize(
    "content",
    [
        save_tensors(),
        save_tensors(_use_new_zipfile_serialization=False),
        pickle.dumps({"a": 1}, protocol=2),
        pickle.dumps({"a": 1}, protocol=4),
    ],
)
def test_a_pickle_is_called_one(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=r"is a PyTorch pickle, .* can run code; .*weights_only=True"):
        check_weights(tmp_path / name)


def test_other_archives(tmp_path: Path) -> None:
    (tmp_path / "net.npz").write_bytes(zip_file("a.npy"))
    check_weights(tmp_path / "net.npz")  # `load_weights` says that it is no .safetensors
    (tmp_path / "net.pt").write_bytes(zip_file("code/x.py"))  # TorchScript
    with pytest.raises(WeightsError, match="is a PyTorch pickle"):
        check_weights(tmp_path / "net.pt")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes among its files")
def test_a_pipe_is_not_called_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"are not a regular file; give a \.safetensors file"):
        check_weights(str(tmp_path / "w.safetensors"))
