"""Measure in separate processes, and record machine, date and versions beside the figures; shared by all benchmarks."""

import argparse
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from argap.files.atomic import write_json
from argap.runtime.threads import available_cores

DEMO = Path(__file__).resolve().parent.parent / "argap" / "demo"
"""Tokenizer and checkpoints that ship with argap."""
LLAMA_CPP = """
import json, sys, time
import numpy as np
from llama_cpp import Llama
import llama_cpp
defaults = llama_cpp.llama_cpp.llama_model_default_params
def without_repacking():
    given = defaults()
    given.use_extra_bufts = False
    return given
llama_cpp.llama_cpp.llama_model_default_params = without_repacking
"""
"""Begins the programs that run llama.cpp, whose weights then stay as the file has them."""
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def parser(about: str | None, *, json: bool = True) -> argparse.ArgumentParser:
    """Build a parser, by default with ``--json``. ``about``: the script's docstring."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if json:
        made.add_argument("--json", type=Path, help="file to write the results to")
    return made


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Describe date, processor, cores, GPU (if there is one; CUDA is not started) and versions."""
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


def save(path: Path | None, packages: Iterable[str], **results: Any) -> None:
    """Write ``results`` with the machine and its load to ``path``, unless it is None."""
    if path is not None:
        write_json(path, {"machine": machine(packages), "load_average": os.getloadavg()[0], **results})


def apart(
    function: Callable[Parameters, Returned], *arguments: Parameters.args, **options: Parameters.kwargs
) -> Returned:
    """Call a function of this script in a new process; return or raise what it does."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()


class Took(NamedTuple):
    """Seconds of some work; CPU seconds count all threads, and are less sensitive to other load."""

    wall: float
    cpu: float


def timed(work: Callable[[], Returned]) -> tuple[Took, Returned]:
    """Time some work and return its result."""
    begun, used = time.perf_counter(), time.process_time()
    result = work()
    return Took(time.perf_counter() - begun, time.process_time() - used), result


def run(command: Sequence[str]) -> tuple[Took, str]:
    """Run a command to its end; return its seconds and its output. Raises `SystemExit` with its errors if it fails."""
    before, begun = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    wall, after = time.perf_counter() - begun, os.times()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(wall, used), done.stdout


def medians(several: Iterable[Took]) -> dict[str, float]:
    """Return the medians of repetitions as fields of a row."""
    wall, cpu = (statistics.median(column) for column in zip(*several, strict=True))
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}


def seconds_since_start() -> float:
    """Return the seconds since this process started, including its imports before the call."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Return the peak memory of this process in bytes. `getrusage` would report the parent's peak if that is larger."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
