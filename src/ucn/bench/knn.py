"""Nearest-neighbour search: `ucn.knn` against torch, faiss and OpenCV."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from ucn.bench.report import Cell, Column, Part, Table
from ucn.bench.samples import read_real_descriptors, sample_unit_vectors
from ucn.bench.settings import Settings
from ucn.bench.timing import Work, measure_memory, time_eager, time_graphs_in_turns, time_in_turns
from ucn.errors import UcnError
from ucn.knn import ExclusionRadius, nearest
from ucn.knn.reference import search_exactly
from ucn.losses.mining import mask_within_radius
from ucn.runtime.kernels import use_fused

_SETS = 12
"""Inputs that are searched in turn, together several times the 60 MB L2 cache of an H200."""
_RADIUS = 16.0
_FUSED, _NEAREST = "ucn, fused", "ucn, nearest()"
_EXCLUDING = ", excluding 16 px"
_COLUMNS = (
    Column("method"),
    Column("features"),
    Column("time", "ms"),
    Column("ratio to ucn", "ratio"),
    Column("extra memory", "MB"),
    Column("equal to float64", "share"),
    Column("largest error", "error"),
)
_NOTES = (
    "Excluding 16 px: rows within 16 pixels of a point are skipped, a random point with random features and "
    "the query's own match with real ones, so that its best rows are among them.",
    "Equal to float64: the share of queries with the same row as brute force in float64.",
)
_CUDA_NOTES = (
    "Medians of captured CUDA graphs, replayed over up to 12 inputs and timed by events in alternating "
    "rounds, conversion and exact ranking included; nearest() and the torch reference are launched from "
    "Python.",
    "Excluding 16 px mines hardest negatives. Discarding within 16 px is the paper's mining: it searches all "
    "rows and drops results too near the true match, in plain torch.",
)
_CPU_NOTES = ("Medians of alternating rounds, with each library's default number of threads.",)

Inputs = list[tuple[Tensor, Tensor]]
"""Pairs of queries (N, D) and database rows (M, D)."""


def measure(settings: Settings) -> Part:
    """Compares methods on random unit vectors and on real descriptors."""
    N, M, D = (3000, 22000, 128) if settings.is_cuda else (2000, 19200, 128)
    if settings.is_quick:
        N, M = N // 10, M // 10
    rows: list[tuple[Cell, ...]] = []
    for features, (inputs, exclusion) in (
        ("random", _sample_inputs(N, M, D, settings)),
        ("real", _read_inputs(N, settings)),
    ):
        settings.report(f"nearest neighbours: {features} descriptors")
        label = features if features == "random" else f"real, {len(inputs[0][1]):,} rows"
        rows += _compare(inputs, exclusion, label, settings)
    notes = (*(_CUDA_NOTES if settings.is_cuda else _CPU_NOTES), *_NOTES)
    if not settings.is_cuda and not _has_faiss():
        notes += ("faiss-cpu is not installed: pip install faiss-cpu adds its row.",)
    return Part((Table(f"Nearest neighbours, {N} × {M} × {D}, k = 1", _COLUMNS, tuple(rows), notes),))


def compare_with_float64(
    queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None = None
) -> tuple[float, float]:
    """Compares `nearest` with brute force in float64.

    Args:
        queries: (N, D).
        database: (M, D).
        exclusion: centres (N, 2), positions (M, 2).

    Returns:
        The share of queries with the same row, and the largest difference of a distance.
    """
    found = nearest(queries, database, exclusion=exclusion)
    # By matrix products, positions at exactly the radius would fall on either side of it.
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


def sample_exclusion(N: int, M: int, seed: int, device: torch.device) -> ExclusionRadius:
    """Random centres in an image 640 pixels wide, and cells 4 pixels apart."""
    generator = torch.Generator(device=device).manual_seed(seed)
    centres = torch.rand((N, 2), generator=generator, device=device) * 640
    cells = torch.arange(M, device=device)
    return ExclusionRadius(centres, torch.stack([cells % 160, cells // 160], dim=-1) * 4.0 + 2.0, _RADIUS)


def _sample_inputs(N: int, M: int, D: int, settings: Settings) -> tuple[Inputs, ExclusionRadius]:
    inputs = []
    for number in range(_SETS if settings.is_cuda else 1):
        seed = settings.seed + 2 * number
        queries = sample_unit_vectors(N, D, seed=seed, device=settings.device)
        inputs.append((queries, sample_unit_vectors(M, D, seed=seed + 1, device=settings.device)))
    return inputs, sample_exclusion(N, M, settings.seed, settings.device)


def _read_inputs(N: int, settings: Settings) -> tuple[Inputs, ExclusionRadius]:
    first, second, positions = read_real_descriptors(settings.weights, settings.image_hw, settings.device)
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    queries = first[torch.randint(len(first), (N,), generator=generator, device=settings.device)]
    centres = positions[nearest(queries, second).indices[:, 0]]
    return [(queries, second)], ExclusionRadius(centres, positions, _RADIUS)


def _compare(
    inputs: Inputs, exclusion: ExclusionRadius, features: str, settings: Settings
) -> list[tuple[Cell, ...]]:
    queries, database = inputs[0]
    if settings.is_cuda:
        captured, eager = _list_cuda_works(inputs, exclusion)
        times = time_graphs_in_turns(captured) | {name: time_eager(work) for name, work in eager.items()}
        works, ours = {name: several[0] for name, several in captured.items()} | eager, _FUSED
    else:
        works, ours = _list_cpu_works(queries, database, exclusion), _NEAREST
        times = time_in_turns(works, settings.effort)
    exact: dict[str, tuple[Cell, Cell]] = {
        ours: compare_with_float64(queries, database),
        f"{ours}{_EXCLUDING}": compare_with_float64(queries, database, exclusion),
    }
    return [
        (
            name,
            features,
            ms,
            ms / times[ours],
            measure_memory(works[name], settings.device),
            *exact.get(name, (None, None)),
        )
        for name, ms in times.items()
    ]


def _list_cuda_works(
    inputs: Inputs, exclusion: ExclusionRadius
) -> tuple[dict[str, list[Work]], dict[str, Work]]:
    """Functions captured in CUDA graphs, one for each input, and functions launched from Python."""
    queries, database = inputs[0]
    if not use_fused(queries, database):
        raise UcnError(
            "the fused search does not run on this device (docs/performance.md lists its requirements); name "
            "other parts, such as encode and match, or measure on the device cpu"
        )
    few, halves = inputs[:4], [(q.bfloat16(), b.bfloat16()) for q, b in inputs]
    captured: dict[str, list[Work]] = {
        _FUSED: [partial(_search_fused, q, b, None) for q, b in inputs],
        f"{_FUSED}{_EXCLUDING}": [partial(_search_fused, q, b, exclusion) for q, b in inputs],
        f"{_FUSED}, then discarding within 16 px": [
            partial(_search_and_drop, q, b, exclusion) for q, b in inputs
        ],
        "torch.cdist(q, b).min(1)": [partial(_cdist_min, q, b) for q, b in few],
        "float32 product, max": [partial(_product_max, q, b) for q, b in few],
        "bfloat16 product, max": [partial(_product_max, q, b) for q, b in halves],
        "bfloat16 product alone": [partial(torch.mm, q, b.T) for q, b in halves[:4]],
    }
    eager: dict[str, Work] = {
        "ucn, nearest() with its checks": partial(nearest, queries, database),
        "ucn, torch reference": partial(_search_reference, queries, database),
    }
    return captured, eager


def _list_cpu_works(queries: Tensor, database: Tensor, exclusion: ExclusionRadius) -> dict[str, Work]:
    q, b = queries.numpy(), database.numpy()
    works: dict[str, Work] = {
        _NEAREST: partial(nearest, queries, database),
        f"{_NEAREST}{_EXCLUDING}": partial(nearest, queries, database, exclusion=exclusion),
    }
    if _has_faiss():
        works["faiss-cpu IndexFlatIP"] = _prepare_faiss(q, b)
    works["cv2.BFMatcher"] = partial(cv2.BFMatcher(cv2.NORM_L2).match, q, b)
    works["torch.cdist(q, b).min(1)"] = partial(_cdist_min, queries, database)
    return works


def _search_fused(queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None) -> Any:
    from ucn.knn.triton.search import search_fused

    if exclusion is not None:
        exclusion = ExclusionRadius(exclusion.centres[None], exclusion.positions[None], exclusion.radius)
    return search_fused(queries[None], database[None], 1, exclusion)


def _search_and_drop(queries: Tensor, database: Tensor, exclusion: ExclusionRadius) -> Tensor:
    found = _search_fused(queries, database, None).indices
    return mask_within_radius(found, exclusion.positions, exclusion.centres[None], exclusion.radius)


def _search_reference(queries: Tensor, database: Tensor) -> Any:
    return search_exactly(queries[None], database[None], 1, None, 2**28)


def _cdist_min(queries: Tensor, database: Tensor) -> Any:
    return torch.cdist(queries, database).min(1)


def _product_max(queries: Tensor, database: Tensor) -> Any:
    return (queries @ database.T).max(1)


def _has_faiss() -> bool:
    return importlib.util.find_spec("faiss") is not None


def _prepare_faiss(queries: np.ndarray[Any, Any], database: np.ndarray[Any, Any]) -> Work:
    """A search in a finished index."""
    import faiss

    index = faiss.IndexFlatIP(queries.shape[1])
    index.add(database)
    return partial(index.search, queries, 1)
