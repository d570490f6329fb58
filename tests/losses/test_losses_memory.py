"""3,000 points against 22,000 cells must not need the distance matrix of a batch, forward or backward."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# The similarities of both pairs would take 2 x 3000 x 22000 x 4 bytes = 528 MB.
SCRIPT = """
import json, torch
import torch.nn.functional as F
from ucn.bench.timing import measure_memory
from ucn.losses import infonce_loss, mine_negatives
from ucn.types import FeatureMap

def make(h, w, N):
    generator = torch.Generator().manual_seed(0)
    sizes = ((6, 6), (h, w))
    features = [F.normalize(torch.randn(2, 32, *s, generator=generator), dim=1) for s in sizes]
    maps = [FeatureMap(f.requires_grad_(), 4, 2.0, s) for f, s in zip(features, sizes)]
    points = [torch.rand(2, N, 2, generator=generator) * 4 * torch.tensor([s[1], s[0]]) for s in sizes]
    return *maps, *points, torch.ones(2, N, dtype=torch.bool)

def infonce(*arguments):
    infonce_loss(*arguments, direction="0to1", memory_bytes=32 * 2**20).backward()
    assert arguments[1].features.grad.abs().max() > 0

def mine(method):
    def run(*arguments):
        mined = mine_negatives(*arguments, method=method, radius=16.0, direction="0to1",
                               memory_bytes=32 * 2**20)
        assert mined.cells_0to1.shape[1] == arguments[2].shape[1]
    return run

work = {"infonce": infonce, "random": mine("random"), "nearest": mine("nearest"), "hardest": mine("hardest")}
found = {}
for name, run in work.items():
    run(*make(20, 20, 300))  # libraries' own buffers
    large = make(110, 200, 3000)
    found[name] = measure_memory(lambda: run(*large), torch.device("cpu"))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process watch its own memory")
def test_peaks_stay_far_below_the_full_matrix() -> None:
    # glibc keeps freed blocks below a threshold that grows by itself; a fixed one measures what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    megabytes = json.loads(done.stdout)
    assert len(megabytes) == 4
    assert all(1 < peak < 100 for peak in megabytes.values()), megabytes
