"""InfoNCE's Triton kernels, interpreted on the CPU, and that nothing but a GPU takes them."""

from pathlib import Path

import pytest
import torch

from support.interpreter import run_interpreted
from ucn.losses import correspondences as pairs


@pytest.mark.slow
def test_the_kernels() -> None:
    run_interpreted(Path(__file__).with_name("fused_infonce_cases.py"))


def test_only_tf32_on_a_gpu_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, cells = torch.zeros(1, 2, 8), torch.zeros(1, 8, 3)
    assert not pairs.can_fuse(queries, cells)
    pytest.importorskip("triton")
    monkeypatch.setattr(pairs, "use_fused", lambda *_: True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert pairs.can_fuse(queries, cells)
    assert pairs.can_fuse(queries, cells, torch.zeros(1, 2, 256), torch.zeros(1, 256, 3))
    assert not pairs.can_fuse(queries, cells, torch.zeros(1, 2, 257), torch.zeros(1, 257, 3))
    assert not pairs.can_fuse(queries, cells, queries.double(), cells.double())
    assert not pairs.can_fuse(queries.double(), cells)
    assert not pairs.can_fuse(torch.zeros(1, 2, 264), torch.zeros(1, 264, 3))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    assert not pairs.can_fuse(queries, cells)  # who asks for all digits gets them
