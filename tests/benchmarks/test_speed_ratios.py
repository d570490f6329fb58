"""Fast paths stay fast: ratios to what they replace, in CPU time of one thread.

CPU time depends little on other load. The limits are far below the measured ratios (see `ucn bench`), so that
a test fails only where a fast path is lost.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import ModelConfig
from ucn.knn import nearest
from ucn.nn import build_model
from ucn.nn.cpu.encoder import CpuEncoder


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads, others = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    yield
    torch.set_num_threads(threads)
    cv2.setNumThreads(others)


def _compare(slow: Callable[[], Any], fast: Callable[[], Any], enough: float) -> float:
    """How many times more CPU time the slow one takes, best against best; ends early when enough."""
    best = {slow: float("inf"), fast: float("inf")}
    for work in best:
        work()
    for _ in range(6):
        for work in best:
            started = time.thread_time()
            work()
            best[work] = min(best[work], time.thread_time() - started)
        if best[slow] >= enough * best[fast]:
            break
    return best[slow] / best[fast]


def _descriptors(count: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(count, 128, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.slow
@torch.no_grad()
def test_encoding_on_a_processor() -> None:
    model = build_model(ModelConfig()).eval()
    encoder, images = CpuEncoder(model), torch.rand(1, 3, 288, 384)
    assert _compare(lambda: model(images), lambda: encoder(images), 1.3) >= 1.3


def test_nearest_neighbours_against_opencv() -> None:
    queries, database = _descriptors(1000, 0), _descriptors(19200, 1)
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    arrays = queries.numpy(), database.numpy()
    ratio = _compare(lambda: matcher.match(*arrays), lambda: nearest(queries, database), 1.5)
    assert ratio >= 1.5


def test_nearest_neighbours_against_faiss() -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    faiss.omp_set_num_threads(1)
    queries, database = _descriptors(1000, 0), _descriptors(19200, 1)
    index = faiss.IndexFlatIP(128)
    index.add(database.numpy())
    ratio = _compare(lambda: index.search(queries.numpy(), 1), lambda: nearest(queries, database), 0.4)
    assert ratio >= 0.4
