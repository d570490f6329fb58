"""Checks a result of `ucn bench` against development targets; exits with 1 where one is missed.

python benchmarks/check_targets.py benchmarks/results/h200.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ucn.bench.growth import fit_exponent
from ucn.bench.report import Part
from ucn.bench.run import read_parts

_EXPONENT_TOLERANCE = 0.15
"""Allowed excess of a fitted exponent over that of the theoretical work."""


@dataclass(frozen=True)
class Target:
    """A limit of one cell of a table.

    Attributes:
        device: that the target is for, 'cuda' (an H200) or 'cpu' (two cores).
        part: of `ucn bench`.
        row: first cells of the row.
        column: name of the column.
        limit: inclusive.
        is_minimum: whether the value must be at least `limit`; else at most.
    """

    device: str
    part: str
    row: tuple[str, ...]
    column: str
    limit: float
    is_minimum: bool = True


TARGETS = (
    Target("cuda", "knn", ("torch.cdist(q, b).min(1)", "random"), "ratio to ucn", 15.0),
    Target("cuda", "knn", ("bfloat16 product, max", "random"), "ratio to ucn", 2.5),
    Target("cuda", "knn", ("ucn, fused", "random"), "extra memory", 8.0, is_minimum=False),
    Target("cuda", "knn", ("ucn, fused", "random"), "equal to float64", 0.9999),
    Target("cuda", "knn", ("ucn, fused, excluding 16 px", "random"), "ratio to ucn", 1.0, is_minimum=False),
    Target("cuda", "transformer", ("bfloat16", "forward"), "plain ÷ ucn", 3.0),
    Target("cuda", "transformer", ("bfloat16", "forward"), "plain ÷ ucn, memory", 5.0),
    Target("cuda", "transformer", ("bfloat16", "forward and backward"), "plain ÷ ucn", 3.0),
    Target("cuda", "transformer", ("bfloat16", "forward and backward"), "plain ÷ ucn, memory", 5.0),
    Target("cuda", "encode", ("fast path, copies in and out included",), "time", 3.0, is_minimum=False),
    Target("cuda", "train", ("the paper's, hardest negatives", "eager"), "steps", 23.0),
    Target("cpu", "knn", ("faiss-cpu IndexFlatIP", "random"), "ratio to ucn", 1.0),
    Target("cpu", "knn", ("cv2.BFMatcher", "random"), "ratio to ucn", 2.5),
    Target("cpu", "knn", ("ucn, nearest()", "random"), "equal to float64", 0.9999),
    Target("cpu", "encode", ("paper, no transformer, fast path",), "eager ÷ fast path", 2.5),
    Target("cpu", "encode", ("paper, fast path",), "eager ÷ fast path", 2.5),
    Target("cpu", "encode", ("geometric-lite, fast path",), "time", 90.0, is_minimum=False),
    Target("cpu", "startup", ("ucn --help",), "time", 0.3, is_minimum=False),
    Target("cpu", "startup", ("import ucn, and ucn.Matcher, after torch",), "time", 1.0, is_minimum=False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("result", type=Path, help="JSON of `ucn bench -o`")
    path = parser.parse_args().result
    result = json.loads(path.read_text(encoding="utf-8"))
    lines = list(check_targets(read_parts(result, str(path)), result["machine"]["device"]))
    print("\n".join(lines))
    missed = sum(line.startswith("missed") for line in lines)
    if missed:
        raise SystemExit(f"{missed} of {len(lines)} targets are missed")


def check_targets(parts: Mapping[str, Part], device: str) -> Iterator[str]:
    """A line for each target whose value was measured: whether it is met, value and limit."""
    for target in TARGETS:
        if target.device != device or target.part not in parts:
            continue
        for table in parts[target.part].tables:
            for row in table.rows:
                cells = {column.name: cell for column, cell in zip(table.columns, row, strict=True)}
                value = cells.get(target.column)
                if row[: len(target.row)] == target.row and isinstance(value, (int, float)):
                    name = f"{target.part}: {', '.join(target.row)}, {target.column}"
                    yield _format_line(name, value, target.limit, target.is_minimum)
    for table in parts["growth"].tables if "growth" in parts else ():
        sizes, times, work = ([float(row[column] or 0) for row in table.rows] for column in (0, 1, 5))
        limit = fit_exponent(sizes, work) + _EXPONENT_TOLERANCE
        yield _format_line(f"growth: {table.title}, exponent", fit_exponent(sizes, times), limit, False)


def _format_line(name: str, value: float, limit: float, is_minimum: bool) -> str:
    is_met = value >= limit if is_minimum else value <= limit
    bound = "at least" if is_minimum else "at most"
    return f"{'met' if is_met else 'missed':<6}  {name}: {value:.4g}, {bound} {limit:.4g}"


if __name__ == "__main__":
    main()
