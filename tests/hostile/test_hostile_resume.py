"""Runs that are killed anywhere end well when they are run again; a second run meanwhile is refused.

`UCN_KILLS` multiplies the number of cases.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FACTOR = int(os.environ.get("UCN_KILLS", "1"))
COUNTS = {"random": 10 * FACTOR, "injected": 10 * FACTOR, "damaged": 6 * FACTOR}


@pytest.mark.slow
@pytest.mark.timeout(600 * (1 + FACTOR))
@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forked")
def test_killed_runs_end_well(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    counts = [word for kind, count in COUNTS.items() for word in (f"--{kind}", str(count))]
    done = subprocess.run(
        [sys.executable, "-m", "support.kill_cases", tmp_path, *counts, "--twice", "--seed", "1"],
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    for kind, count in COUNTS.items():
        assert sum(case["kind"] == kind for case in cases) >= count, kind
    assert [case for case in cases if case["fault"]] == []
