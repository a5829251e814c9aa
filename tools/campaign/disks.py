"""Run commands on a disk that fills up, or that cannot be written; with space again, they must end as if undisturbed.

The disk is a tmpfs, which root can mount, and anyone under ``unshare --map-root-user --mount``.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cases import Case
from tries import FAILURES as CRASHES
from tries import REFUSED, RIGHT, classify

SIZE = 64 * 2**20
"""Bytes of the disk; the material takes less than one."""
FILES = 4096
"""Inodes of the disk."""
FILLER = "filler"
LEFT, LOST, SILENT = "leftovers", "lost", "wrong result"
FAILURES = (*CRASHES, LEFT, LOST, SILENT)
READ_ONLY, NO_SPACE, NO_FILES = "read-only", "no space", "no inodes"


@dataclass(frozen=True)
class Full:
    """One command on a disk that refused to be written."""

    case: str
    how: str
    free: int
    """Bytes or inodes that were free."""
    outcome: str
    said: str


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Mount a small disk on ``folder``."""
    _mount("-t", "tmpfs", "-o", f"size={SIZE},nr_inodes={FILES}", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _mount(*arguments: str) -> None:
    if subprocess.run(["mount", *arguments]).returncode:
        raise SystemExit("--disks mounts file systems: run it as root, or under unshare --map-root-user --mount")


def needed(case: Case, material: Path, folder: Path) -> tuple[int, int]:
    """Return the bytes and inodes that the command adds to a disk."""
    with disk(folder):
        case.copy(material, folder)
        before = os.statvfs(folder)
        case.run(case.command, folder)
        after = os.statvfs(folder)
    return (before.f_bfree - after.f_bfree) * before.f_frsize, before.f_ffree - after.f_ffree


def disturb(
    case: Case, expected: dict[str, Any], needs: tuple[int, int], rng: Random, material: Path, folder: Path
) -> Full:
    """Run the command with less space than it needs, or none; then again with enough."""
    how = rng.choice((READ_ONLY, NO_SPACE, NO_SPACE, NO_SPACE, NO_SPACE, NO_FILES))
    with disk(folder):
        case.copy(material, folder)
        free = int(rng.random() ** 2 * 1.3 * needs[how == NO_FILES])
        _refuse(folder, how, free)
        ended = case.run(case.command, folder)
        outcome = classify(case, ended, expected, folder, sealed=True)
        if outcome == RIGHT:
            return Full(case.name, how, free, outcome, "")
        left = [path for path in folder.rglob(".*") if path.suffix in (".tmp", ".old", ".lock")]
        if how == READ_ONLY:
            _mount("-o", "remount,rw", str(folder))
        (folder / FILLER).unlink(missing_ok=True)
        for path in folder.glob(f"{FILLER}-*"):
            path.unlink()
        said = (ended.stderr.strip().splitlines() or [""])[-1][-400:]
        if outcome != REFUSED:
            return Full(case.name, how, free, outcome, ended.stderr[-2000:])
        if left:
            return Full(case.name, how, free, LEFT, f"{said} {sorted(map(str, left))}")
        again = case.run(case.command, folder)
        if again.code:
            return Full(case.name, how, free, LOST, f"{said} THEN exit {again.code}: {again.stderr[-500:]}")
        same = case.result(folder, again.stdout) == expected
        return Full(case.name, how, free, REFUSED if same else SILENT, said)


def _refuse(folder: Path, how: str, free: int) -> None:
    """Leave ``free`` bytes or inodes, or remount the disk so that it cannot be written."""
    if how == READ_ONLY:
        _mount("-o", "remount,ro", str(folder))
    elif how == NO_FILES:
        for k in range(os.statvfs(folder).f_ffree - free):
            (folder / f"{FILLER}-{k}").touch()
    else:
        with (folder / FILLER).open("wb", buffering=0) as file:
            with suppress(OSError):  # full
                while file.write(bytes(2**16)):
                    pass
            file.truncate(max(0, file.tell() - free))
