"""Known places nearest to others, by a tree: for thousands of places quicker than to compare all of them."""

from __future__ import annotations

import torch
from scipy.spatial import cKDTree
from torch import Tensor

_THREADS = 4
_THREAD_POINTS = 500  # each thread is started anew, which takes as long as looking up a hundred points


def find_near_places(points: Tensor, known: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The known places nearest to points, in any order where they are equally near.

    Args:
        points: (N, 2), finite.
        known: (M, 2), finite.
        count: how many, from 1 to M.

    Returns:
        (N, count) distances in float64, near to far, and (N, count) int64 rows; on the device of `known`.
    """
    # In float64, which the tree computes in anyway, and which every type of torch can become.
    tree = cKDTree(known.detach().cpu().double().numpy())
    places = points.detach().cpu().double().numpy()
    workers = max(1, min(_THREADS, torch.get_num_threads(), len(places) // _THREAD_POINTS))
    wanted = range(1, count + 1)  # not the number, for which 1 gives vectors
    try:
        distances, rows = tree.query(places, k=wanted, workers=workers)
    except RuntimeError:  # no thread could be started
        distances, rows = tree.query(places, k=wanted)
    return torch.from_numpy(distances).to(known.device), torch.from_numpy(rows).to(known.device)
