"""Sum tokens and log-probs by combination of integer keys.

All sums over tokens are computed here: cells, slices, the curve over τ, histograms. A call takes arrays that fit in
memory, usually one portion of the tokens; another call sums the groups of several portions.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DENSE = 2**16
"""Number of possible combinations up to which each gets a slot, whether or not it occurs."""
PENDING = 2**22
"""Number of groups of several portions from which they are merged."""
LANES = 8
BITS = 63
"""Bits of a code: combination and row number share an int64, so that one fast sort orders the rows."""


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
    The sums of many combinations are added in the order of the rows. ∞ − ∞ is NaN.
    """
    if weight is not None and (weight == 1).all():  # counting rows takes less
        weight = None
    code, lows, spans = _coded(keys)
    if math.prod(spans) <= DENSE:
        assert code is not None
        return _dense(keys, columns, weight, code, lows, spans)
    group, first = _numbered(keys, code)
    n = np.bincount(group, weight)
    sums = [np.bincount(group, column) for column in columns]
    of_keys = [key[first] for key in keys]
    return Groups(of_keys, n if weight is None else n.astype(weight.dtype), _table(sums, len(first)))


def _table(sums: Sequence[np.ndarray], groups: int) -> np.ndarray:
    """Stack sums to ``[C, G]``; C may be 0."""
    return np.array(sums, dtype=np.float64).reshape(len(sums), groups)


def joined(parts: Sequence[Groups]) -> Groups:
    """Merge the groups of several portions."""
    keys = [np.concatenate(each) for each in zip(*(part.keys for part in parts), strict=True)]
    n, sums = np.concatenate([part.n for part in parts]), np.concatenate([part.sums for part in parts], axis=1)
    return tally(keys, list(sums), n)


def _coded(keys: Sequence[np.ndarray]) -> tuple[np.ndarray | None, list[int], list[int]]:
    """Encode the combination of each row as one int64 ``[N]``; also return the minimum and the span of each key.

    The code is None if combination and row number do not fit in one integer.
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


def _numbered(keys: Sequence[np.ndarray], code: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each row's combination ``[N]``, ascending by keys, and the first row of each ``[G]``."""
    rows = len(keys[0])
    if code is None:  # renumbered, no key has more values than rows, so the code usually fits
        keys = [np.unique(key, return_inverse=True)[1] for key in keys]
        code, _, _ = _coded(keys)
    if code is None:
        order = np.lexsort(keys[::-1])
        changed = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
    else:
        bits = rows.bit_length()
        code = (code << bits) + np.arange(rows)
        code.sort()
        order = code & ((1 << bits) - 1)
        code >>= bits
        changed = code[1:] != code[:-1]
    starts = np.append(0, np.flatnonzero(changed) + 1)
    group = np.empty(rows, dtype=np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=rows))
    return group, order[starts]


def _dense(
    keys: Sequence[np.ndarray],
    columns: Sequence[np.ndarray],
    weight: np.ndarray | None,
    code: np.ndarray,
    lows: Sequence[int],
    spans: Sequence[int],
) -> Groups:
    """Sum by combination where few are possible.

    Very few get `LANES` slots each, so that consecutive rows go to different slots; otherwise each addition would wait
    for the one before it.
    """
    count = math.prod(spans)
    lanes = LANES if count * LANES <= DENSE else 1
    if lanes > 1:
        code *= lanes
        code += np.tile(np.arange(lanes), -(-len(code) // lanes))[: len(code)]

    def added(column: np.ndarray | None) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.bincount(code, column, count * lanes).reshape(count, lanes).sum(axis=1)

    occurs = added(None)
    kept = np.flatnonzero(occurs)
    n = occurs[kept] if weight is None else added(weight)[kept].astype(weight.dtype)
    found = np.unravel_index(kept, tuple(spans))
    of_keys = [(each + low).astype(key.dtype) for each, low, key in zip(found, lows, keys, strict=True)]
    return Groups(of_keys, n, _table([added(column)[kept] for column in columns], len(kept)))
