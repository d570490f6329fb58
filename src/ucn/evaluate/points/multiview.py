"""The pairs of the benchmark `multiview`: sparse reconstructions, grouped by the angle between the views."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from ucn.data.sets.posed.colmap import ColmapData, open_folder
from ucn.data.sets.posed.scenes import find_scenes
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair, refuse_problems

GROUPS = {"0-15°": 15.0, "15-30°": 30.0, "30-60°": 60.0, "over 60°": float("inf")}
"""Upper bounds, excluded, of the median triangulation angle of a group's pairs, in degrees."""
MIN_SHARED = 30
"""The least number of common 3D points of a pair."""
MAX_PAIRS = 60
"""The most pairs of a group."""


def open_multiview(folder: Path, scenes: Sequence[str] = (), seed: int = 0) -> list[BenchmarkPair]:
    """At most `MAX_PAIRS` pairs of each group, spread evenly over the scenes.

    Args:
        folder: contains a folder for each scene, with ``images`` and ``sparse``; or is one.
        scenes: names of those to use; all where empty.
        seed: of the sampling.

    Raises:
        DataError: there is no such scene, one of them has problems, or no pair.
    """
    found: dict[str, list[BenchmarkPair]] = {group: [] for group in GROUPS}
    for path in find_scenes(folder, scenes):
        for pair in _list_pairs(path):
            found[pair.group].append(pair)
    pairs = [pair for own in found.values() for pair in _sample(own, seed)]
    if not pairs:
        raise DataError(f"{folder}: no two images share {MIN_SHARED} 3D points; nothing to evaluate")
    return pairs


def _list_pairs(path: Path) -> list[BenchmarkPair]:
    """All pairs of a scene with enough common points, in the group of their angle."""
    data = open_folder(path, "all", min_shared=1)
    refuse_problems(data)
    pairs = []
    for index in range(len(data)):
        group = _find_group(data, index)
        if group is not None:
            name = f"{path.name}/{data.pair_name(index)}"
            part = f"multiview {path.name}"
            pairs.append(BenchmarkPair(data, index, name, group, path.name, part=part))
    return pairs


def _find_group(data: ColmapData, index: int) -> str | None:
    angles = data.triangulation_angles(index)
    if len(angles) < MIN_SHARED:
        return None
    median = float(angles.median())
    return next((group for group, bound in GROUPS.items() if median < bound), None)


def _sample(pairs: Sequence[BenchmarkPair], seed: int) -> list[BenchmarkPair]:
    """One pair of each scene in turn, sampled by the seed and the scene's name, up to `MAX_PAIRS`."""
    queues: dict[str, list[BenchmarkPair]] = {}
    for pair in pairs:
        queues.setdefault(pair.category, []).append(pair)
    for scene, queue in queues.items():
        digest = hashlib.sha256(f"{seed}/{scene}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        queues[scene] = [queue[row] for row in torch.randperm(len(queue), generator=generator).tolist()]
    rounds = max(map(len, queues.values()), default=0)
    turns = [queue[turn] for turn in range(rounds) for queue in queues.values() if turn < len(queue)]
    return sorted(turns[:MAX_PAIRS], key=lambda pair: pair.name)
