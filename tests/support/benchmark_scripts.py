"""Loads the scripts of benchmarks/ as modules; run as scripts they find each other in their folder."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load_script(name: str) -> ModuleType:
    """A script, with its folder where a script's own would be."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.insert(0, str(BENCHMARKS))
    return importlib.import_module(name)


def run_script(script: ModuleType, *options: str) -> None:
    """Calls a script in this process as a command line would; torch's precision is as it was afterwards."""
    precision = torch.get_float32_matmul_precision()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{script.__name__}.py", *options])
        try:
            script.main()
        finally:
            torch.set_float32_matmul_precision(precision)
