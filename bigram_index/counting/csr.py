"""The counts in the form used by lookups: compressed sparse rows with a directory, in memory or memory-mapped.

It is only a cache: everything in it is computed from the Parquet parts. A small index is read into memory at its first
lookup. A larger one is written once as ``.npy`` files, beside the parts if that folder is writable, else into the
user's cache folder, and memory-mapped from then on.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from argap.bigram_index.counting.sorted_runs import Run, row_ranges
from argap.bigram_index.manifest import FILE, Manifest, refuse_existing
from argap.bigram_index.parquet_parts import ParquetRun
from argap.errors import ArgapError, FormatError
from argap.files import checksums
from argap.files.arrays import map_integers
from argap.files.atomic import replacing_folder
from argap.files.checksums import Checksums
from argap.files.regular import LARGEST_JSON, check_regular, is_there
from argap.records import Record, read_record, write_record

FOLDER = "csr"
IN_MEMORY = 2**23
"""Distinct bigrams up to which an index is read into memory: about 50 MB in a fraction of a second."""
BUCKET = 2  # entries of a row's bucket, on average
PIECE = 2**22  # entries handled at a time

REMEDY = f"delete the folder {FOLDER}, it is made again from the parts"
STATE = "csr.json"


class CsrState(Record, frozen=True):
    """``csr.json``: the index that the rows belong to, and their files."""

    index: str
    """SHA-256 (hex) of its ``index.json``."""
    files: dict[str, Checksums]


@dataclass(frozen=True)
class Csr:
    """Counts by row, with a directory into each row.

    The ids of a row are cut into buckets of ``2 ** shift[row]`` ids; bucket ``k`` of the row, counted from
    ``base[row]`` on, holds the entries ``bucket[base[row] + k]:bucket[base[row] + k + 1]``.
    """

    indptr: np.ndarray
    """`[vocab + 1]` int64: row ``f`` lies at ``indptr[f]:indptr[f + 1]``."""
    second: np.ndarray
    """`[distinct]` uint16 if the vocabulary fits, else uint32; ascending within each row."""
    count: np.ndarray
    """`[distinct]` uint32 if all counts fit, else int64."""
    shift: np.ndarray
    """`[vocab]` uint8."""
    base: np.ndarray
    """`[vocab + 1]` int64."""
    bucket: np.ndarray
    """`[base[-1] + 1]` uint32 if the entries' positions fit, else int64."""


Allocate = Callable[[str, int, Any], np.ndarray]


def from_run(run: Run, largest_count: int, allocate: Allocate = lambda _, *array: np.empty(*array)) -> Csr:
    """Build the rows of ``run`` with a directory, in arrays from ``allocate(name, size, type)``."""
    vocab_size, entries = len(run.indptr) - 1, int(run.indptr[-1])
    sizes = np.diff(run.indptr)
    # The widest buckets, a power of two of ids, that would hold BUCKET entries if a row's entries were spread evenly.
    wanted = np.maximum(sizes // BUCKET, 1)
    shifts = np.ceil(np.log2(vocab_size / wanted)).clip(min=0).astype(np.int64)
    bases = np.concatenate([[0], np.cumsum(((vocab_size - 1) >> shifts) + 1)])
    csr = Csr(
        indptr=allocate("indptr", vocab_size + 1, np.int64),
        second=allocate("second", entries, np.uint16 if vocab_size <= 2**16 else np.uint32),
        count=allocate("count", entries, np.uint32 if largest_count < 2**32 else np.int64),
        shift=allocate("shift", vocab_size, np.uint8),
        base=allocate("base", vocab_size + 1, np.int64),
        bucket=allocate("bucket", int(bases[-1]) + 1, np.uint32 if entries < 2**32 else np.int64),
    )
    csr.indptr[:], csr.shift[:], csr.base[:] = run.indptr, shifts, bases
    csr.bucket[:] = 0
    for start, stop in row_ranges(run.indptr, PIECE):
        here = slice(int(run.indptr[start]), int(run.indptr[stop]))
        second, count = run.read(here.start, here.stop)
        csr.second[here], csr.count[here] = second, count
        row = np.repeat(np.arange(start, stop), sizes[start:stop])
        number = bases[row] - bases[start] + (second >> shifts[row])
        csr.bucket[bases[start] + 1 : bases[stop] + 1] = np.bincount(number, minlength=bases[stop] - bases[start])
    np.cumsum(csr.bucket, out=csr.bucket)
    return csr


def load(index: Path, manifest: Manifest) -> Csr:
    """Load the rows of the index in folder ``index``: mapped if they were written before, else computed now.

    Raises `FormatError` for a damaged part, `ArgapError` if neither folder can be written.
    """
    check_regular(index / FILE, LARGEST_JSON)
    identity = hashlib.sha256((index / FILE).read_bytes()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [index / FOLDER, cache / "argap" / "index" / identity]
    for folder in folders:
        csr = _map(folder, identity)
        if csr is not None:
            return csr
    if manifest.distinct <= IN_MEMORY:
        run = ParquetRun(index, manifest.parts, manifest.vocab_size, manifest.bigrams)
        return from_run(run, run.largest_count())
    folder = folders[0] if os.access(index, os.W_OK) else folders[1]
    write(index, manifest, folder, identity)
    csr = _map(folder, identity)
    if csr is None:
        raise ArgapError(f"{folder}: was just written and cannot be read back; expected a folder that keeps its files")
    return csr


def write(index: Path, manifest: Manifest, folder: Path, identity: str) -> None:
    """Write the rows of ``index`` to ``folder``, whole or not at all; ``csr.json`` records their checksums."""

    def allocate(name: str, size: int, dtype: Any) -> np.ndarray:
        path = temporary / f"{name}.npy"
        array = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), (size,))
        if hasattr(os, "posix_fallocate"):  # if the disk filled up under the mapping, SIGBUS would end the process
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array

    refuse_existing(folder, marker=STATE, overwrite=True)
    with replacing_folder(folder) as temporary:
        run = ParquetRun(index, manifest.parts, manifest.vocab_size, manifest.bigrams)
        from_run(run, run.largest_count(), allocate)
        files = {path.name: checksums.checksums_of(path) for path in sorted(temporary.iterdir())}
        write_record(temporary / STATE, CsrState(identity, files))


def verify(index: Path) -> None:
    """Check every byte of the rows written beside the parts, if there are any. Raises `FormatError`."""
    folder = index / FOLDER
    if is_there(folder / STATE):
        for name, expected in _read_state(folder).files.items():
            checksums.check(folder / name, expected, REMEDY)


def _read_state(folder: Path) -> CsrState:
    return read_record(folder / STATE, CsrState)


def _map(folder: Path, identity: str) -> Csr | None:
    """Map the rows in ``folder``; None if they are missing, incomplete or those of another index."""
    try:
        state = _read_state(folder)
        if state.index != identity:
            return None
        for name, expected in state.files.items():
            checksums.check_size(folder / name, expected, REMEDY)
        paths = [folder / f"{f.name}.npy" for f in fields(Csr)]
        csr = Csr(*(map_integers(path, path) for path in paths))
    except FormatError:
        return None
    return csr if _fits(csr) else None


def _fits(csr: Csr) -> bool:
    """Return whether every lookup stays inside the arrays, whoever wrote them: compiled ones do not check.

    The values of ``bucket`` are left to the lookup.
    """
    vocab_size, entries = len(csr.shift), len(csr.second)
    if not (len(csr.indptr) == len(csr.base) == vocab_size + 1 and len(csr.count) == entries):
        return False
    if (csr.indptr[0], csr.indptr[-1], csr.base[0]) != (0, entries, 0) or (csr.shift >= 64).any():
        return False
    buckets = (np.int64(vocab_size - 1) >> csr.shift.astype(np.int64)) + 1
    in_order = (csr.indptr[:-1] <= csr.indptr[1:]).all() and (csr.base[1:] - csr.base[:-1] == buckets).all()
    return bool(in_order) and len(csr.bucket) == csr.base[-1] + 1


def count_pairs(csr: Csr, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Look up the counts, `[N]` int64, of the pairs of ``first`` and ``second``, `[N]` of any integer type.

    A pair that does not occur counts 0, as does one with an id outside the vocabulary. Bisects the rows of all pairs at
    once; the reference for the compiled lookup.
    """
    known = (first >= 0) & (first < len(csr.indptr) - 1)
    row = np.where(known, first, 0).astype(np.int64)
    low = csr.indptr[row]
    end = np.where(known, csr.indptr[row + 1], low)
    high = end
    last = max(len(csr.second) - 1, 0)
    while np.any(low < high):
        middle = (low + high) // 2
        right = csr.second[np.minimum(middle, last)] < second
        right &= low < high
        low = np.where(right, middle + 1, low)
        high = np.where(right, high, np.minimum(middle, high))
    result = np.zeros(len(row), dtype=np.int64)
    inside = np.flatnonzero(low < end)
    inside = inside[csr.second[low[inside]] == second[inside]]
    result[inside] = csr.count[low[inside]]
    return result
