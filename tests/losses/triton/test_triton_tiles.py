"""How much shared memory the kernels of the losses need."""

from pathlib import Path
from types import ModuleType

import pytest
import torch

from support.gpu_compile import compile_for_gpu
from ucn.losses import correspondences as pairs

pytest.importorskip("triton")

from ucn.losses.triton import distillation as triton_distillation
from ucn.losses.triton import infonce as triton_infonce
from ucn.losses.triton import tiles as triton_tiles

# Bytes of shared memory per thread block, by compute capability: H200, A100 and RTX 4090.
SHARED_MEMORY = {90: 232_448, 80: 166_912, 89: 101_376}
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "lengths", "stages"),
    [
        (90, (64, 128), 3),
        (90, (128, 128), 2),
        (90, (256, 64), 1),
        (90, (64, 256), 1),
        (90, (256, 256), 0),
        (90, (128,), 3),
        (90, (256,), 2),
        (80, (128,), 3),
        (80, (64, 128), 2),
        (80, (128, 128), 1),
        (89, (128,), 2),
        (89, (64, 128), 0),
    ],
)
def test_stages_follow_from_the_shared_memory(
    capability: int, lengths: tuple[int, ...], stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_tiles, "shared_memory_bytes", lambda _: SHARED_MEMORY[capability])
    assert triton_tiles.choose_stages(CPU, *lengths) == stages
    monkeypatch.setattr(pairs, "use_fused", lambda *_: True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    given = [torch.zeros(shape) for length in lengths for shape in ((1, 2, length), (1, length, 3))]
    assert pairs.can_fuse(*given) == (stages > 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "lengths"),
    # The longest that each fits with the most stages, and those that fill the smaller memories.
    [
        (90, (64, 128)),
        (90, (128, 128)),
        (90, (256, 64)),
        (90, (256,)),
        (80, (64, 128)),
        (80, (128, 128)),
        (89, (128,)),
    ],
)
def test_kernels_fit(
    capability: int, lengths: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_tiles, "shared_memory_bytes", lambda _: SHARED_MEMORY[capability])
    stages = triton_tiles.choose_stages(CPU, *lengths)
    assert stages > 0  # else plain torch does it
    padded = [triton_tiles.pad_dimension(length) for length in lengths]
    constants = {"D": lengths[0], "D_PAD": padded[0], "QUERIES": 64, "CELLS": 64}
    module: ModuleType = triton_infonce
    forward = "_log_sum_exp_kernel"
    if len(lengths) == 2:
        constants |= {"TEACHER_D": lengths[1], "TEACHER_D_PAD": padded[1]}
        module, forward = triton_distillation, "_divergence_kernel"
    for name in (forward, "_query_gradient_kernel", "_cell_gradient_kernel"):
        kernel = getattr(module, name)
        numbers = [place for place in kernel.arg_names if place in ("N", "M") or "stride" in place]
        types = dict.fromkeys(kernel.arg_names, "*fp32") | dict.fromkeys(numbers, "i32")
        types |= {"radius_squared": "fp32"}
        used = compile_for_gpu(kernel, types, constants, tmp_path, 4, stages, capability)
        assert used <= SHARED_MEMORY[capability]
