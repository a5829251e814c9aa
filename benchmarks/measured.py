"""What benchmarks share: the machine, date and versions beside their figures, and measuring in a process of its own."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from argap.ahead import available_cores


def parser(about: str | None) -> argparse.ArgumentParser:
    """A parser with ``--json``. ``about``: the script's docstring."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="file to write the results to")
    return made


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Date, processor, cores, GPU (if there is one; CUDA is not started) and versions."""
    cpu = Path("/proc/cpuinfo")
    models = [line for line in cpu.read_text().splitlines() if "model name" in line] if cpu.is_file() else []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "cpu": models[0].split(":")[1].strip() if models else platform.processor() or platform.machine(),
        "cores": available_cores(),
        **({"gpu": gpus[0]} if gpus else {}),
        "versions": {"python": platform.python_version()} | dict(_versions(packages)),
    }


def _versions(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    for package in packages:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def apart(*arguments: str) -> dict[str, Any]:
    """Run this script with ``arguments`` in a process of its own; the JSON in the last line that it prints.

    Raises `RuntimeError` with what it wrote to stderr if it fails.
    """
    done = subprocess.run([sys.executable, sys.argv[0], *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"exit {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def seconds_since_start() -> float:
    """Seconds since this process started, which include what it imported before the call."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Peak memory of this process in bytes. `getrusage` would report the parent's peak if that is larger."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
