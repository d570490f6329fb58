"""3,000 points against 22,000 cells must not need the distance matrix of a batch, forward or backward."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The similarities of both pairs would take 2 x 3000 x 22000 x 4 bytes = 528 MB.
SCRIPT = """
import resource, sys, torch
import torch.nn.functional as F
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
run = work[sys.argv[1]]
run(*make(20, 20, 300))  # libraries' own buffers
large = make(110, 200, 3000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(*large)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is reported in other units elsewhere")
@pytest.mark.parametrize("work", ["infonce", "random", "nearest", "hardest"])
def test_peak_stays_far_below_the_full_matrix(work: str) -> None:
    # glibc keeps freed blocks below a threshold that grows by itself; a fixed one measures what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    command = [sys.executable, "-c", SCRIPT, work]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 100 * 2**20
