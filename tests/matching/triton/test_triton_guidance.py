from pathlib import Path

import pytest

from support.gpu_compile import compile_for_gpu
from support.interpreter import run_interpreted


@pytest.mark.slow
def test_fused_guidance_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_guidance_cases.py"))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_a_gpu(capability: int, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="it has wheels for Linux alone")
    from ucn.matching.triton import guided, local_affine

    rows = {"rows": "*i64", "order": "*i64", "count": "*i64", "index": "*i64"}
    rows |= {"pixel_stride": "fp32", "pixel_offset": "fp32"}
    names = ("descriptors", "cells", "guidance", "places", "spread", "prior_weights", "values", "cosines")
    types = dict.fromkeys((*names, "support", "weights"), "*fp32") | rows
    compile_for_gpu(guided._weigh_support, types, {"BLOCK": 1024}, tmp_path, 4, capability=capability)
    known = {"QUERIES": 64, "CELLS": 64, "DEPTH": 64}
    shared = compile_for_gpu(guided._guide_block, types, known, tmp_path, 4, capability=capability)
    assert shared <= 99 * 1024 or capability == 90  # all devices since Ampere have that much

    regions = (
        "points0",
        "points1",
        "confidences",
        "centres",
        "middle0",
        "middle1",
        "table",
        "linear",
        "places",
    )
    types = dict.fromkeys((*regions, "spread", "trust"), "*fp32")
    types |= dict.fromkeys(("few_anchors", "min_share", "half_trust", "min_spread", "spread_gain"), "fp32")
    known = {"STEPS": 14, "PADDED": 1024}
    compile_for_gpu(local_affine._fit_region, types, known, tmp_path, 4, capability=capability)
