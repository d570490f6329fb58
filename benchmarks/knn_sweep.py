"""Other ways to cut the work of the fused search on a CUDA device, timed; `ucn bench knn` measures the rest.

python benchmarks/knn_sweep.py [--queries 3000] [--rows 22000] [--dim 128]

Each way is first tried in a process of its own, which compiles it and compares with float64, so that one that
fails costs a line. Then ways to rank are timed, on the quickest of them ways to settle, and on the quickest
of those ways to prepare. Times are of captured CUDA graphs, conversion and exact ranking included, over
inputs that do not stay in the cache: plain, and outside 16 pixels. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ucn.bench.knn import draw_exclusion
from ucn.bench.machine import describe_machine
from ucn.bench.samples import draw_unit
from ucn.bench.timing import time_graphs
from ucn.knn import ExclusionRadius

if TYPE_CHECKING:
    from ucn.knn.triton.search import FusedNeighbours, Tuning

DEVICE = torch.device("cuda")

# Together several times as large as the L2 cache of an H200, 60 MB.
_SETS = 12
_LAUNCHES = ("prepare", "rank", "settle")
# Queries that are compared with float64.
_CHECKED = 1000
_SECONDS = 60

Changes = dict[str, Any]
# All are changes to what `choose_tuning` takes for the device.
BASE: Changes = {}
RANKINGS: list[Changes] = [
    {},
    {"use_chain": False},
    {"stages": 3, "columns": 64, "fold": 1},
]
SETTLINGS: list[Changes] = [
    {"settle_registers": 72},
    {"settle_registers": 80},
    {"settle_registers": 96},
    {"settle_warps": 2},
]
PREPARATIONS: list[Changes] = [
    {"prepare_values": 2048, "prepare_warps": 2},
    {"prepare_values": 8192, "prepare_warps": 8},
    {"prepare_warps": 8},
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=22000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--check", metavar="JSON", help="only compare one way with float64")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this script measures a CUDA device, and this machine has none")
    shape = arguments.queries, arguments.rows, arguments.dim
    if arguments.check is not None:
        print(json.dumps(check(*shape, json.loads(arguments.check))))
        return
    found = sweep(*shape)
    print(json.dumps({"machine": describe_machine(DEVICE), "sweep": found}))


def sweep(N: int, M: int, D: int) -> list[dict[str, Any]]:
    """Times of other cuts; those that fail on the device, or are wrong, say so."""
    sets = [_draw(N, M, D, seed) for seed in range(_SETS)]
    halves = [(q.bfloat16()[0], b.bfloat16()[0]) for q, b in sets]
    product = time_graphs([partial(_multiply, q, b) for q, b in halves])
    print(f"bf16 matmul + max: {1e3 * product:.2f} µs", flush=True)
    print(
        "µs: plain  ratio  outside  ratio  plain: prepare, rank, settle  outside: the same  changes",
        flush=True,
    )
    report: list[dict[str, Any]] = []
    best: Changes = BASE
    for others in (RANKINGS, SETTLINGS, PREPARATIONS):
        base = best
        for changes, verdict in zip(others, _try_all((N, M, D), base, others), strict=True):
            row = _measure({**base, **changes}, verdict, sets, product)
            report += [] if row is None else [row]
        if report:
            best = min(report, key=lambda row: float(row["plain"] + row["exclusion"]))["changes"]
    print(f"quickest, plain and outside together: {_make_tuning(D, **best)}", flush=True)
    return report


def check(N: int, M: int, D: int, changes: Changes) -> dict[str, float]:
    """The shares of queries for which a way finds the row of float64, and the largest error of a distance."""
    queries, database = _draw(N, M, D, 0)
    for exclusion in (None, _draw_outside(N, M)):  # compiled for `_time_launches`
        _search(queries, database, exclusion, {**changes, "use_chain": False})
    part = slice(0, N, max(1, N // _CHECKED))
    exactly = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")
    distances = exactly(queries[0, part].double(), database[0].double())
    result = {}
    for name, exclusion in (("plain", None), ("exclusion", _draw_outside(N, M))):
        if exclusion is not None:
            gaps = exactly(exclusion.centres[0, part].double(), exclusion.positions[0].double())
            distances.masked_fill_(gaps <= exclusion.radius, torch.inf)
        nearest, rows = distances.min(dim=1)
        found = _search(queries, database, exclusion, changes)
        result[name] = float((found.indices[0, part, 0] == rows).double().mean())
        result[f"{name} error"] = float((found.distances[0, part, 0].double() - nearest).abs().max())
    return result


def _try_all(shape: tuple[int, int, int], base: Changes, others: Sequence[Changes]) -> list[str]:
    """What is wrong with each way, found by processes of their own, which also fill Triton's cache."""
    options = [f"--{name}={size}" for name, size in zip(("queries", "rows", "dim"), shape, strict=True)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *options, "--check", json.dumps({**base, **changes})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for changes in others
    ]
    end = time.monotonic() + _SECONDS
    return [_judge(process, end) for process in processes]


def _judge(process: subprocess.Popen[str], end: float) -> str:
    """What is wrong with a way; nothing where it is exact."""
    try:
        out, errors = process.communicate(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer in {_SECONDS} s"
    lines = errors.strip().splitlines() or ["no message"]
    if process.returncode != 0:
        return f"exit code {process.returncode}: {lines[-1][:160]}"
    found = json.loads(out.strip().splitlines()[-1])
    is_exact = all(
        found[name] >= 0.9999 and found[f"{name} error"] <= 1e-6 for name in ("plain", "exclusion")
    )
    return "" if is_exact else f"wrong: {found}"


def _measure(
    changes: Changes, verdict: str, sets: list[tuple[Tensor, Tensor]], product: float
) -> dict[str, Any] | None:
    """Times of one way, printed as a line; None where it cannot be used."""
    (_, N, D), M = sets[0][0].shape, sets[0][1].shape[1]
    exclusion = _draw_outside(N, M)
    if not verdict:
        try:
            plain = time_graphs([partial(_search, q, b, None, changes) for q, b in sets])
            masked = time_graphs([partial(_search, q, b, exclusion, changes) for q, b in sets])
            launches = [_time_launches(*sets[0], places, changes) for places in (None, exclusion)]
        except Exception as error:  # Triton raises its own kinds where shared memory does not suffice
            verdict = f"{type(error).__name__}: {str(error)[:160]}"
    if verdict:
        print(f"{changes}: {verdict}", flush=True)
        return None
    times = "   ".join(
        " ".join(f"{1e3 * part.get(name, 0.0):6.2f}" for name in _LAUNCHES) for part in launches
    )
    print(
        f"{1e3 * plain:9.2f} {product / plain:6.3f} {1e3 * masked:8.2f} {masked / plain:6.3f}   {times}"
        f"   {changes}",
        flush=True,
    )
    return {
        "changes": changes,
        "tuning": asdict(_make_tuning(D, **changes)),
        "plain": plain,
        "exclusion": masked,
        "product": product,
        "launches": launches,
    }


def _time_launches(
    queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None, changes: Changes
) -> dict[str, float]:
    """Milliseconds of each launch, one after the other, with inputs in the cache."""
    changes = {**changes, "use_chain": False}
    _search(queries, database, exclusion, changes)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(20):
            _search(queries, database, exclusion, changes)
        torch.cuda.synchronize()
    return {
        event.key: event.self_device_time_total / event.count / 1e3
        for event in profile.key_averages()
        if event.key in _LAUNCHES
    }


def _search(
    queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None, changes: Changes
) -> FusedNeighbours:
    from ucn.knn.triton.search import search_fused

    return search_fused(queries, database, 1, exclusion, _make_tuning(queries.shape[2], **changes))


@cache
def _make_tuning(D: int, **changes: Any) -> Tuning:
    from ucn.knn.triton.search import choose_tuning

    return replace(choose_tuning(DEVICE, D), **changes)


def _draw(N: int, M: int, D: int, seed: int) -> tuple[Tensor, Tensor]:
    queries = draw_unit(1, N, D, seed=2 * seed, device=DEVICE)
    return queries, draw_unit(1, M, D, seed=2 * seed + 1, device=DEVICE)


@cache
def _draw_outside(N: int, M: int) -> ExclusionRadius:
    exclusion = draw_exclusion(N, M, 0, DEVICE)
    return ExclusionRadius(exclusion.centres[None], exclusion.positions[None], exclusion.radius)


def _multiply(queries: Tensor, database: Tensor) -> Any:
    return (queries @ database.T).max(1)


if __name__ == "__main__":
    main()
