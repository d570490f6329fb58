"""Where published results come from: commit, version and weights of each report, and the files measured.

UCN_DATA=DIR python benchmarks/result_sources.py docs/results [--revision main]

Writes sources.md, and files.csv with name, size and the start of the SHA-256 of every test image and
ground-truth file, so that the same files can be told from others. The commit is the last one of a revision
that changed a report's JSON.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from command_line import make_parser
from page_text import wrap
from result_weights import find_rows

from ucn.evaluate.core.benchmark_pairs import CUB_PAIRS
from ucn.files.reading import hash_file
from ucn.files.writing import write_bytes_atomically

# Folder in $UCN_DATA, patterns of the files that are measured, and what they are of the public set.
DATA = (
    ("hpatches", ("*/*",), "49 of 116 sequences, reduced to a longest side of 640 px; homographies rescaled"),
    (
        "cub",
        ("CUB_200_2011/images/*/*",),
        "CUB-200-2011: 1,000 of 5,794 test images, those of cub_test_pairs.csv, reduced to a longest side of "
        "160 px, parts scaled with them; the 5,994 training images likewise",
    ),
    (
        "helen_faces",
        ("*",),
        "Helen: 500 crops of faces of at most 256 px; by name the last fifth is measured",
    ),
    ("pf_willow", ("**/*",), "PF-WILLOW: 30 images of 3 of the 10 sub-classes"),
    ("kitti_flow_2015", ("training/**/*",), "KITTI flow 2015: training pair 000000"),
    ("sintel", ("training/**/*",), "MPI Sintel: alley_1, frames 2 and 3, clean and final"),
    ("middlebury_flow", ("**/*",), "Middlebury flow: Grove2 and RubberWhale"),
    ("middlebury_stereo", ("**/*",), "Middlebury stereo 2001: six pairs"),
    (
        "kitti_odometry",
        ("**/*15[0-3][0-9].*",),
        "KITTI odometry, sequence 05, frames 1500 to 1539: left grey images, every fourth also right, "
        "stored as JPEG instead of PNG",
    ),
    ("kitti_raw", ("**/*",), "KITTI raw, 2011_09_26: three consecutive frames with scans, without GPS/IMU"),
    (
        "multiview",
        ("*/**/*",),
        "32 scenes with COLMAP models, 640 px, WebP; its README.csv has sources",
    ),
    ("strecha", ("**/*",), "fountain-P11, 11 views reduced to 1,024 px"),
)


def list_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The measured files of a set, sorted."""
    found = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    if folder.name == "cub":
        listed = {name for line in CUB_PAIRS.read_text(encoding="utf-8").split() for name in line.split(",")}
        return [path for path in found if f"{path.parent.name}/{path.stem}" in listed]
    return found[-len(found) // 5 :] if folder.name == "helen_faces" else found


def describe_reports(results: Path, revision: str) -> Iterator[str]:
    """A row for each report: commit, version, weights, data."""
    weights = find_rows(results)
    for path in sorted(results.glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        command = ["git", "log", "-1", "--format=%h", revision, "--", str(path)]
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        version = (
            report.get("versions", {}).get("ucn", "–") if isinstance(report.get("versions"), dict) else "–"
        )
        rows = dict.fromkeys(f"{name} {sha256[:8]}" for name, sha256, _ in weights.get(path.stem, []))
        digest = (report.get("data_sha256") or "–")[:8]
        yield (
            f"| [{path.stem}]({path.stem}.md) | {commit or 'new'} | {version.split(' (')[0]} | {digest} | "
            f"{', '.join(rows) or '–'} |"
        )


def main() -> None:
    """Writes the page and the list."""
    parser = make_parser(__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--revision", default="HEAD")
    given = parser.parse_args()
    root = Path(os.environ["UCN_DATA"])
    lines = ["# Sources of the results", ""]
    lines += wrap(
        "Every report names its command, protocol, versions and the hashes of weights and points. This page, "
        "made by `python benchmarks/result_sources.py docs/results`, collects them: the commit that last "
        "wrote a report's JSON, the version of ucn, the hash of names and sizes of the files measured, and "
        "the rows that are networks, with the start of their SHA-256. Networks of one name and several "
        "hashes: [which are the same](../development/evaluation.md#weights-of-the-published-reports)."
    )
    lines += ["", "| report | commit | ucn | data | weights |", "|---|---|---|---|---|"]
    lines += [*describe_reports(given.results, given.revision), "", "## Data", ""]
    lines += wrap(
        "None of these sets is distributed here. [files.csv](files.csv) has name, size and the start of the "
        "SHA-256 of each file; the digest below is the SHA-256 of a set's rows in it."
    )
    lines += ["", "| folder | of the public set | files | digest |", "|---|---|---|---|"]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["file", "bytes", "sha256"])
    for name, patterns, what in DATA:
        rows = [
            (path.relative_to(root).as_posix(), path.stat().st_size, hash_file(path)[:16])
            for path in list_files(root / name, patterns)
        ]
        writer.writerows(rows)
        digest = hashlib.sha256("\n".join(",".join(map(str, row)) for row in rows).encode()).hexdigest()
        lines.append(f"| `{name}` | {what} | {len(rows):,} | {digest[:16]} |")
    page = ("\n".join(lines) + "\n").encode()
    write_bytes_atomically(given.results / "sources.md", page, overwrite=True)
    write_bytes_atomically(given.results / "files.csv", table.getvalue().encode(), overwrite=True)


if __name__ == "__main__":
    main()
