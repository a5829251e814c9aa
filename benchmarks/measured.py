"""What every benchmark states beside its figures: the machine, the date and the versions."""

import argparse
import platform
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
    """Date, processor, cores, GPU (if torch is among the packages and there is one) and versions."""
    cpu = Path("/proc/cpuinfo")
    models = [line for line in cpu.read_text().splitlines() if "model name" in line] if cpu.is_file() else []
    found = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "cpu": models[0].split(":")[1].strip() if models else platform.processor() or platform.machine(),
        "cores": available_cores(),
        "versions": {"python": platform.python_version()} | dict(_versions(packages)),
    }
    if "torch" in packages:
        import torch

        if torch.cuda.is_available():
            found["gpu"] = torch.cuda.get_device_name()
    return found


def _versions(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    for package in packages:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
