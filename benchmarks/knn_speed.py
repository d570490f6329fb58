"""The fused nearest-neighbour search on a CUDA device: right answers first, then times and memory as ratios.

python benchmarks/knn_speed.py [--queries 3000] [--rows 22000] [--dim 128] [--sweep] [--no-checks]

Times are of captured CUDA graphs, conversion and exact ranking included, over inputs that do not stay in the
cache. `--sweep` times other ways to cut the work, and each of their launches. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.bench import samples
from ucn.bench.machine import describe_machine
from ucn.bench.timing import measure_memory, time_eager, time_graphs
from ucn.knn import Outside, nearest
from ucn.knn.torch_search import search_exactly

if TYPE_CHECKING:
    from ucn.knn.triton_search import Tuning

DEVICE = torch.device("cuda")

# Together several times as large as the L2 cache of an H200, 60 MB.
_SETS = 12
_RADIUS = 16.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=22000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument(
        "--sweep", action="store_true", help="time other ways to cut the work, and nothing else"
    )
    parser.add_argument(
        "--no-checks", action="store_true", help="measure without the cases compiled for checks"
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this script measures a CUDA device, and this machine has none")
    sizes = (arguments.queries, arguments.rows, arguments.dim)
    if arguments.sweep:
        sweep(*sizes)
        return
    checks = [] if arguments.no_checks else run_checks()
    report: dict[str, Any] = {"machine": describe_machine(DEVICE), "sizes": list(sizes), "checks": checks}
    report.update(measure(*sizes))
    times, random = report["milliseconds"], report["random"]
    fused = times["fused"]
    rows = [("way", "ms", "ratio to fused")]
    rows += [(name, f"{ms:.4f}", f"{ms / fused:.2f}") for name, ms in times.items()]
    rows += [
        ("equal to float64", f"{100 * random['equal']:.4f} %", f"else off by {random['largest_error']:.1e}"),
        ("extra memory", f"{report['fused_megabytes']:.2f} MB", f"cdist {report['cdist_megabytes']:.0f} MB"),
        ("checks", str(len(checks)), "all exact" if all(c["is_right"] for c in checks) else "SOME FAILED"),
    ]
    print(f"\nnearest neighbours, {sizes[0]} × {sizes[1]} × {sizes[2]}, k = 1")
    for name, *figures in rows:
        print(f"{name:40}{figures[0]:>14}  {figures[1]}")
    print(json.dumps(report))


def draw_unit(*shape: int, seed: int) -> Tensor:
    return samples.draw_unit(*shape, seed=seed, device=DEVICE)


def draw_outside(N: int, M: int) -> Outside:
    """Queries whose true place is random in an image, and cells 4 pixels apart."""
    generator = torch.Generator(device=DEVICE).manual_seed(7)
    centres = torch.rand((1, N, 2), generator=generator, device=DEVICE) * 640
    cells = torch.arange(M, device=DEVICE)
    positions = torch.stack([cells % 160, cells // 160], dim=-1)[None] * 4.0 + 2.0
    return Outside(centres, positions, _RADIUS)


def brute_force(queries: Tensor, database: Tensor, outside: Outside | None) -> Tensor:
    """Distances (N, M) in float64 by differences; inf where excluded."""
    # The quicker way, by products, would put places at exactly the radius on either side of it.
    exactly = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")
    distances: Tensor = exactly(queries.double(), database.double())
    if outside is not None:
        gaps = exactly(outside.centres[0].double(), outside.positions[0].double())
        distances.masked_fill_(gaps <= outside.radius, torch.inf)
    return distances


def compare(queries: Tensor, database: Tensor, k: int, outside: Outside | None = None) -> dict[str, Any]:
    """How often the fused search names the k rows of brute force, and how far off its distances are else."""
    from ucn.knn.triton_search import search_fused

    found = search_fused(queries[None], database[None], k, outside)
    expected = []
    for part in range(0, len(queries), 512):
        places = None
        if outside is not None:
            places = Outside(outside.centres[:, part : part + 512], outside.positions, outside.radius)
        distances = brute_force(queries[part : part + 512], database, places)
        # A stable sort leaves equal distances by index.
        expected.append([each[:, :k] for each in distances.sort(dim=1, stable=True)])
    distances, indices = (torch.cat(each) for each in zip(*expected, strict=True))
    if distances.shape[1] < k:
        distances = F.pad(distances, (0, k - distances.shape[1]), value=torch.inf)
        indices = F.pad(indices, (0, k - indices.shape[1]), value=-1)
    indices = indices.masked_fill(distances == torch.inf, -1)
    is_equal = (found.indices[0] == indices).all(dim=1)
    errors = (found.distances[0].double() - distances).abs().nan_to_num(0.0)
    return {
        "equal": float(is_equal.double().mean()),
        "largest_error": float(errors.max()),
        "measured": float(found.measured.double().mean()),
        "most_measured": int(found.measured.max()),
        "is_right": bool(is_equal.double().mean() >= 0.9999)
        and float(errors.max()) <= 1e-6 * _scale(distances),
    }


def _scale(distances: Tensor) -> float:
    return max(1.0, float(distances.nan_to_num(0.0, 0.0, 0.0).max()))


def run_checks() -> list[dict[str, Any]]:
    """Odd sizes, types, ties, blank images and excluded surroundings, each against float64."""
    cases: list[tuple[str, Tensor, Tensor, int, Outside | None]] = []
    # Few different settings, since each is compiled for about three seconds.
    for N, M, D, k in (
        (1, 1, 37, 5),
        (777, 1013, 37, 5),
        (5, 3, 37, 5),
        (130, 5000, 512, 8),
        (300, 3000, 200, 2),
    ):
        name = f"{N} × {M} × {D}, k = {k}"
        cases.append((name, draw_unit(N, D, seed=1), draw_unit(M, D, seed=2), k, None))
    queries, database = draw_unit(1000, 128, seed=3), draw_unit(9000, 128, seed=4)
    cases.append(("bfloat16", queries.bfloat16(), database.bfloat16(), 3, None))
    cases.append(("magnitude 1e-5", queries * 1e-5, database * 1e-5, 1, None))
    cases.append(("magnitude 300", queries * 300, database * 300, 1, None))
    cases.append(("a feature map's layout", queries, database.T.contiguous().T, 1, None))
    cases.append(("every row twice", queries, torch.cat([database[:4000], database[:4000]]), 3, None))
    cases.append(("blank image", queries[:200], database[:1].repeat(3000, 1), 3, None))
    close = database[:1] + 1e-4 * draw_unit(3000, 128, seed=5)
    cases.append(("nearly blank image", close[:200] + 1e-5 * queries[:200], close, 3, None))
    cases.append(("outside 16 px", queries, database, 1, draw_outside(1000, 9000)))
    itself = draw_outside(1000, 9000)
    itself = Outside(itself.positions[:, :1000].clone(), itself.positions, _RADIUS)
    cases.append(("own surroundings excluded", database[:1000], database, 3, itself))
    found = []
    for name, first, second, k, outside in cases:
        found.append({"case": name, **compare(first, second, k, outside)})
        if not found[-1]["is_right"]:
            print("NOT RIGHT:", found[-1])
    return found


def read_real_sets(N: int) -> tuple[Tensor, Tensor]:
    """Descriptors of random cells of one image and of all cells of another, by the shipped network."""
    from ucn.data.example import example_pair
    from ucn.data.io import to_tensor
    from ucn.weights import load_weights

    pair, network = example_pair(), load_weights("geometric").model.to(DEVICE).eval()
    sets = []
    for path in (pair.image0_path, pair.image1_path):
        image = F.interpolate(to_tensor(path)[None].to(DEVICE), (480, 640), mode="bilinear", antialias=True)
        with torch.no_grad():
            sets.append(network.encode(image).features[0].flatten(1).T.contiguous())
    first, second = sets
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    return first[torch.randint(len(first), (N,), generator=generator, device=DEVICE)], second


def measure(N: int, M: int, D: int) -> dict[str, Any]:
    from ucn.knn.triton_search import search_fused

    sets = [(draw_unit(1, N, D, seed=2 * i), draw_unit(1, M, D, seed=2 * i + 1)) for i in range(_SETS)]
    outside = draw_outside(N, M)
    halves = [(q[0].bfloat16(), b[0].bfloat16()) for q, b in sets]
    real = read_real_sets(N)
    times = {
        "fused": time_graphs([partial(search_fused, q, b, 1) for q, b in sets]),
        "fused, again": time_graphs([partial(search_fused, q, b, 1) for q, b in sets]),
        "fused, outside 16 px": time_graphs([partial(search_fused, q, b, 1, outside) for q, b in sets]),
        "fused, k = 2": time_graphs([partial(search_fused, q, b, 2) for q, b in sets]),
        f"fused, real features ({len(real[1])} rows)": time_graphs(
            [partial(search_fused, real[0][None], real[1][None], 1)]
        ),
        "torch.cdist(q, b).min(1)": time_graphs([partial(cdist_min, q[0], b[0]) for q, b in sets[:4]]),
        "float32 product and max": time_graphs([partial(product_max, q[0], b[0]) for q, b in sets[:4]]),
        "bfloat16 product and max": time_graphs([partial(product_max, q, b) for q, b in halves]),
        "bfloat16 product alone": time_graphs([partial(torch.mm, q, b.T) for q, b in halves]),
        "nearest(), checks included": time_eager(partial(nearest, sets[0][0][0], sets[0][1][0])),
        "plain torch search": time_eager(partial(search_exactly, *sets[0], 1, None, 2**28)),
    }
    return {
        "milliseconds": times,
        "ratio_to_cdist": times["torch.cdist(q, b).min(1)"] / times["fused"],
        "ratio_to_bfloat16": times["bfloat16 product and max"] / times["fused"],
        "random": compare(sets[0][0][0], sets[0][1][0], 1),
        "random_outside": compare(sets[0][0][0], sets[0][1][0], 1, outside),
        "real": compare(*real, 1),
        "fused_megabytes": measure_memory(partial(search_fused, *sets[0], 1), DEVICE),
        "cdist_megabytes": measure_memory(partial(cdist_min, sets[0][0][0], sets[0][1][0]), DEVICE),
        "kernel_milliseconds": time_kernels(*sets[0]),
    }


def cdist_min(queries: Tensor, database: Tensor) -> Any:
    return torch.cdist(queries, database).min(1)


def product_max(queries: Tensor, database: Tensor) -> Any:
    return (queries @ database.T).max(1)


def time_kernels(queries: Tensor, database: Tensor, tuning: Tuning | None = None) -> dict[str, float]:
    """Milliseconds of each launch, one after the other."""
    from ucn.knn.triton_search import choose_tuning, search_fused

    tuning = replace(tuning or choose_tuning(queries.device), use_chain=False)
    search_fused(queries, database, 1, None, tuning)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(20):
            search_fused(queries, database, 1, None, tuning)
        torch.cuda.synchronize()
    return {
        event.key: event.self_device_time_total / event.count / 1e3
        for event in profile.key_averages()
        if event.key in ("prepare", "rank", "settle")
    }


def list_tunings() -> list[dict[str, Any]]:
    """What differs from the default in other ways to cut the work, the most telling first.

    All but the first are timed one launch after the other, as their launches are, and so compiled once.
    """
    return [
        {"use_chain": True},
        {},
        {"settle_values": 1024},
        {"fold": 4},
        {"prepare_values": 4096},
        {"columns": 64, "fold": 1, "stages": 4},
        {"prepare_warps": 8},
    ]


def sweep(N: int, M: int, D: int) -> None:
    """Times of other cuts and of their launches; those that do not fit on the device say so."""
    from ucn.knn.triton_search import Tuning, search_fused

    sets = [(draw_unit(1, N, D, seed=2 * i), draw_unit(1, M, D, seed=2 * i + 1)) for i in range(_SETS)]
    outside = draw_outside(N, M)
    parts = (sets[0][0][0, start : start + 512] for start in range(0, N, 512))
    expected = torch.cat([brute_force(part, sets[0][1][0], None).argmin(1) for part in parts])
    outside_ms = time_graphs([partial(search_fused, q, b, 1, outside) for q, b in sets])
    found_outside = compare(sets[0][0][0], sets[0][1][0], 1, outside)
    print(f"{1e3 * outside_ms:.2f} µs outside 16 px: {found_outside}", flush=True)
    print("µs:   all prepare   rank settle  equal  cut", flush=True)
    report = []
    for changes in list_tunings():
        tuning = Tuning(**{"use_chain": False, **changes})
        try:
            found = search_fused(*sets[0], 1, None, tuning)
            equal = float((found.indices[0, :, 0] == expected).double().mean())
            ms = time_graphs([partial(search_fused, q, b, 1, None, tuning) for q, b in sets])
            launches = time_kernels(*sets[0], tuning)
        except Exception as error:  # Triton raises its own kinds where shared memory does not suffice
            print(f"{changes}: {type(error).__name__}: {str(error)[:90]}", flush=True)
            continue
        times = [ms, *(launches[name] for name in ("prepare", "rank", "settle"))]
        columns = " ".join(f"{1e3 * part:7.2f}" for part in times)
        print(f"{columns}  {equal:.4f}  {changes}", flush=True)
        report.append({"tuning": changes, "milliseconds": ms, "launches": launches, "equal": equal})
    print(json.dumps({"machine": describe_machine(DEVICE), "sweep": report, "outside": outside_ms}))


if __name__ == "__main__":
    main()
