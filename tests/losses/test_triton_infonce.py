"""InfoNCE's GPU programs, interpreted on the CPU, and that nothing but a GPU takes them."""

from pathlib import Path

import pytest
import torch

from interpreter import run_interpreted
from ucn.losses import infonce


def test_the_programs() -> None:
    run_interpreted(Path(__file__).with_name("fused_infonce_cases.py"))


def test_only_tf32_on_a_gpu_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, cells, positions = torch.zeros(1, 2, 8), torch.zeros(1, 8, 3), torch.zeros(3, 2)
    assert not infonce._can_fuse(queries, cells, positions)
    monkeypatch.setattr(infonce, "use_fused", lambda *_: True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert infonce._can_fuse(queries, cells, positions)
    assert not infonce._can_fuse(queries.double(), cells, positions)
    assert not infonce._can_fuse(queries.expand(1, 2, 8).repeat(1, 1, 33), cells, positions)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    assert not infonce._can_fuse(queries, cells, positions)  # who asks for all digits gets them
