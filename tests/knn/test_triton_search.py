from pathlib import Path

import pytest
import torch

from gpu_compile import compile_for_gpu
from interpreter import run_interpreted
from ucn.acceleration import use_fused, without_fused


@pytest.mark.slow
def test_fused_search_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_search_cases.py"))


def test_plain_torch_takes_tensors_of_a_processor() -> None:
    assert not use_fused(torch.zeros(1))


def test_fused_programs_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucn.acceleration._is_ready", True)
    assert use_fused()
    with without_fused():
        assert not use_fused()
    assert use_fused()


def test_obstacles_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ucn import acceleration

    monkeypatch.setattr(torch.version, "cuda", None)
    assert acceleration._find_obstacle() == "there is no CUDA device"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "an old one")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert acceleration._find_obstacle() == "an old one is older than compute capability 8.0"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert acceleration._find_obstacle() == "triton is not installed"


@pytest.mark.slow
def test_programs_compile_for_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.knn.triton_prepare import prepare
    from ucn.knn.triton_rank import rank
    from ucn.knn.triton_settle import settle

    halves, floats = ("query_copies", "copies"), ("penalties", "extremes", "scales", "totals", "candidates")
    types = dict.fromkeys(halves, "*fp16") | dict.fromkeys(floats, "*fp32")
    places = ("centres", "sorted_centres", "positions", "heights")
    types |= dict.fromkeys(("queries", "database", "distances", *places), "*fp32")
    types |= {"indices": "*i64", "measured": "*i32", "order": "*i32", "radius_squared": "fp32"}
    every = {"D_PAD": 128, "HAS_OUTSIDE": True, "IS_HOPPER": True}
    compile_for_gpu(prepare, types, every | {"BLOCK": 64, "QUERY_BLOCK": 16, "IS_FULL": False}, tmp_path, 4)
    common = every | {"COLUMNS": 128, "SLOTS": 8}
    ranking = {"ROWS": 128, "FOLD": 2, "DEPTH": 128, "STAGES": 3, "BLOCK": 64}
    assert compile_for_gpu(rank, types, common | ranking, tmp_path, 8) <= 227 * 1024
    settling = {"BINS": 64, "SPLITS_PAD": 16, "K": 3, "K_PAD": 4, "ROWS": 16, "IS_FULL": True}
    compile_for_gpu(settle, types, common | settling, tmp_path, 1)
