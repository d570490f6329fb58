"""Wall time and peak memory of one `ucn match` on a CPU, imports included.

python benchmarks/match_cost.py [--threads 2] [--repeats 3] [--json]

The pair is the bundled one, resized to 640×480.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from command_line import limit_to_cpu, make_parser, print_result
from PIL import Image

from ucn.data.example import example_pair


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    pair = example_pair()
    environment = limit_to_cpu(arguments.threads)
    seconds, report = [], {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("0.png", "1.png")]
        for source, path in zip((pair.image0_path, pair.image1_path), paths, strict=True):
            Image.open(source).resize((640, 480), Image.Resampling.LANCZOS).save(path)
        for _ in range(arguments.repeats):
            started = time.perf_counter()
            command = [sys.executable, "-m", "ucn", "match", *map(str, paths), "--json", "--device", "cpu"]
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            seconds.append(time.perf_counter() - started)
            report = json.loads(done.stdout)
    # The largest child of this process; kilobytes on Linux, bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    result = {
        "matches": report["matches"],
        "wall_seconds": round(statistics.median(seconds), 2),
        "stage_seconds": report["seconds"],
        "peak_memory_gb": round(peak / 1e9, 3),
    }
    print_result(result, arguments.threads, arguments.json)


if __name__ == "__main__":
    main()
