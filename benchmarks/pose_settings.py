"""Relative pose errors by threshold and number of matches, on frames that no benchmark contains.

python benchmarks/pose_settings.py FOLDER [--methods A,B] [--limit N] [--cache DIR] [--json]

FOLDER holds KITTI odometry; frames 600 to 639 of sequence 05 are used.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from command_line import make_parser

from ucn.data.checking import spread
from ucn.evaluate.core.benchmark_pairs import ALL
from ucn.evaluate.motion.predictions import MOTION_BENCHMARKS, MotionPair, MotionVariant, predict_frames
from ucn.evaluate.motion.scoring import score_motions
from ucn.paper.registry import METHODS

COUNTS = (250, 500, 1000, 2000)
THRESHOLDS = (0.5, 1.0, 2.0)


def keep_best(pairs: Sequence[MotionPair], count: int) -> list[MotionPair]:
    """The pairs with the best `count` matches of each variant."""
    return [
        replace(
            pair,
            matches=tuple(
                replace(found, points0=found.points0[:count], points1=found.points1[:count])
                for found in pair.matches
            ),
        )
        for pair in pairs
    ]


def measure(folder: Path, methods: Sequence[str], limit: int, cache: Path) -> list[dict[str, float | str]]:
    """Mean errors of each variant with poselib, at all counts and thresholds."""
    benchmark = replace(MOTION_BENCHMARKS["kitti-odometry-train"], max_matches=max(COUNTS))
    variants = [
        MotionVariant(method, is_aligned)
        for method in METHODS.load_sparse(methods).methods
        for is_aligned in (False, True)
    ]
    opened = benchmark.open(folder)
    pairs = predict_frames(benchmark, opened, spread(len(opened), limit), variants, cache)
    rows: list[dict[str, float | str]] = []
    for count in COUNTS:
        for threshold in THRESHOLDS:
            results = score_motions(keep_best(pairs, count), variants, ["poselib"], threshold)
            for score in results.scores:
                if score.group == ALL:
                    name = f"{score.method}, aligned" if score.is_aligned else score.method
                    rows.append(
                        {
                            "method": name,
                            "max_matches": count,
                            "threshold": threshold,
                            "rotation": round(score.rotation_mean, 4),
                            "translation": round(score.translation_mean, 3),
                            "matches": round(score.matches),
                            "failures": score.failures,
                        }
                    )
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default="geometric,sift,sift-ratio")
    parser.add_argument("--limit", type=int, default=60, help="number of pairs, evenly spread")
    parser.add_argument("--cache", type=Path, help="folder for cached matches")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = arguments.cache or Path(folder)
        rows = measure(arguments.folder, arguments.methods.split(","), arguments.limit, cache)
    if arguments.json:
        print(json.dumps({"pairs": arguments.limit, "rows": rows}))
        return
    print("method | max. matches | threshold, px | rotation, ° | translation, ° | matches | failures")
    for row in rows:
        print(" | ".join(str(value) for value in row.values()))


if __name__ == "__main__":
    main()
