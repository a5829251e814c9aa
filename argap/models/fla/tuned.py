"""Recorded launch configurations of flash-linear-attention's kernels.

A file ``tuned_CLASS.json`` beside this module, written by ``benchmarks/tune.py``, holds the choices of Triton's
autotuner on one GPU of the class (`argap.kernels.launch.device_class`), with the versions of fla-core and Triton. It is
not used with another fla-core, since a kernel may have changed. It is used with another Triton; the autotuner chooses
anew where a configuration no longer fits.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from argap.files.atomic import read_json, write_json

SWITCH = "ARGAP_AUTOTUNE"
"""Environment variable; 1 ignores the records, so that the autotuner chooses on this GPU."""
PACKAGES = "fla-core", "triton"
NUMBER_OF_PROGRAMS = frozenset({"B", "H", "HV"})
"""Sequences, heads, and heads of the values: they determine how often a kernel's program runs, not what one does."""


@dataclass(frozen=True)
class Launch:
    """A kernel, and the arguments by which its autotuner distinguishes launches."""

    kernel: str
    """Module and name."""
    key: Mapping[str, Any]
    """The arguments named in the autotuner's key: sizes and switches. No kernel's key names T, and few name B."""
    dtypes: tuple[str, ...]
    """Of all tensors, in the order of the arguments."""

    def distance(self, other: "Launch") -> float:
        """Sum the absolute logarithms of the ratios of the numbers of programs.

        Infinite if the kernel, the dtypes or another part of the key differ.
        """
        if (self.kernel, self.dtypes, self.key.keys()) != (other.kernel, other.dtypes, other.key.keys()):
            return math.inf
        apart = 0.0
        for name, value in self.key.items():
            if value != other.key[name]:
                if name not in NUMBER_OF_PROGRAMS:
                    return math.inf
                apart += abs(math.log(value / other.key[name]))
        return apart


@dataclass(frozen=True)
class Tuned:
    """The choices for one class of GPUs."""

    choices: tuple[tuple[Launch, Mapping[str, Any]], ...] = ()
    """Launches and the arguments of their configurations: block sizes, warps and stages."""
    made_with: Mapping[str, Any] = field(default_factory=dict)
    """The GPU, and the versions of `PACKAGES`."""

    def chosen(self, launch: Launch) -> Mapping[str, Any] | None:
        """Return the configuration of the nearest recorded launch; None if all are infinitely far (`Launch.distance`).

        The autotuner's key names the numbers of programs for some kernels only. They hardly change the work of one
        program, nor, therefore, the best configuration.
        """
        near = [(launch.distance(known), number) for number, (known, _) in enumerate(self.choices)]
        apart, number = min(near, default=(math.inf, 0))
        return None if apart == math.inf else self.choices[number][1]

    def with_choices(self, choices: Iterable[tuple[Launch, Mapping[str, Any]]]) -> "Tuned":
        """Return these choices and ``choices``, which replace those of equal launches."""
        choices = list(choices)
        kept = [each for each in self.choices if all(each[0] != launch for launch, _ in choices)]
        return Tuned((*kept, *choices), self.made_with)

    @classmethod
    def read(cls, device_class: str) -> "Tuned":
        """Read the file of ``device_class``; empty if there is none."""
        path = path_of(device_class)
        if not path.is_file():
            return cls()
        found = read_json(path)
        choices = [
            (Launch(kernel, each["key"], tuple(each["dtypes"].split())), each["config"])
            for kernel, several in found["choices"].items()
            for each in several
        ]
        return cls(tuple(choices), found["made_with"])

    def write(self, device_class: str) -> None:
        """Write the file of ``device_class``; the same choices give the same bytes."""
        by_kernel: dict[str, list[dict[str, object]]] = {}
        for launch, config in self.choices:
            entry = {"key": _sorted(launch.key), "dtypes": " ".join(launch.dtypes), "config": _sorted(config)}
            by_kernel.setdefault(launch.kernel, []).append(entry)
        choices = {kernel: sorted(by_kernel[kernel], key=repr) for kernel in sorted(by_kernel)}
        write_json(path_of(device_class), {"made_with": self.made_with, "choices": choices})


def _sorted(mapping: Mapping[str, Any]) -> dict[str, object]:
    return dict(sorted(mapping.items()))


def path_of(device_class: str) -> Path:
    """Return the file of the choices for a class of GPUs."""
    return Path(__file__).with_name(f"tuned_{device_class}.json")


def versions() -> dict[str, str]:
    """Return the versions of those `PACKAGES` that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def tuned_for(device_class: str) -> Tuned:
    """Return the choices that this process uses on GPUs of a class.

    Empty if they were made for another fla-core, or if the user switched them off.
    """
    tuned = Tuned.read(device_class)
    of_these_kernels = tuned.made_with.get("versions", {}).get("fla-core") == versions().get("fla-core")
    return tuned if of_these_kernels and os.environ.get(SWITCH, "0") in ("", "0") else Tuned()
