"""Accuracy gained by photometric refinement of matches, on synthetic pairs with exact ground truth.

python benchmarks/alignment_gain.py FOLDER [--pairs 36] [--weights geometric] [--json]

FOLDER holds photographs. A third each of the pairs are homographies (rotated by up to 180 degrees, scaled by
up to 2), nearly upright homographies (10 degrees, 1.2), and scenes of several planes; all with illumination
change. Queries are random points; mutual matches with a score of at least 0.5 are evaluated.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch
from command_line import make_parser

import ucn
from ucn.config import SyntheticConfig
from ucn.data.synthetic import make_pairs
from ucn.data.synthetic.bank import ImageBank, list_images

KINDS = {
    "homographies": SyntheticConfig(side=320),
    "nearly upright": SyntheticConfig(side=320, upright_share=1.0, upright_degrees=10.0, max_scale=1.2),
    "several planes": SyntheticConfig(side=320, parallax_share=1.0),
}
LIMITS = (0.25, 0.5, 1.0, 2.0, 3.0)
_PHOTOGRAPHS = 36


def measure(folder: Path, pairs: int, weights: str) -> dict[str, dict[str, list[float]]]:
    """Errors in pixels for each kind of pair, without and with photometric refinement."""
    paths = list_images(folder)
    bank = ImageBank(paths[:: max(1, len(paths) // _PHOTOGRAPHS)], 512, "cpu")
    matchers = {
        name: ucn.Matcher.from_pretrained(
            weights, config=ucn.MatchConfig(max_side=None, use_alignment=use), device="cpu"
        )
        for name, use in (("sub-cell", False), ("photometric", True))
    }
    errors: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in matchers} for kind in KINDS}
    for kind, config in KINDS.items():
        batch = make_pairs(bank, max(1, pairs // len(KINDS)), config, torch.Generator().manual_seed(11))
        for pair in batch:
            rows = pair.is_valid[0]
            points0, true_points1 = pair.points0[0, rows].numpy(), pair.points1[0, rows].numpy()
            features = [matchers["photometric"].extract(image[0]) for image in (pair.image0, pair.image1)]
            for name, matcher in matchers.items():
                found = matcher.match_features(features[0], features[1], points=points0)
                kept = found.is_mutual & (found.scores >= 0.5)
                errors[kind][name] += np.linalg.norm(found.points1 - true_points1, axis=1)[kept].tolist()
    return errors


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=36)
    parser.add_argument("--weights", default="geometric")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    errors = measure(arguments.folder, arguments.pairs, arguments.weights)
    errors["all"] = {
        name: [value for kind in KINDS for value in errors[kind][name]]
        for name in ("sub-cell", "photometric")
    }
    rows = [
        {
            "pairs": kind,
            "matches": name,
            "count": len(values),
            "median_px": round(float(np.median(values)), 3) if values else None,
            **{
                f"within {limit:g} px": round(float(np.mean(np.array(values) <= limit)), 3)
                for limit in LIMITS
            },
        }
        for kind, by_name in errors.items()
        for name, values in by_name.items()
    ]
    if arguments.json:
        print(json.dumps({"rows": rows, "seconds": round(time.perf_counter() - begin, 1)}))
        return
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(str(value) for value in row.values()))


if __name__ == "__main__":
    main()
