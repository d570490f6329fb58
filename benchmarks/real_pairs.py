"""PCK of weights on real training pairs, indoors and outdoors, for model selection.

UCN_DATA=DIR python benchmarks/real_pairs.py geometric-lite weights.safetensors … [--gain 2]

Up to 30 pairs of 7-Scenes (5 to 20 frames apart) and of KITTI raw, evenly spread over the set, with up to
1,000 points each. Descriptors are interpolated at the points of image 0, and matches are the nearest cells of
image 1, without sub-cell refinement; PCK@3 / 5 / 10 px over all points.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from command_line import make_parser

from ucn.data.catalogue import open_data
from ucn.data.pairs import PairData
from ucn.errors import UcnError
from ucn.geometry.coords import cell_centres
from ucn.geometry.sampling import sample_descriptors
from ucn.knn import nearest
from ucn.nn.model import CorrespondenceNetwork
from ucn.types import PairSample
from ucn.weights import load_weights

_PAIRS = 30
_POINTS = 1000
_LIMITS = (3, 5, 10)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("weights", nargs="+", help="names of shipped weights, or files")
    parser.add_argument("--gain", type=float, default=1.0, help="factor on the weight of coarser levels")
    arguments = parser.parse_args()
    if "UCN_DATA" not in os.environ:
        raise SystemExit("set UCN_DATA to the folder that holds rgbd_7scenes/ and kitti_raw/")
    try:
        measure(Path(os.environ["UCN_DATA"]), arguments.weights, arguments.gain)
    except UcnError as error:
        raise SystemExit(f"error: {error}") from error


def measure(folder: Path, all_weights: Sequence[str], gain: float) -> None:
    """Prints a line for each of the weights and data sets."""
    sets = {
        "7-Scenes": open_data("seven-scenes", folder / "rgbd_7scenes", "all", {"min_gap": 5, "max_gap": 20}),
        "KITTI raw": open_data("kitti-raw", folder / "kitti_raw", "all"),
    }
    samples = {name: choose_pairs(data) for name, data in sets.items()}
    for weights in all_weights:
        model = load_weights(weights).model.eval()
        model.scale_coarse_levels(gain)
        for name, pairs in samples.items():
            errors = torch.cat([measure_errors(model, pair) for pair in pairs])
            shares = " / ".join(f"{100 * float((errors <= limit).double().mean()):.1f}" for limit in _LIMITS)
            print(
                f"{Path(weights).name}  {name}, {len(pairs)} pairs, {len(errors)} points  {shares}",
                flush=True,
            )


def choose_pairs(data: PairData) -> list[tuple[PairSample, torch.Tensor]]:
    """Evenly spread pairs, and the rows of their query points."""
    generator = torch.Generator().manual_seed(0)
    chosen: list[tuple[PairSample, torch.Tensor]] = []
    count = min(_PAIRS, len(data))
    for number in range(count):
        sample = data.read(number * len(data) // count)
        chosen.append((sample, torch.randperm(len(sample.points0), generator=generator)[:_POINTS]))
    return chosen


@torch.inference_mode()
def measure_errors(model: CorrespondenceNetwork, pair: tuple[PairSample, torch.Tensor]) -> torch.Tensor:
    """Errors (N,) in pixels of the nearest cells in image 1."""
    sample, rows = pair
    map0, map1 = model.encode(sample.image0[None]), model.encode(sample.image1[None])
    queries = sample_descriptors(map0, sample.points0[rows][None])[0]
    cells = nearest(queries, map1.features[0].flatten(1).T).indices[:, 0]
    errors: torch.Tensor = (cell_centres(map1)[cells] - sample.points1[rows]).norm(dim=-1)
    return errors


if __name__ == "__main__":
    main()
