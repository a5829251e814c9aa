"""Try commands with one altered file, and classify what they did with it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cases import Case
from forked import Ended
from mutations import UNSEALED, mutate

RIGHT, REFUSED, OTHER, LONG = "right result", "one-line refusal", "what the file now says", "long work, with progress"
SILENT, TRACEBACK, HANG, CRASH, LINES, LEFT = (
    "silent change", "traceback", "hang", "crash", "more than one line", "file outside",
)  # fmt: skip
FAILURES = (SILENT, TRACEBACK, HANG, CRASH, LINES, LEFT)


@dataclass(frozen=True)
class Try:
    """One altered file and the outcome."""

    case: str
    file: str
    how: str
    outcome: str
    said: str


def attempt(case: Case, expected: dict[str, Any], rng: Random, material: Path, folder: Path) -> Try:
    """Copy the material to ``folder``, alter one file, run the command."""
    case.copy(material, folder)
    path = rng.choice(case.files(folder))
    return run_altered(case, expected, folder, path, mutate(rng, path))


def run_altered(case: Case, expected: dict[str, Any], folder: Path, path: Path, how: str) -> Try:
    """Run the command in ``folder``, where ``path`` is altered."""
    name = str(path.relative_to(folder))
    sealed = UNSEALED not in how and any(path.match(pattern) for pattern in case.sealed.split())
    outside = sorted(other.name for other in folder.parent.iterdir())
    ended = case.run(case.command, folder)
    outcome = classify(case, ended, expected, folder, sealed=sealed)
    if sorted(other.name for other in folder.parent.iterdir()) != outside:
        outcome = LEFT
    said = (ended.stderr.strip().splitlines() or [""])[-1][-300:]
    return Try(case.name, name, how, outcome, said)


def classify(case: Case, ended: Ended, expected: dict[str, Any], folder: Path, *, sealed: bool) -> str:
    """Classify what the command did."""
    if ended.code is None:
        return LONG if ended.alive else HANG
    if ended.code < 0 or ended.code == 99:
        return CRASH
    if ended.code == 70 or "Traceback" in ended.stderr:
        return TRACEBACK
    if ended.code != 0:
        failures = [line for line in ended.stderr.splitlines() if line.startswith("argap: ")]
        return REFUSED if ended.code == 2 or (failures and ended.stderr.splitlines()[-1] == failures[-1]) else LINES
    try:
        same = case.result(folder, ended.stdout) == expected
    except (ValueError, OSError):
        return SILENT
    return RIGHT if same else SILENT if sealed else OTHER


def undisturbed(case: Case, material: Path, folder: Path) -> dict[str, Any]:
    """Return the result without an alteration. Raises `RuntimeError` if it differs between two runs."""
    results = []
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        case.copy(material, folder)
        ended = case.run(case.command, folder)
        if ended.code != 0:
            raise RuntimeError(f"{case.name}: exit {ended.code}: {ended.stderr}")
        results.append(case.result(folder, ended.stdout))
    if results[0] != results[1] or not results[0]:
        first, second = (json.dumps(result, indent=1).splitlines() for result in results)
        differ = [pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]][:3]
        raise RuntimeError(f"{case.name}: two undisturbed runs differ: {differ}")
    return results[0]
