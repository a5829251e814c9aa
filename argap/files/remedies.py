"""What to do about a missing or damaged file: one table by name, for every reader."""

from pathlib import Path

SCORED = "repeat its `argap score` command"
COMPARED = "run the command that wrote it again: `argap score`, `argap compare` or `argap suite run`"
SUITE = "repeat its `argap suite run` command, or choose another `out` where members' runs are gone"
REMEDIES = {
    "tokens/part-*.parquet": f"{SCORED}, which makes damaged parts again",
    "samples/part-*.parquet": "remove it and run the same `argap recall` command again",
    "labels.json": SCORED,
    "labels.parquet": SCORED,
    "windows.parquet": SCORED,
    "documents.parquet": SCORED,
    "labels/tokenizer*.json": SCORED,
    "gap.json": COMPARED,
    "cells.parquet": COMPARED,
    "examples.json": COMPARED,
    "members.json": SUITE,
    "curve.parquet": SUITE,
    "positions.parquet": SUITE,
    "copies.parquet": SUITE,
    "distances.parquet": SUITE,
    "distance_sums.parquet": SUITE,
    "prevalence.parquet": SUITE,
    "logs.parquet": SUITE,
    "trajectory.parquet": SUITE,
    "mqar.json": "remove it and run `argap suite run` again",
    "mqar/*.json": "remove it and run `argap suite run` again",
    "index.json": "copy it again, or delete its folder and repeat `argap index build`",
    "csr.json": "delete its folder, which is made again from the parts",
    "speed.json": "remove it, or choose another `out`",
    "tokens.json": "remove its folder and run again",
    "tokens.bin": "remove its folder and run again",
    "runs.jsonl": "remove it, and the sweep trains it again",
    "runs/*.json": "remove it, and the sweep trains it again",
    "references.json": "correct or remove it",
    "checksums.json": "remove the file to read the folder unchecked",
}
"""By the end of a path, with the wildcards of `pathlib.PurePath.match`; the first that matches counts."""


def remedy_for(path: Path) -> str:
    """Return the end of an error about a file: a semicolon and what to run; empty for files that users bring.

    >>> remedy_for(Path("runs/score/cells.parquet")).partition(": ")[0], remedy_for(Path("text.parquet"))
    ('; run the command that wrote it again', '')
    """
    return next((f"; {what}" for pattern, what in REMEDIES.items() if path.match(pattern)), "")
