"""Times tunings of the fused nearest-neighbour search on a CUDA device.

python benchmarks/knn_sweep.py [--queries 3000] [--rows 22000] [--dim 128]

Each tuning is first compiled and compared with float64 in a process of its own, so that a failing one costs a
line only. Then tunings of the rank kernel are timed, on the fastest of them those of settle, and on the
fastest of those those of prepare. Times are of captured CUDA graphs, conversion and exact ranking included,
on inputs larger than the cache: plain, and with an exclusion radius of 16 pixels. The last line is JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from command_line import make_parser
from torch import Tensor

from ucn.bench.knn import sample_exclusion
from ucn.bench.machine import describe_machine
from ucn.bench.samples import sample_unit_vectors
from ucn.bench.timing import Work, time_graphs_in_turns
from ucn.knn import ExclusionRadius

if TYPE_CHECKING:
    from ucn.knn.triton.search import FusedNeighbours, Tuning

DEVICE = torch.device("cuda")

# Together several times the 60 MB L2 cache of an H200.
_SETS = 12
_LAUNCHES = ("prepare", "rank", "settle")
# Queries compared with float64.
_CHECKED = 1000
_SECONDS = 60

Changes = dict[str, Any]
# Changes to the result of `choose_tuning`.
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
    parser = make_parser(__doc__)
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=22000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--check", metavar="JSON", help="only compare one tuning with float64")
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
    """Times of all tunings; failing and wrong ones are reported."""
    sets = [_sample(N, M, D, seed) for seed in range(_SETS)]
    halves = [(q.bfloat16()[0], b.bfloat16()[0]) for q, b in sets]
    product = _time([partial(_multiply, q, b) for q, b in halves])
    print(f"bf16 matmul + max: {1e3 * product:.2f} µs", flush=True)
    print(
        "µs: plain  ratio  excluding  ratio  plain: prepare, rank, settle  excluding: the same  changes",
        flush=True,
    )
    report: list[dict[str, Any]] = []
    best: Changes = BASE
    for others in (RANKINGS, SETTLINGS, PREPARATIONS):
        base = best
        for changes, fault in zip(others, _check_all((N, M, D), base, others), strict=True):
            row = _measure({**base, **changes}, fault, sets, product)
            report += [] if row is None else [row]
        if report:
            best = min(report, key=lambda row: float(row["plain"] + row["exclusion"]))["changes"]
    print(f"fastest, sum of plain and excluding: {_make_tuning(D, **best)}", flush=True)
    return report


def check(N: int, M: int, D: int, changes: Changes) -> dict[str, float]:
    """Shares of queries with the row of float64, and largest errors of a distance."""
    queries, database = _sample(N, M, D, 0)
    for exclusion in (None, _sample_exclusion(N, M)):  # compiled for `_time_launches`
        _search(queries, database, exclusion, {**changes, "use_chain": False})
    part = slice(0, N, max(1, N // _CHECKED))
    exactly = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")
    distances = exactly(queries[0, part].double(), database[0].double())
    result = {}
    for name, exclusion in (("plain", None), ("exclusion", _sample_exclusion(N, M))):
        if exclusion is not None:
            gaps = exactly(exclusion.centres[0, part].double(), exclusion.positions[0].double())
            distances.masked_fill_(gaps <= exclusion.radius, torch.inf)
        nearest, rows = distances.min(dim=1)
        found = _search(queries, database, exclusion, changes)
        result[name] = float((found.indices[0, part, 0] == rows).double().mean())
        result[f"{name} error"] = float((found.distances[0, part, 0].double() - nearest).abs().max())
    return result


def _check_all(shape: tuple[int, int, int], base: Changes, others: Sequence[Changes]) -> list[str]:
    """What is wrong with each tuning, checked in parallel processes that also fill Triton's cache."""
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
    return [_find_fault(process, end) for process in processes]


def _find_fault(process: subprocess.Popen[str], end: float) -> str:
    """What is wrong with a tuning; empty where it is exact."""
    try:
        out, errors = process.communicate(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no result in {_SECONDS} s"
    lines = errors.strip().splitlines() or ["no message"]
    if process.returncode != 0:
        return f"exit code {process.returncode}: {lines[-1][:160]}"
    found = json.loads(out.strip().splitlines()[-1])
    is_exact = all(
        found[name] >= 0.9999 and found[f"{name} error"] <= 1e-6 for name in ("plain", "exclusion")
    )
    return "" if is_exact else f"wrong: {found}"


def _measure(
    changes: Changes, fault: str, sets: list[tuple[Tensor, Tensor]], product: float
) -> dict[str, Any] | None:
    """Times of one tuning, printed as a line; None where it cannot be used."""
    (_, N, D), M = sets[0][0].shape, sets[0][1].shape[1]
    exclusion = _sample_exclusion(N, M)
    if not fault:
        try:
            plain = _time([partial(_search, q, b, None, changes) for q, b in sets])
            masked = _time([partial(_search, q, b, exclusion, changes) for q, b in sets])
            launches = [_time_launches(*sets[0], excluded, changes) for excluded in (None, exclusion)]
        except Exception as error:  # Triton raises various errors where shared memory does not suffice
            fault = f"{type(error).__name__}: {str(error)[:160]}"
    if fault:
        print(f"{changes}: {fault}", flush=True)
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
    """Milliseconds of each kernel launched alone, with inputs in the cache."""
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


def _sample(N: int, M: int, D: int, seed: int) -> tuple[Tensor, Tensor]:
    queries = sample_unit_vectors(1, N, D, seed=2 * seed, device=DEVICE)
    return queries, sample_unit_vectors(1, M, D, seed=2 * seed + 1, device=DEVICE)


@cache
def _sample_exclusion(N: int, M: int) -> ExclusionRadius:
    exclusion = sample_exclusion(N, M, 0, DEVICE)
    return ExclusionRadius(exclusion.centres[None], exclusion.positions[None], exclusion.radius)


def _time(works: list[Work]) -> float:
    return time_graphs_in_turns({"work": works})["work"]


def _multiply(queries: Tensor, database: Tensor) -> Any:
    return (queries @ database.T).max(1)


if __name__ == "__main__":
    main()
