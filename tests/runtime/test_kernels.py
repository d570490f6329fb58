"""Whether fused programs may run, and what asking costs."""

import math
import os
import subprocess
import sys

import pytest
import torch

from ucn.runtime import kernels as acceleration


def test_blocks_and_powers() -> None:
    for total in (0, 1, 2, 3, 4, 5, 63, 64, 65, 1000):
        for block in (1, 3, 64):
            assert acceleration.count_blocks(total, block) == math.ceil(total / block)
    powers = {0: 1, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 127: 128, 128: 128, 129: 256}
    assert {count: acceleration.round_to_power(count) for count in powers} == powers


def test_compiler_takes_the_answer_for_a_constant() -> None:
    def answer() -> bool:
        return True

    marks = vars(torch.compiler.assume_constant_result(answer))
    assert marks
    assert marks.items() <= vars(acceleration._check_ready).items()


@pytest.mark.slow
def test_no_compiler_is_imported_for_it() -> None:
    code = "import sys, ucn; ucn.Matcher; assert 'torch._dynamo' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)
