from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from support.gpu_compile import compile_for_gpu
from support.interpreter import run_interpreted
from ucn.nn.googlenet import local_response_norm, max_pool


def test_local_response_norm_equals_torch() -> None:
    x = torch.randn(2, 7, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 100
    expected = F.local_response_norm(x, 5, alpha=1e-4, beta=0.75, k=1.0)
    torch.testing.assert_close(local_response_norm(x), expected)


def test_local_response_norm_by_hand() -> None:
    # One channel of value 100: s = 1 + 1e-4 / 5 * 10000 = 1.2.
    assert local_response_norm(torch.full((1, 1, 1, 1), 100.0)).item() == pytest.approx(
        100 / 1.2**0.75, rel=1e-6
    )


def test_max_pool_by_hand() -> None:
    x = torch.arange(20.0).view(1, 1, 4, 5)
    assert max_pool(x, 1)[0, 0, 0].tolist() == [6, 7, 8, 9, 9]
    assert max_pool(x, 1)[0, 0, 3].tolist() == [16, 17, 18, 19, 19]
    # No padding, and sizes rounded up: windows at rows 0 and 2, columns 0 and 2.
    assert max_pool(x, 2)[0, 0].tolist() == [[12, 14], [17, 19]]


@pytest.mark.slow
def test_fused_layers_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_trunk_layers_cases.py"))


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.nn.triton import trunk_layers as kernels

    types = dict.fromkeys(("maps", "largest", "normed", "gradient", "map_gradient"), "*bf16") | {
        "taps": "*u8"
    }
    block = {"CELLS": 32, "CHANNELS": 64}
    for stride in (1, 2):
        window = block | {"STRIDE": stride, "PADDING": 2 - stride}
        compile_for_gpu(kernels.pool_forward, types, window | {"NEEDS_TAPS": True}, tmp_path, 4)
        compile_for_gpu(kernels.pool_backward, types, window, tmp_path, 4)
    compile_for_gpu(kernels.norm_forward, types, block, tmp_path, 4)
    compile_for_gpu(kernels.norm_backward, types, block, tmp_path, 4)
