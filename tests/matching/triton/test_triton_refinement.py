from pathlib import Path

import pytest

from support.gpu_compile import compile_for_gpu
from support.interpreter import run_interpreted


@pytest.mark.slow
def test_fused_refinement_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_refinement_cases.py"))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernel_compiles_for_a_gpu(capability: int, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.matching.triton import refinement as programs

    names = ("descriptors", "cells", "points", "similarities", "places", "spread", "prior_weights")
    types = dict.fromkeys(names, "*fp32")
    types |= {"index": "*i64", "is_allowed": "*i1"}
    types |= dict.fromkeys(("pixel_stride", "pixel_offset"), "fp32")
    known = {"D_PAD": 128, "FINE_STEPS": 8, "POSITIONS": 512, "HAS_MASK": True, "HAS_PRIOR": True}
    compile_for_gpu(programs._refine_match, types, known, tmp_path, 4, capability=capability)
