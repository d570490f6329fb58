"""Start-up: how long fresh processes take until they have said or matched something."""

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

from ucn.bench.report import Column, Part, Table, Target
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
    """Help, imports and first matches, each in processes of its own."""
    rounds = 2 if settings.is_quick else 7
    settings.report("start-up: help")
    run_python("-m", "ucn", "--help")  # reads all files once, so that the disk does not count
    helps = statistics.median(_time_process("-m", "ucn", "--help") for _ in range(rounds))
    nothing = statistics.median(_time_process("-c", "pass") for _ in range(rounds))
    settings.report("start-up: imports")
    imports = [json.loads(run_python("-c", _IMPORTS)) for _ in range(1 + min(rounds, 5))][1:]
    torch_seconds, own_seconds = (statistics.median(column) for column in zip(*imports, strict=True))
    settings.report("start-up: first match")
    matching = _time_matching(settings)
    rows = (
        ("python -c pass", nothing),
        ("ucn --help", helps),
        ("import torch", torch_seconds),
        ("import ucn, and ucn.Matcher, beyond that", own_seconds),
        ("a fresh process that matches once, from start to end", matching[0]),
        ("of it imports and weights", matching[1]),
        ("of it the first match", matching[2]),
        ("the second match of the same process", matching[3]),
    )
    height, width = settings.image_hw
    notes = (
        f"Medians of {rounds} processes, of imports {len(imports)}; matching is of one process, the bundled "
        f"pair at {width} × {height}.",
    )
    asked = (
        Target("ucn --help", "two cores", helps, 0.3, "s", is_least=False),
        Target("import ucn beyond torch", "two cores", own_seconds, 1.0, "s", is_least=False),
    )
    return Part(
        (Table("Start-up of fresh processes", (Column("what"), Column("time", "s")), rows, notes),), asked
    )


def _time_matching(settings: Settings) -> tuple[float, float, float, float]:
    """Seconds of a process without its second match, until it is ready, and of its first and second match."""
    pair = example_pair()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("0.png", "1.png")]
        height, width = settings.image_hw
        for source, path in zip((pair.image0_path, pair.image1_path), paths, strict=True):
            Image.open(source).resize((width, height), Image.Resampling.LANCZOS).save(path)
        names = [*map(str, paths), settings.weights, str(settings.device)]
        started = time.perf_counter()
        loaded, first, second = json.loads(run_python("-c", _MATCHES, *names))
        whole = time.perf_counter() - started
    return whole - second, loaded, first, second


def _time_process(*arguments: str) -> float:
    started = time.perf_counter()
    run_python(*arguments)
    return time.perf_counter() - started


def run_python(*arguments: str) -> str:
    """What a fresh Python prints, with this process's paths.

    Raises:
        UcnError: it failed.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UcnError(
            f"a fresh process failed, so start-up cannot be measured: {done.stderr.strip()[-300:]}"
        )
    return done.stdout
