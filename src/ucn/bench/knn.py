"""Nearest neighbours: the fused search on a CUDA device, and the torch search on a CPU, against others."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from ucn.bench.report import Cell, Column, Part, Table, Target
from ucn.bench.samples import draw_unit, read_real_rows
from ucn.bench.settings import Settings
from ucn.bench.timing import Work, measure_memory, time_eager, time_graphs_in_turns, time_in_turns
from ucn.errors import UcnError
from ucn.knn import ExclusionRadius, nearest
from ucn.knn.reference import search_exactly
from ucn.losses.mining import drop_near_cells
from ucn.runtime.kernels import use_fused

# Together several times as large as the L2 cache of an H200, 60 MB.
_SETS = 12
_RADIUS = 16.0
_CDIST = "torch.cdist(q, b).min(1)"
_HALF = "bfloat16 product, max"
_FUSED = "ucn, fused"
_OUTSIDE = f"{_FUSED}, outside 16 px"
_DROPPED = f"{_FUSED}, then dropped within 16 px"
_NOTES = (
    "Outside 16 px: of random places with random features, of its own match with real ones, so that what "
    "resembles a query most is left out.",
    "Equal to float64: the share of queries for which the row is that of brute force in float64.",
)
_TORCH = "ucn, plain torch"
_COLUMNS = (
    Column("way"),
    Column("features"),
    Column("time", "ms"),
    Column("ratio to ucn", "ratio"),
    Column("extra memory", "MB"),
    Column("equal to float64", "share"),
    Column("largest error", "error"),
)


def measure(settings: Settings) -> Part:
    """The search on this device against others."""
    return _measure_cuda(settings) if settings.is_cuda else _measure_cpu(settings)


def compare_with_float64(
    queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None = None
) -> tuple[float, float]:
    """How often `nearest` names the row of brute force in float64, and how far off its distances are.

    Args:
        queries: (N, D).
        database: (M, D).
        exclusion: centres (N, 2), positions (M, 2); what may not match.

    Returns:
        The share of queries, and the largest difference of a distance.
    """
    found = nearest(queries, database, exclusion=exclusion)
    # The quicker way, by products, would put places at exactly the radius on either side of it.
    exactly = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")
    equal, largest = 0, 0.0
    for start in range(0, len(queries), 512):
        part = slice(start, start + 512)
        distances = exactly(queries[part].double(), database.double())
        if exclusion is not None:
            gaps = exactly(exclusion.centres[part].double(), exclusion.positions.double())
            distances.masked_fill_(gaps <= exclusion.radius, torch.inf)
        best, rows = distances.min(dim=1)
        rows = rows.masked_fill(best == torch.inf, -1)
        equal += int((found.indices[part, 0] == rows).sum())
        errors = (found.distances[part, 0].double() - best).abs().nan_to_num(0.0)
        largest = max(largest, float(errors.max()))
    return equal / max(1, len(queries)), largest


def draw_exclusion(N: int, M: int, seed: int, device: torch.device) -> ExclusionRadius:
    """Queries whose true place is random in an image, and cells 4 pixels apart."""
    generator = torch.Generator(device=device).manual_seed(seed)
    centres = torch.rand((N, 2), generator=generator, device=device) * 640
    cells = torch.arange(M, device=device)
    return ExclusionRadius(centres, torch.stack([cells % 160, cells // 160], dim=-1) * 4.0 + 2.0, _RADIUS)


def _measure_cuda(settings: Settings) -> Part:
    N, M, D = (300, 2200, 128) if settings.is_quick else (3000, 22000, 128)
    device = settings.device
    settings.report("nearest neighbours: random unit features")
    sets = [
        tuple(
            draw_unit(count, D, seed=settings.seed + 2 * i + j, device=device)
            for j, count in enumerate((N, M))
        )
        for i in range(_SETS)
    ]
    queries, database = sets[0]
    exclusion = draw_exclusion(N, M, settings.seed, device)
    if not use_fused(queries, database):
        raise UcnError(
            "the fused search does not run on this device (docs/performance.md says what it needs); name the "
            "other parts, such as `ucn bench encode pairs`, or measure the processor with --device cpu"
        )
    times = _time_random(sets, exclusion)
    fused = times[_FUSED]
    memory: dict[str, Cell] = {
        _FUSED: measure_memory(partial(_search_fused, queries, database, None), device),
        _CDIST: measure_memory(partial(_cdist_min, queries, database), device),
        _HALF: measure_memory(partial(_product_max, queries.bfloat16(), database.bfloat16()), device),
        _TORCH: measure_memory(partial(_search_plain, queries, database), device),
    }
    exact: dict[str, tuple[Cell, Cell]] = {
        _FUSED: compare_with_float64(queries, database),
        _OUTSIDE: compare_with_float64(queries, database, exclusion),
    }
    rows: list[tuple[Cell, ...]] = [
        (name, "random", ms, ms / fused, memory.get(name), *exact.get(name, (None, None)))
        for name, ms in times.items()
    ]
    settings.report("nearest neighbours: real descriptors")
    rows += _measure_real(settings, N)
    outside_ratio = times[_OUTSIDE] / fused
    asked = [
        Target(f"{_CDIST} ÷ fused", "an H200", times[_CDIST] / fused, 15.0),
        Target(f"{_HALF} ÷ fused", "an H200", times[_HALF] / fused, 2.5),
        Target("extra memory", "an H200", float(memory[_FUSED] or 0), 8.0, "MB", is_least=False),
        Target("equal to float64", "any machine", float(exact[_FUSED][0] or 0), 0.9999, "share"),
        Target("outside 16 px ÷ without a radius", "an H200", outside_ratio, 1.0, is_least=False),
    ]
    notes = (
        "Medians of captured CUDA graphs over 12 pairs of sets, or 4, timed by events, in rounds in which "
        "all ways take turns, conversion and exact ranking included; the plain torch search and nearest() "
        "are launched from Python.",
        *_NOTES,
        "Outside 16 px is how hardest negatives are mined. Then dropped within 16 px is the paper's mining: "
        "the nearest of all, which is no negative where it lies too near; it is dropped by plain torch.",
    )
    title = f"Nearest neighbours, {N} × {M} × {D}, k = 1"
    return Part((Table(title, _COLUMNS, tuple(rows), notes),), tuple(asked))


def _time_random(sets: list[tuple[Tensor, ...]], exclusion: ExclusionRadius) -> dict[str, float]:
    halves = [(q.bfloat16(), b.bfloat16()) for q, b in sets]
    captured: dict[str, list[Work]] = {
        _FUSED: [partial(_search_fused, q, b, None) for q, b in sets],
        _OUTSIDE: [partial(_search_fused, q, b, exclusion) for q, b in sets],
        _DROPPED: [partial(_search_and_drop, q, b, exclusion) for q, b in sets],
        _CDIST: [partial(_cdist_min, q, b) for q, b in sets[:4]],
        "float32 product, max": [partial(_product_max, q, b) for q, b in sets[:4]],
        _HALF: [partial(_product_max, q, b) for q, b in halves],
        "bfloat16 product alone": [partial(torch.mm, q, b.T) for q, b in halves[:4]],
    }
    return {
        **time_graphs_in_turns(captured),
        "ucn, nearest() with its checks": time_eager(partial(nearest, sets[0][0], sets[0][1])),
        _TORCH: time_eager(partial(_search_plain, *sets[0])),
    }


def _measure_real(settings: Settings, N: int) -> list[tuple[Cell, ...]]:
    first, second, places = read_real_rows(settings.weights, settings.image_hw, settings.device)
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    chosen = torch.randint(len(first), (N,), generator=generator, device=settings.device)
    queries, features = first[chosen], f"real, {len(second):,} rows"
    # Around its own match, so that what resembles a query most is left out, as in training and checking.
    exclusion = ExclusionRadius(places[nearest(queries, second).indices[:, 0]], places, _RADIUS)
    works: dict[str, Work] = {
        _FUSED: partial(_search_fused, queries, second, None),
        _OUTSIDE: partial(_search_fused, queries, second, exclusion),
        _DROPPED: partial(_search_and_drop, queries, second, exclusion),
        _CDIST: partial(_cdist_min, queries, second),
        _HALF: partial(_product_max, queries.bfloat16(), second.bfloat16()),
    }
    times = time_graphs_in_turns({name: [work] for name, work in works.items()})
    exact: dict[str, tuple[Cell, Cell]] = {
        _FUSED: compare_with_float64(queries, second),
        _OUTSIDE: compare_with_float64(queries, second, exclusion),
    }
    return [
        (name, features, ms, ms / times[_FUSED], None, *exact.get(name, (None, None)))
        for name, ms in times.items()
    ]


def _search_fused(queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None) -> Any:
    from ucn.knn.triton.search import search_fused

    if exclusion is not None:
        exclusion = ExclusionRadius(exclusion.centres[None], exclusion.positions[None], exclusion.radius)
    return search_fused(queries[None], database[None], 1, exclusion)


def _search_and_drop(queries: Tensor, database: Tensor, exclusion: ExclusionRadius) -> Tensor:
    found = _search_fused(queries, database, None).indices
    return drop_near_cells(found, exclusion.positions, exclusion.centres[None], exclusion.radius)


def _search_plain(queries: Tensor, database: Tensor) -> Any:
    return search_exactly(queries[None], database[None], 1, None, 2**28)


def _cdist_min(queries: Tensor, database: Tensor) -> Any:
    return torch.cdist(queries, database).min(1)


def _product_max(queries: Tensor, database: Tensor) -> Any:
    return (queries @ database.T).max(1)


def _measure_cpu(settings: Settings) -> Part:
    N, M, D = (200, 1920, 128) if settings.is_quick else (2000, 19200, 128)
    settings.report("nearest neighbours: random unit features")
    queries = draw_unit(N, D, seed=settings.seed, device=settings.device)
    database = draw_unit(M, D, seed=settings.seed + 1, device=settings.device)
    exclusion = draw_exclusion(N, M, settings.seed, settings.device)
    rows, targets = _compare_on_cpu(queries, database, exclusion, "random", settings)
    settings.report("nearest neighbours: real descriptors")
    first, second, positions = read_real_rows(settings.weights, settings.image_hw, settings.device)
    generator = torch.Generator().manual_seed(settings.seed)
    real = first[torch.randint(len(first), (N,), generator=generator)]
    near_match = ExclusionRadius(positions[nearest(real, second).indices[:, 0]], positions, _RADIUS)
    more, _ = _compare_on_cpu(real, second, near_match, f"real, {len(second):,} rows", settings)
    notes = [
        "Medians of rounds in which all ways take turns. All threads that each library takes by itself.",
        *_NOTES,
    ]
    if not _has_faiss():
        notes.append("faiss-cpu is not installed: pip install faiss-cpu adds its row.")
    title = f"Nearest neighbours, {N} × {M} × {D}, k = 1"
    return Part((Table(title, _COLUMNS, tuple(rows + more), tuple(notes)),), tuple(targets))


def _compare_on_cpu(
    queries: Tensor, database: Tensor, exclusion: ExclusionRadius, features: str, settings: Settings
) -> tuple[list[tuple[Cell, ...]], list[Target]]:
    ours, masked = "ucn, nearest()", "ucn, nearest(), outside 16 px"
    works: dict[str, Work] = {
        ours: partial(nearest, queries, database),
        masked: partial(nearest, queries, database, exclusion=exclusion),
    }
    q, b = queries.numpy(), database.numpy()
    if _has_faiss():
        works["faiss-cpu IndexFlatIP"] = _prepare_faiss(q, b)
    works["cv2.BFMatcher"] = partial(cv2.BFMatcher(cv2.NORM_L2).match, q, b)
    works[_CDIST] = partial(_cdist_min, queries, database)
    times = time_in_turns(works, settings.effort)
    equal = {
        ours: compare_with_float64(queries, database),
        masked: compare_with_float64(queries, database, exclusion),
    }
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            features,
            ms,
            ms / times[ours],
            measure_memory(works[name], settings.device),
            *equal.get(name, (None, None)),
        )
        for name, ms in times.items()
    ]
    targets = [
        Target("cv2.BFMatcher ÷ nearest()", "two cores", times["cv2.BFMatcher"] / times[ours], 2.5),
        Target("equal to float64", "any machine", equal[ours][0], 0.9999, "share"),
    ]
    if _has_faiss():
        ratio = times["faiss-cpu IndexFlatIP"] / times[ours]
        targets.insert(0, Target("faiss-cpu IndexFlatIP ÷ nearest()", "two cores", ratio, 1.0))
    return rows, targets


def _has_faiss() -> bool:
    return importlib.util.find_spec("faiss") is not None


def _prepare_faiss(queries: np.ndarray[Any, Any], database: np.ndarray[Any, Any]) -> Work:
    """A search in an index that is ready, as faiss is used."""
    import faiss

    index = faiss.IndexFlatIP(queries.shape[1])
    index.add(database)
    return partial(index.search, queries, 1)
