"""Sum over the tokens by bootstrap unit, for all slices and models in one pass.

Portions of the tokens are read ahead, and several are summed at once, one thread each.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from argap.errors import ArgapError
from argap.records.columns import LOGPROB, UNIT, WEIGHT
from argap.runtime.interrupt import Interrupt
from argap.slices.conditions import Condition
from argap.slices.queries import BITS, VALUE, Word, as_bits, as_text, bits_query, each_portion, looked_up, queried
from argap.slices.tally import tally
from argap.tokens.batches import Mask, TokenReader
from argap.tokens.table import TokenTable

MOST_BINS = 100
"""Maximum number of values of a column to break down by."""


class Sums:
    """Sums over the tokens of a slice. Legend: U units of the bootstrap, M models, G groups of tokens."""

    def __init__(self, units: int, models: int) -> None:
        self.n = np.zeros(units)
        """``[U]``: tokens, or bytes of segments."""
        self.logprob = np.zeros((units, models))
        """``[U, M]``: sums of log p in nats."""
        self.ar_hits = 0
        """Number of tokens (or bytes) that are AR hits."""

    def add(self, groups: "_Groups", member: np.ndarray) -> None:
        """Add the groups selected by ``member`` (bool ``[G]``); ∞ − ∞, of differences, is NaN."""
        rows = np.flatnonzero(member)
        unit = groups.unit[rows]
        self.n += np.bincount(unit, groups.n[rows], minlength=len(self.n))
        with np.errstate(invalid="ignore"):
            for m, logprob in enumerate(groups.logprob):
                self.logprob[:, m] += np.bincount(unit, logprob[rows], minlength=len(self.n))
        self.ar_hits += int(groups.n[rows[groups.member(0)[rows]]].sum())


class AllSums(NamedTuple):
    """The sums of one pass over the tokens."""

    whole: Sums
    slices: list[Sums]
    values: dict[str | None, Sums]
    """By value of the column ``by``, as text; None: null."""


def sums(
    table: TokenTable,
    slices: Mapping[str, Condition | Mask],
    of_document: np.ndarray,
    units: int,
    *,
    by: str | None = None,
    values: Sequence[str] | None = None,
) -> AllSums:
    """Sum over all tokens, over each of ``slices`` (the AR hits first), and over each value of the column ``by``.

    ``values``: the columns to sum, in place of the models' log-probs (`Sums.logprob`).
    ``of_document``: int32 ``[D]``, the unit of each document; documents with -1 are left out. A segment of several
    tokens is in a slice if one of its tokens is, and takes the value of its last token. Raises `FailsOnToken`, naming
    slice and condition, if a condition fails on a token, and `ArgapError` for a column of more than `MOST_BINS` values.
    """
    found = {name: looked_up(table, each) or each for name, each in slices.items()}
    conditions = {name: each for name, each in found.items() if isinstance(each, Condition)}
    named = {name for each in conditions.values() for name in each.columns} | {by}
    calls = any(callable(each) for each in found.values())
    asked = {name for each in conditions.values() for name in each.models}
    words, masks = as_bits(found)
    values = values or _logprobs(table)
    reader = TokenReader(
        table,
        [UNIT, WEIGHT, *(name for name in table.columns if name in named), *values],
        masks=masks,
        models=[name for name in table.models if calls or name in asked],
        units=of_document,
    )
    models = len(values)
    query = bits_query(words, as_text(by, table) if by else None)
    sql_of = {name: each.sql for name, each in conditions.items()}

    def grouped(batches: Sequence[pa.RecordBatch], interrupt: Interrupt) -> list[_Groups]:
        evaluated = queried(batches, interrupt, query, sql_of) if query else None
        ends = [*accumulate(map(len, batches))]
        return [
            _grouped(values, batch, words, None if evaluated is None else evaluated.slice(end - len(batch), len(batch)))
            for batch, end in zip(batches, ends, strict=True)
        ]

    made = AllSums(Sums(units, models), [Sums(units, models) for _ in slices], {})
    for parts in each_portion(reader, grouped):
        groups = _Groups.joined(parts)
        made.whole.add(groups, np.ones(len(groups.n), dtype=bool))
        for k, each in enumerate(made.slices):
            each.add(groups, groups.member(k))
        number: dict[str | None, int] = {}
        code = np.array([number.setdefault(value, len(number)) for value in groups.value] if by else [], dtype=np.int64)
        for value, k in number.items():  # a NumPy array compared with a text takes no account of NULs at its end
            if value not in made.values and len(made.values) == MOST_BINS:
                raise ArgapError(f"`by` {by}: more than {MOST_BINS} values; slice by conditions")
            made.values.setdefault(value, Sums(units, models)).add(groups, code == k)
    return made


def _logprobs(table: TokenTable) -> list[str]:
    return [f"{LOGPROB}{m}" for m in range(len(table.models))]


class _Groups(NamedTuple):
    """Sums of the tokens of each combination of unit, value and slices. Legend: G groups, W words, M models."""

    unit: np.ndarray
    """``[G]``."""
    value: np.ndarray
    """object ``[G]``: value of the column ``by``, as text."""
    words: np.ndarray
    """int64 ``[W, G]``: `BITS` slices in each."""
    n: np.ndarray
    """``[G]``: tokens, or bytes of segments."""
    logprob: np.ndarray
    """``[M, G]``."""

    def member(self, k: int) -> np.ndarray:
        """Return which groups are in slice ``k``, bool ``[G]``."""
        return (self.words[k // BITS] >> (k % BITS) & 1).astype(bool)

    @classmethod
    def joined(cls, parts: Sequence["_Groups"]) -> "_Groups":
        """Concatenate the groups of several batches."""
        return cls(*(np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)))


def _grouped(
    summed: Sequence[str], batch: pa.RecordBatch, words: Sequence["Word"], evaluated: pa.Table | None
) -> _Groups:
    """Sum the columns ``summed`` of a batch by group; ``evaluated``: the rows of `bits_query` for it."""
    unit = batch[UNIT].to_numpy()
    keys = [word.of(batch, evaluated) for word in words]
    logprob = [batch[name].fill_null(0).to_numpy() for name in summed]
    n, values = None, np.array([None])
    if evaluated is not None and VALUE in evaluated.column_names:
        encoded = evaluated[VALUE].combine_chunks().dictionary_encode(null_encoding="encode")
        values = np.array(encoded.dictionary.to_pylist(), dtype=object)
        keys.append(encoded.indices.to_numpy())
    weight = batch[WEIGHT].to_numpy()
    if (weight[unit >= 0] != 1).any():  # else a row is a token that counts 1, and need not be copied
        last, of_words = _segments(unit, weight, keys[: len(words)])
        keys = [*of_words, *(key[last] for key in keys[len(words) :])]
        n, unit, logprob = weight[last], unit[last], [each[last] for each in logprob]
    units, local = _numbered(unit)
    groups = tally([local, *keys], logprob, n)
    of_unit, of_keys = units[groups.keys[0]], groups.keys[1:]
    kept = np.flatnonzero((of_unit >= 0) & (groups.n > 0))
    value = values[of_keys[len(words)][kept]] if len(of_keys) > len(words) else np.full(len(kept), None)
    of_words = np.array(of_keys[: len(words)], dtype=np.int64).reshape(len(words), len(of_unit))
    return _Groups(of_unit[kept], value, of_words[:, kept], groups.n[kept], groups.sums[:, kept])


def _segments(unit: np.ndarray, weight: np.ndarray, words: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the row of each segment's last token, and each word with the bits of all tokens of the segment.

    ``weight``: the segment's bytes at its last token, 0 at the others.
    """
    scored = np.flatnonzero(unit >= 0)
    ends = np.flatnonzero(weight[scored] > 0)
    if not len(ends):
        return ends, [word[:0] for word in words]
    first, within = np.append(0, ends[:-1] + 1), scored[: ends[-1] + 1]
    return scored[ends], [np.bitwise_or.reduceat(word[within], first) for word in words]


def _numbered(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct units, ascending, and each row's index into them, int32 ``[N]``.

    Rows of a unit must be adjacent.
    """
    starts = np.append(0, np.flatnonzero(unit[1:] != unit[:-1]) + 1)[: len(unit)]
    units, numbers = np.unique(unit[starts], return_inverse=True)
    return units, np.repeat(numbers.astype(np.int32), np.diff(starts, append=len(unit)))
