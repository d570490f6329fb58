"""Shared by the scripts: the argument parser, and how commands are timed and results printed."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from typing import Any


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows a script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def limit_to_cpu(threads: int) -> dict[str, str]:
    """The environment of a process that uses this many threads and no GPU."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}


def print_result(result: Mapping[str, Any], threads: int, is_json: bool) -> None:
    """Prints results and the machine, as lines or one JSON object."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    shown = {**result, "threads": threads, "machine": machine}
    if is_json:
        print(json.dumps(shown))
        return
    for name, value in shown.items():
        print(f"{name:<28}{value}")
