"""How threshold and number of matches change camera motion, on frames that no benchmark is measured on.

python benchmarks/pose_settings.py FOLDER [--methods A,B] [--limit N] [--cache DIR] [--json]

FOLDER is that of KITTI odometry; frames 600 to 639 of sequence 05 are used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ucn.data.checking import spread
from ucn.evaluate.motion.methods import load_motion_methods
from ucn.evaluate.motion.prediction import MOTION_BENCHMARKS, MotionPair, MotionVariant, match_frames
from ucn.evaluate.motion.scoring import ALL, score_motions

COUNTS = (250, 500, 1000, 2000)
THRESHOLDS = (0.5, 1.0, 2.0)


def keep_best(pairs: Sequence[MotionPair], count: int) -> list[MotionPair]:
    """The pairs with the best so many matches of each variant."""
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
        for method in load_motion_methods(methods).methods
        for is_aligned in (False, True)
    ]
    entries = benchmark.open(folder)
    pairs = match_frames(benchmark, entries, spread(len(entries), limit), variants, cache)
    rows: list[dict[str, float | str]] = []
    for count in COUNTS:
        for threshold in THRESHOLDS:
            scores = score_motions(keep_best(pairs, count), variants, ["poselib"], threshold)
            for figure in scores.figures:
                if figure.group == ALL:
                    name = f"{figure.method}, aligned" if figure.is_aligned else figure.method
                    rows.append(
                        {
                            "method": name,
                            "max_matches": count,
                            "threshold": threshold,
                            "rotation": round(figure.rotation_mean, 4),
                            "translation": round(figure.translation_mean, 3),
                            "matches": round(figure.matches),
                            "failures": figure.failures,
                        }
                    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default="geometric,sift,sift-ratio")
    parser.add_argument("--limit", type=int, default=60, help="pairs, evenly spread")
    parser.add_argument("--cache", type=Path, help="folder for matches; those in it are not made again")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = arguments.cache or Path(folder)
        rows = measure(arguments.folder, arguments.methods.split(","), arguments.limit, cache)
    if arguments.json:
        print(json.dumps({"pairs": arguments.limit, "rows": rows}))
        return
    print("method | matches at most | threshold, px | rotation, ° | translation, ° | matches | failures")
    for row in rows:
        print(" | ".join(str(value) for value in row.values()))


if __name__ == "__main__":
    main()
