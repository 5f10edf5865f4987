"""What a number was measured on: CPU, its features and frequency, load, torch; all read, nothing set."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

FEATURES = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "amx_tile")


def describe(threads: int) -> dict[str, Any]:
    """The fixed part, stored once per verdict."""
    fields = cpu_fields()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "features": [f for f in FEATURES if f in flags],
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }


def present() -> dict[str, Any]:
    """The part that moves: frequency where the machine tells, load, free memory. A missing value is None."""
    mhz = cpu_fields().get("cpu MHz")
    return {
        "mhz": float(mhz) if mhz else None,
        "load": os.getloadavg()[0],
        "free_mib": _free_mib(),
    }


def cpu_fields() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _free_mib() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return None
