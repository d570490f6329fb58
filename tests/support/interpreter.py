"""Runs test files in a process of their own, in which Triton interprets its programs on the CPU.

Triton decides that when it is first imported, which in this process others may have done. Such files are
named `*_cases.py`; on a machine with a CUDA device, pytest runs them there when it is given their names.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_interpreted(path: Path) -> None:
    """Runs the tests of a file; the failures' text becomes this test's."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed; it has wheels for Linux alone")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", str(path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
