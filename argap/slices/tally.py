"""Add up tokens and log-probs by combination of integer keys.

Everything that sums over tokens does it here: cells, slices, the curve over τ, histograms. A call takes what fits in
memory, usually one portion of the tokens; the groups of several portions are added up by another call over them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DENSE = 2**16
"""Possible combinations up to which each has a place in the sums, whether or not it occurs."""
LANES = 8
BITS = 63
"""Of a code: a combination and the row that has it share an int64, so that one fast sort orders the rows."""


class Groups(NamedTuple):
    """The combinations that occur, ascending by keys. Legend: G combinations, C columns."""

    keys: list[np.ndarray]
    """Each ``[G]``, of the dtype given."""
    n: np.ndarray
    """``[G]``: rows (int64), or the sum of their weights (the dtype given)."""
    sums: np.ndarray
    """float64 ``[C, G]``."""


def tally(keys: Sequence[np.ndarray], columns: Sequence[np.ndarray], weight: np.ndarray | None = None) -> Groups:
    """Return the sum of every column (each ``[N]``, added in float64) over the rows of each combination of ``keys``.

    ``keys``: one or more arrays ``[N]`` of integers or booleans. ``weight``: integers ``[N]`` to count instead of rows.
    The sums of many combinations are added in the order of the rows.
    """
    code, lows, spans = _coded(keys)
    if (count := math.prod(spans)) <= DENSE:
        return _dense(keys, columns, weight, code, lows, spans, count)
    order, starts = _ordered(keys, code)
    n = np.diff(starts, append=len(order)) if weight is None else np.add.reduceat(weight[order], starts)
    sums = [np.add.reduceat(column[order].astype(np.float64), starts) for column in columns]
    return Groups([key[order[starts]] for key in keys], n, np.array(sums).reshape(len(columns), len(starts)))


def joined(parts: Sequence[Groups]) -> Groups:
    """Return the groups of several portions as one."""
    keys = [np.concatenate(each) for each in zip(*(part.keys for part in parts), strict=True)]
    n, sums = np.concatenate([part.n for part in parts]), np.concatenate([part.sums for part in parts], axis=1)
    return tally(keys, list(sums), n)


def _coded(keys: Sequence[np.ndarray]) -> tuple[np.ndarray | None, list[int], list[int]]:
    """Return the combination of each row as one int64 ``[N]``, and the least value and the span of each key.

    The code is None where combination and row do not fit in one integer.
    """
    rows = len(keys[0])
    lows = [int(key.min()) if rows else 0 for key in keys]
    spans = [int(key.max()) - low + 1 if rows else 1 for key, low in zip(keys, lows, strict=True)]
    if math.prod(spans) << rows.bit_length() >= 2**BITS:
        return None, lows, spans
    code = np.zeros(rows, dtype=np.int64)
    for key, low, span in zip(keys, lows, spans, strict=True):
        code *= span
        code += key
        code -= low
    return code, lows, spans


def _ordered(keys: Sequence[np.ndarray], code: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return a stable order of the rows by keys, and where in it each combination starts."""
    rows = len(keys[0])
    if code is None:  # fewer values than rows, so that they mostly fit then
        keys = [np.unique(key, return_inverse=True)[1] for key in keys]
        code, _, _ = _coded(keys)
    if code is None:
        order = np.lexsort(keys[::-1])
        changed = np.any([np.diff(key[order], prepend=-1) for key in keys], axis=0)
        return order, np.flatnonzero(changed)
    bits = rows.bit_length()
    code = (code << bits) + np.arange(rows)
    code.sort()
    of_rows = code >> bits
    return code & ((1 << bits) - 1), np.append(0, np.flatnonzero(of_rows[1:] != of_rows[:-1]) + 1)


def _dense(
    keys: Sequence[np.ndarray],
    columns: Sequence[np.ndarray],
    weight: np.ndarray | None,
    code: np.ndarray | None,
    lows: Sequence[int],
    spans: Sequence[int],
    count: int,
) -> Groups:
    """Return the groups of few possible combinations.

    Very few come `LANES` times, for consecutive rows to be added to different sums: an addition would wait for the one
    before it.
    """
    assert code is not None
    lanes = LANES if count * LANES <= DENSE else 1
    if lanes > 1:
        code = code * lanes + np.tile(np.arange(lanes), -(-len(code) // lanes))[: len(code)]

    def added(column: np.ndarray | None) -> np.ndarray:
        return np.bincount(code, column, count * lanes).reshape(count, lanes).sum(axis=1)

    occurs = added(None)
    kept = np.flatnonzero(occurs)
    n = occurs[kept] if weight is None else added(weight)[kept].astype(weight.dtype)
    found = np.unravel_index(kept, tuple(spans))
    of_keys = [(each + low).astype(key.dtype) for each, low, key in zip(found, lows, keys, strict=True)]
    sums = [added(column)[kept] for column in columns]
    return Groups(of_keys, n, np.array(sums).reshape(len(columns), len(kept)))
