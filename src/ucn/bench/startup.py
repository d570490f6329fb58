"""Start-up time of fresh processes: help, imports, and the first match."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from ucn.bench.report import Column, Part, Table
from ucn.bench.settings import Settings
from ucn.data.example import example_pair
from ucn.errors import UcnError

_IMPORTS = """
import json, time
begin = time.perf_counter()
import torch
torch_done = time.perf_counter()
import ucn
ucn.Matcher
print(json.dumps([torch_done - begin, time.perf_counter() - torch_done]))
"""

_MATCHES = """
import json, sys, time
begin = time.perf_counter()
import ucn
matcher = ucn.Matcher.from_pretrained(sys.argv[3], device=sys.argv[4])
loaded = time.perf_counter()
matcher.match(sys.argv[1], sys.argv[2])
first = time.perf_counter()
matcher.match(sys.argv[1], sys.argv[2])
print(json.dumps([loaded - begin, first - loaded, time.perf_counter() - first]))
"""


def measure(settings: Settings) -> Part:
    """Measures each command in several fresh processes."""
    rounds = 2 if settings.is_quick else 7
    settings.report("start-up: help")
    run_python("-m", "ucn", "--help")  # fills the disk cache
    helps = statistics.median(_time_process("-m", "ucn", "--help") for _ in range(rounds))
    nothing = statistics.median(_time_process("-c", "pass") for _ in range(rounds))
    settings.report("start-up: imports")
    imports = [json.loads(run_python("-c", _IMPORTS)) for _ in range(1 + min(rounds, 5))][1:]
    torch_seconds, own_seconds = (statistics.median(column) for column in zip(*imports, strict=True))
    settings.report("start-up: first match")
    total, loading, first, second = _time_matching(settings)
    rows = (
        ("python -c pass", nothing),
        ("ucn --help", helps),
        ("import torch", torch_seconds),
        ("import ucn, and ucn.Matcher, after torch", own_seconds),
        ("a fresh process that matches one pair, total", total),
        ("of which imports and weights", loading),
        ("of which the first match", first),
        ("a second match in the same process", second),
    )
    height, width = settings.image_hw
    notes = (
        f"Medians of {rounds} processes, for imports {len(imports)}; matching is one process, on the bundled "
        f"pair at {width} × {height}.",
    )
    return Part(
        (Table("Start-up of fresh processes", (Column("command"), Column("time", "s")), rows, notes),)
    )


def _time_matching(settings: Settings) -> tuple[float, float, float, float]:
    """Seconds of a process without its second match, of loading, and of the first and second match."""
    pair = example_pair()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("0.png", "1.png")]
        height, width = settings.image_hw
        for source, path in zip((pair.image0_path, pair.image1_path), paths, strict=True):
            Image.open(source).resize((width, height), Image.Resampling.LANCZOS).save(path)
        names = [*map(str, paths), settings.weights, str(settings.device)]
        started = time.perf_counter()
        loading, first, second = json.loads(run_python("-c", _MATCHES, *names))
        total = time.perf_counter() - started
    return total - second, loading, first, second


def _time_process(*arguments: str) -> float:
    started = time.perf_counter()
    run_python(*arguments)
    return time.perf_counter() - started


def run_python(*arguments: str) -> str:
    """Standard output of a fresh Python process with the module search path of this one.

    Raises:
        UcnError: the process failed.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UcnError(
            f"a fresh process failed, so start-up cannot be measured: {done.stderr.strip()[-300:]}"
        )
    return done.stdout
