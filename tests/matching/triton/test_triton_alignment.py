from pathlib import Path

import pytest

from support.gpu_compile import compile_for_gpu
from support.interpreter import run_interpreted


@pytest.mark.slow
def test_fused_alignment_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_alignment_cases.py"))


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.matching.triton import alignment as kernels

    names = ("grey0", "grey1", "points0", "points1", "linear", "positions", "before", "after", "contrasts")
    types = dict.fromkeys((*names, "known0", "known1"), "*fp32") | {"rows": "*i64"}
    sizes = {"RADIUS": 7, "PIXELS": 256, "STEPS": 10, "TRANSLATION_STEPS": 5}
    limits = {"SPREAD": 7 / 1.5, "MAX_STEP": 1.0, "DAMPING": 1e-2, "MIN_CONTRAST": 1e-2}
    compile_for_gpu(kernels._align_match, types, sizes | limits, tmp_path, 1)
    fit = {"PADDED": 16, "STEPS": 4, "RIDGE": 1.0, "MIN_SCALE": 0.5, "LEAST": 4}
    compile_for_gpu(kernels._fit_affine, types, fit, tmp_path, 1)
