from pathlib import Path

import pytest

from support.gpu_compile import compile_for_gpu
from support.interpreter import run_interpreted


@pytest.mark.slow
def test_fused_transformer_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_transformer_cases.py"))


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.nn.triton import transformer_kernels as kernels

    types = dict.fromkeys(("maps", "weight", "bias", "output", "gradient"), "*bf16")
    types |= dict.fromkeys(("theta", "map_gradient", "theta_gradient", "weight_gradient"), "*fp32")
    common = {"KERNEL": 3, "REACH": 12, "PRECISION": "tf32", "UPCAST": False, "LOCATIONS": 64, "OUTPUTS": 128}
    forward = common | {"CHANNELS": 64, "HAS_BIAS": True}
    backward = common | {"CHANNELS": 32, "NEEDS_MAPS": True, "NEEDS_THETA": True}
    compile_for_gpu(kernels.forward, types, forward, tmp_path, 8)
    compile_for_gpu(kernels.backward_maps, types, backward, tmp_path, 4)
    compile_for_gpu(kernels.backward_weight, types, common | {"CHANNELS": 64}, tmp_path, 4)
