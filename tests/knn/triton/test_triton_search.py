from pathlib import Path

import pytest
import torch

from support.gpu_compile import compile_for_gpu
from support.interpreter import run_interpreted
from ucn.runtime.kernels import use_fused, without_fused


@pytest.mark.slow
@pytest.mark.parametrize("part", ["0/3", "1/3", "2/3"])
def test_fused_search_in_the_interpreter(part: str) -> None:
    run_interpreted(Path(__file__).with_name("fused_search_cases.py"), part)


def test_plain_torch_takes_tensors_of_a_processor() -> None:
    assert not use_fused(torch.zeros(1))


def test_fused_kernels_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucn.runtime.kernels._is_ready", True)
    assert use_fused()
    with without_fused():
        assert not use_fused()
    assert use_fused()


def test_obstacles_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ucn.runtime import kernels as acceleration

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


def test_more_tiles_than_a_thread_block_takes_are_refused() -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.knn.triton.search import Tuning

    assert Tuning(tiles=32).tiles == 32
    for tiles in (0, 33):
        with pytest.raises(ValueError, match=f"tiles must be 1 to 32, got {tiles}"):
            Tuning(tiles=tiles)


@pytest.fixture
def types() -> dict[str, str]:
    """Of the kernels' arguments, as Triton names them."""
    floats = ("penalties", "extremes", "totals", "candidates", "distances")
    places = ("centres", "sorted_centres", "positions", "heights")
    found = dict.fromkeys(("queries", "database", *floats, *places), "*fp32")
    found |= dict.fromkeys(("query_copies", "copies"), "*fp16")
    found |= dict.fromkeys(("indices", "packed_xy"), "*i64") | dict.fromkeys(("measured", "order"), "*i32")
    return found | {"radius_squared": "fp32"}


EVERY = {"D_PAD": 128, "HAS_EXCLUSION": True, "IS_HOPPER": True}


@pytest.mark.slow
def test_kernels_before_and_after_ranking_compile_for_a_gpu(types: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.knn.triton.prepare import prepare
    from ucn.knn.triton.settle import settle

    compile_for_gpu(
        prepare,
        types,
        EVERY | {"BLOCK": 64, "QUERY_BLOCK": 16, "SORTED": 2048, "IS_FULL": False},
        tmp_path,
        4,
    )
    settling = {"COLUMNS": 128, "SLOTS": 8, "BINS": 64, "SPLITS_PAD": 16, "K": 3, "K_PAD": 4, "IS_FULL": True}
    compile_for_gpu(settle, types, EVERY | settling | {"ROWS": 16}, tmp_path, 1)


@pytest.mark.slow
def test_two_kernels_that_rank_fit_on_a_multiprocessor(types: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.knn.triton.rank import rank

    cuts = {"ROWS": 64, "COLUMNS": 128, "FOLD": 2, "DEPTH": 128, "STAGES": 2, "SLOTS": 4}
    # An H200 has 228 KiB, of which it takes one for each thread block.
    assert compile_for_gpu(rank, types, EVERY | cuts | {"BLOCK": 32}, tmp_path, 4) <= 113 * 1024
