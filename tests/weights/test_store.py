import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from ucn.config import Calibration, ModelConfig
from ucn.errors import OutputError, WeightsError
from ucn.nn import build_model
from ucn.weights import checking, list_weights, load_weights, save_weights, store, table

SMALL = ModelConfig(dim=8, transformer="none")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    save_weights(path, build_model(SMALL), calibration=Calibration(pair_bias=-1.5), training={"steps": 3})
    return path


def _rewrite(path: Path, header: dict[str, str], tensors: dict[str, torch.Tensor | None]) -> None:
    """The same file with some header entries or tensors changed; None removes a tensor."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    old_header = json.loads(content[8 : 8 + length])["__metadata__"]
    merged = {**safetensors.torch.load(content), **tensors}
    kept = {name: value for name, value in merged.items() if value is not None}
    path.write_bytes(safetensors.torch.save(kept, {**old_header, **header}))


def test_round_trip(saved: Path) -> None:
    loaded = load_weights(saved)
    assert loaded.model.config == SMALL
    assert loaded.calibration.pair_bias == -1.5
    assert loaded.training == {"steps": 3}
    assert loaded.info.name == str(saved) and len(loaded.info.sha256) == 64
    assert not loaded.model.training
    original = build_model(SMALL).state_dict()
    for name, value in loaded.model.state_dict().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, original[name], atol=1e-3, rtol=1e-3)


def test_the_side_they_were_made_for_is_kept(saved: Path, tmp_path: Path) -> None:
    assert load_weights(saved).max_side == 1024
    save_weights(tmp_path / "side.safetensors", build_model(SMALL), max_side=160)
    assert load_weights(tmp_path / "side.safetensors").max_side == 160


def test_weights_from_before_that_key_load(saved: Path) -> None:
    content = saved.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    del header["__metadata__"]["max_side"]
    text = json.dumps(header).encode()
    saved.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    assert load_weights(saved).max_side == 1024


def test_equal_weights_have_equal_hashes(tmp_path: Path) -> None:
    model = build_model(SMALL)
    hashes = {save_weights(tmp_path / f"{i}.safetensors", model, training={"b": 1, "a": 2}) for i in range(4)}
    assert len(hashes) == 1


def test_batch_variances_beyond_half_precision_survive(tmp_path: Path) -> None:
    model = build_model(replace(SMALL, head_norm="batch"))
    model.get_buffer("head_norm.running_var").fill_(1e6)
    save_weights(tmp_path / "batch.safetensors", model)
    loaded = load_weights(tmp_path / "batch.safetensors").model
    assert loaded.state_dict()["head_norm.running_var"].max() == 1e6


def test_existing_file_is_kept(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        save_weights(saved, build_model(SMALL))
    assert saved.read_bytes() == before
    save_weights(saved, build_model(SMALL), overwrite=True)


def test_unknown_name_lists_the_legal_ones() -> None:
    with pytest.raises(
        WeightsError,
        match=r"'geometrik'; did you mean 'geometric'\?: expected one of .*\.safetensors",
    ):
        load_weights("geometrik")


def test_wrong_hash(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = replace(list_weights()[0], name="small", sha256="0" * 64)
    monkeypatch.setitem(table.SHIPPED, "small", info)
    monkeypatch.setattr(store, "shipped_path", lambda _: saved)
    with pytest.raises(WeightsError, match=r"have the hash .*, expected 0000000000000000…: .*reinstall"):
        load_weights("small")


@pytest.mark.parametrize("content", [b"", b"\x00" * 4, b"words", b"\xff" * 64, b"PK\x03\x04"])
def test_files_that_are_not_safetensors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"not a readable \.safetensors file"):
        load_weights(path)


def test_truncated_file(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="not a readable"):
        load_weights(saved)


def test_safetensors_of_others(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"x": torch.zeros(3)}, path)
    with pytest.raises(WeightsError, match="not of ucn"):
        load_weights(path)


def test_wrong_headers_and_tensors(saved: Path) -> None:
    original = saved.read_bytes()
    _rewrite(saved, {"model": '{"dimm": 3}'}, {})
    with pytest.raises(WeightsError, match=r"no usable 'model'.*did you mean 'dim'"):
        load_weights(saved)
    saved.write_bytes(original)
    _rewrite(saved, {"model": "not json"}, {})
    with pytest.raises(WeightsError, match="no usable 'model'"):
        load_weights(saved)
    saved.write_bytes(original)
    _rewrite(saved, {}, {"projection.weight": torch.zeros(1, 2)})
    with pytest.raises(
        WeightsError, match=r"'projection.weight' of .* must be \(8, 512, 1, 1\), got \(1, 2\)"
    ):
        load_weights(saved)
    saved.write_bytes(original)
    _rewrite(saved, {}, {"projection.bias": None})
    with pytest.raises(WeightsError, match=r"1 tensors differ, first 'projection.bias'"):
        load_weights(saved)
    saved.write_bytes(original)
    _rewrite(saved, {}, {"projection.bias": torch.full((8,), torch.nan)})
    with pytest.raises(WeightsError, match="not finite"):
        load_weights(saved)


def test_oversized_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_MAX_FILE_BYTES", 1000)
    with pytest.raises(WeightsError, match="at most 1000"):
        load_weights(saved)


@pytest.mark.parametrize("info", list_weights(), ids=lambda info: info.name)
def test_shipped_weights_load_and_say_what_they_are(info: table.WeightsInfo) -> None:
    loaded = load_weights(info.name)
    # The trunk of `geometric-lite` and the semantic level of `universal` have more parameters.
    largest = {"geometric-lite": 10_500_000, "universal": 8_500_000}.get(info.name, 4_000_000)
    assert loaded.info.file_bytes == table.shipped_path(info).stat().st_size < largest
    assert loaded.training["name"] == info.name
    assert info.data and info.licence and info.restrictions and info.metrics


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"model": "[" * 100_000}, "no usable 'model': it is nested too deeply"),
        ({"training": "[" * 100_000}, "no usable 'training': it is nested too deeply"),
        ({"training": "[[1, 2]]"}, "no usable 'training': expected a mapping, got list"),
        (
            {"calibration": f'{{"match_bias": {10**400}}}'},
            "no usable 'calibration': match_bias must be a finite",
        ),
        ({"calibration": f'{{"match_bias": {"9" * 5000}}}'}, "no usable 'calibration': "),
        ({"max_side": "16"}, "no usable 'max_side': expected an integer of at least 32 pixels, got 16"),
        ({"max_side": "true"}, "no usable 'max_side': expected an integer"),
        ({"calibration": '{"pair_bias": -1e308}'}, r"pair_bias must be in \[-10000, 10000\], got -1e\+308"),
    ],
)
def test_hostile_headers(saved: Path, header: dict[str, str], message: str) -> None:
    _rewrite(saved, header, {})
    with pytest.raises(WeightsError, match=message) as caught:
        load_weights(saved)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]
)
def test_other_kinds_of_numbers(saved: Path, dtype: torch.dtype) -> None:
    _rewrite(saved, {}, {"projection.bias": torch.zeros(8).to(dtype)})
    with pytest.raises(
        WeightsError, match=rf"'projection.bias' of .* must be torch.float16 or torch.float32, got {dtype}"
    ):
        load_weights(saved)


def test_counts_must_be_counts(tmp_path: Path) -> None:
    path = tmp_path / "batch.safetensors"
    save_weights(path, build_model(replace(SMALL, head_norm="batch")))
    load_weights(path)
    _rewrite(path, {}, {"head_norm.num_batches_tracked": torch.tensor(0.5)})
    with pytest.raises(WeightsError, match=r"must be torch.int64, got torch.float32"):
        load_weights(path)


def test_no_network_is_built_before_the_file_fits(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By its header this network would take 2 GB.
    large = ModelConfig(dim=1500, transformer_kernel=15)
    _rewrite(saved, {"model": json.dumps(large.to_dict())}, {})
    monkeypatch.setattr(nn.Module, "load_state_dict", lambda *_, **__: pytest.fail("it was filled"))
    with pytest.raises(WeightsError, match="does not fit its own configuration"):
        load_weights(saved)


def test_names_too_long_for_a_file() -> None:
    with pytest.raises(WeightsError, match=r"cannot read weights w+: File name too long"):
        load_weights("w" * 300)
