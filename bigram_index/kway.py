"""The k-way merge of sorted runs, streaming, one range of rows after another."""

from collections.abc import Iterator, Sequence

import numpy as np

from argap.bigram_index.engine import merge_rows
from argap.bigram_index.runs import Rows, Run, row_ranges

ENTRIES = 2**22
"""Entries of all runs together that are in memory at a time; some 40 bytes each."""


def merge_runs(runs: Sequence[Run], entries: int = ENTRIES) -> Iterator[Rows]:
    """Yield the rows of the sum of ``runs`` in order; rows without an entry may be left out.

    All runs at once: merging in pairs would read and write every entry once a level.
    """
    if not runs:
        return
    vocab_size = len(runs[0].indptr) - 1
    total = np.sum([run.indptr for run in runs], axis=0)
    for start, stop in row_ranges(total, entries):
        pieces = [run.read(int(run.indptr[start]), int(run.indptr[stop])) for run in runs]
        indptrs = np.stack([run.indptr[start : stop + 1] - run.indptr[start] for run in runs])
        if len(runs) == 1:
            yield Rows(start, indptrs[0], *pieces[0])
            continue
        indptrs += np.cumsum([0] + [len(second) for second, _ in pieces[:-1]])[:, None]
        second = np.concatenate([second for second, _ in pieces])
        count = np.concatenate([count for _, count in pieces])
        merged = merge_rows(indptrs, second, count, vocab_size)
        yield Rows(start, merged.indptr, merged.second, merged.count)
