from pathlib import Path

import pytest

from support.gpu_compile import compile_for_gpu
from support.interpreter import run_interpreted


@pytest.mark.slow
def test_fused_consensus_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_consensus_cases.py"))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernel_compiles_for_a_gpu(capability: int, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.matching.triton import consensus as programs

    for name, written in (("_sum_along_x", "along_x"), ("_sum_along_y", "best")):
        types = dict.fromkeys(("similarity", "along_x", written, "weights"), "*fp32") | {"steps": "*i32"}
        known = {"SHIFTS": 7, "BLOCK": 256}
        compile_for_gpu(getattr(programs, name), types, known, tmp_path, 4, capability=capability)
