"""Runs test files in a process of their own, in which Triton interprets its kernels on the CPU.

Triton decides that when it is first imported, which in this process others may have done. Such files are
named `fused_*_cases.py`; on a machine with a CUDA device, `make test-gpu` runs them on it.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_interpreted(path: Path, part: str = "0/1") -> None:
    """Runs the tests of a file, or with part "1/3" every third from the second on; shows its failures."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed; it has wheels for Linux alone")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", str(path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "UCN_TEST_PART": part}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
