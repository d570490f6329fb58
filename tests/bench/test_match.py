import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from support.bench_cases import CPU, check_part, make_fake_cuda, make_settings, replace_timings
from ucn.bench import match
from ucn.bench.match import _match_batch, encode_in_chunks, score_example
from ucn.bench.samples import PLAIN_PAPER, load_network, read_example_images
from ucn.data.example import example_pair
from ucn.features.lightglue import LIGHTGLUE

SIZE_HW = (96, 128)


def _read_pair() -> Tensor:
    return (read_example_images(SIZE_HW, CPU) * 255).round().to(torch.uint8)


def test_an_image_matches_itself() -> None:
    network = load_network(PLAIN_PAPER, CPU)
    image = _read_pair()[:1]
    points0, points1, is_mutual = _match_batch(torch.cat([image, image]), network, network, CPU, keep=50)
    assert points0.shape == points1.shape == (1, 50, 2)
    assert is_mutual.all()
    assert float((points0 - points1).norm(dim=-1).max()) <= 6.0  # within a cell


def test_batched_equals_unbatched() -> None:
    network = load_network(PLAIN_PAPER, CPU)
    first, second = _read_pair(), _read_pair().flip(-1)
    encode = partial(encode_in_chunks, network)
    both = torch.stack([first[0], second[0], first[1], second[1]])
    together = _match_batch(both, encode, network, CPU, keep=30)
    alone = _match_batch(second, encode, network, CPU, keep=30)
    assert torch.equal(together[2][1], alone[2][0])
    assert float((together[1][1] - alone[1][0]).norm(dim=-1).median()) == 0.0


def test_chunks_change_nothing() -> None:
    images = torch.rand(19, 3, 2, 2)
    seen: list[int] = []

    def encode(part: Tensor) -> Tensor:
        seen.append(len(part))
        return part * 2

    assert torch.equal(encode_in_chunks(encode, images), images * 2)
    assert seen == [8, 8, 3]


def test_scores_by_hand() -> None:
    disparity = example_pair().disparity
    size_hw = (disparity.shape[0], disparity.shape[1])
    rows, columns = (each[::5000][:8] for each in np.nonzero(np.isfinite(disparity)))
    points0 = torch.tensor(np.stack([columns, rows], axis=-1), dtype=torch.float32)
    shift = torch.from_numpy(disparity[rows, columns])
    points1 = points0 - torch.stack([shift, torch.zeros(8)], dim=-1)
    assert score_example(points0, points1, size_hw) == (1.0, 1.0)
    assert score_example(points0, points1 + torch.tensor([7.0, 0.0]), size_hw) == (0.0, 1.0)
    assert score_example(points0, points1 + torch.tensor([4.0, 0.0]), size_hw, (3, 5)) == (0.0, 1.0)
    assert all(math.isnan(share) for share in score_example(points0[:0], points1[:0], size_hw))


@pytest.mark.slow
def test_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(match, monkeypatch)
    monkeypatch.setattr(match, "explain_unavailable", lambda name: f"{name} is not here")
    monkeypatch.setattr("ucn.features.lightglue.explain_unavailable", lambda name: f"{name} is not here")
    part = match.measure(make_settings())
    check_part(part)
    table, methods = part.tables
    assert [row[0] for row in methods.rows[:3]] == [
        "geometric",
        "geometric-lite",
        "SIFT, 2,000 keypoints, ratio test (OpenCV)",
    ]
    assert all(row[1:3] == (2.0, 8.0) for row in methods.rows)
    assert len(methods.rows) == 3
    assert [note.split()[2] for note in methods.notes[1:]] == list(LIGHTGLUE)  # Not measured: NAME …
    assert [row[0] for row in table.rows] == [
        "plain",
        "fast path",
        "Matcher.match, engine plain",
        "Matcher.match",
    ]
    assert table.rows[2][5] == pytest.approx(table.rows[3][5], abs=3)
    plain, fast = table.rows[:2]
    assert plain[5] == pytest.approx(fast[5], abs=20)  # matches
    assert float(fast[6] or 0) == pytest.approx(float(plain[6] or 1), abs=0.05)
    assert plain[3] == 500.0  # pairs per second at 2 ms each


@pytest.mark.slow
def test_cuda_table_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "time_in_turns", lambda works, effort: dict.fromkeys(works, 4.0))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(match, "CudaEncoder", lambda network, **_: network)  # nothing is compiled
    part = match.measure(make_fake_cuda())
    check_part(part)
    table = part.tables[0]
    assert [row[:2] for row in table.rows] == [
        ("plain", 1),
        ("fast path", 1),
        ("plain", 2),
        ("fast path", 2),
        ("Matcher.match, engine plain", 1),
        ("Matcher.match", 1),
    ]
    assert [row[3] for row in table.rows] == [250.0, 250.0, 500.0, 500.0, 250.0, 250.0]
    assert table.rows[0][5] == table.rows[2][5]
