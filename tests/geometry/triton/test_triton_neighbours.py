from pathlib import Path

import pytest

from support.gpu_compile import compile_for_gpu
from support.interpreter import run_interpreted


@pytest.mark.slow
def test_fused_neighbours_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_neighbours_cases.py"))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernel_compiles_for_a_gpu(capability: int, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.geometry.triton import neighbours as programs

    types = {"points": "*fp32", "known": "*fp32", "is_known": "*i1", "distances": "*fp64", "rows": "*i64"}
    known = {"PADDED": 4096, "HAS_MASK": True}
    compile_for_gpu(programs._find_nearest, types, known, tmp_path, 8, capability=capability)
