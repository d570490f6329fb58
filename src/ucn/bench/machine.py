"""The machine that results were measured on: CPU, memory, threads, device, versions and load."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

from ucn.runtime.threads import count_cores

_PACKAGES = ("torch", "triton", "numpy", "opencv-contrib-python-headless", "onnxruntime", "faiss-cpu")
_BUSY_LOAD = 0.3
"""Load average per core above which a machine counts as busy."""
_BUSY_MEGABYTES = 2000
"""Used memory of a CUDA device, more than a context takes, above which others seem to use it."""


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Describes this machine for the result; `warnings` lists what may distort measurements."""
    found: dict[str, Any] = {
        "cpu": read_cpu_model(),
        "cores": count_cores(),
        "threads": torch.get_num_threads(),
        "memory_gb": _read_memory_gb(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := find_version(name))},
        "load_average": _read_load(),
        "device": device.type,
    }
    if device.type == "cuda":
        found["device_name"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
        free, total = torch.cuda.mem_get_info(device)
        found["device_memory_gb"] = round(total / 1e9, 1)
        found["device_memory_used_mb"] = round((total - free) / 1e6)
    return {**found, "warnings": find_warnings(found)}


def find_warnings(machine: dict[str, Any]) -> list[str]:
    """Reasons why this machine may measure worse than an idle one."""
    warnings = []
    load, cores = machine["load_average"], machine["cores"]
    if load is not None and load > _BUSY_LOAD * cores:
        warnings.append(
            f"the machine was busy before the benchmark began (load {load:.2f} on {cores} cores): times are "
            "too long and ratios less certain; measure again when it is idle"
        )
    if machine["threads"] != cores:
        warnings.append(f"torch used {machine['threads']} threads on {cores} cores; see OMP_NUM_THREADS")
    if machine.get("device_memory_used_mb", 0) > _BUSY_MEGABYTES:
        used = machine["device_memory_used_mb"]
        warnings.append(f"other processes seem to use the device: {used:,} MB of its memory are in use")
    return warnings


def format_machine(machine: dict[str, Any]) -> str:
    """The machine in one line."""
    cpu = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
    parts = [cpu, f"{machine['memory_gb']:.0f} GB", f"torch {machine['packages'].get('torch', '?')}"]
    if "device_name" in machine:
        parts = [machine["device_name"], f"CUDA {machine['cuda']}", *parts]
    return "; ".join(parts)


def find_version(package: str) -> str:
    """The installed version; empty where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_cpu_model() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _read_load() -> float | None:
    """The load average of the last minute; None where the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def _read_memory_gb() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (OSError, ValueError, AttributeError):
        return float("nan")
