"""Sums over the tokens by unit of the bootstrap, of all slices and models in one pass.

Portions of the tokens are read ahead, and several are added up at once, each by one thread.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from typing import NamedTuple, TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from argap.errors import ArgapError
from argap.records.columns import LOGPROB, UNIT
from argap.runtime.interrupt import Interrupt, current
from argap.runtime.threads import available_cores, gathered, map_ahead
from argap.slices.bits import BITS, VALUE, Word, as_bits, bits_query, looked_up
from argap.slices.conditions import TABLE, Condition, FailsOnToken, connect, quoted, reason
from argap.tokens.batches import Mask, TokenReader
from argap.tokens.rows import Rows
from argap.tokens.table import TokenTable

Made = TypeVar("Made")
ROWS = 2**19
"""Least number of tokens that one query takes: planning it then costs little beside running it."""
THREADS = 8
"""At most, so that few portions are in memory."""
DENSE = 2**16
"""Combinations of unit, value and slices that are numbered without a look at the rows."""
LANES = 8
MOST_BINS = 100
"""Values of a column that may be the bins of a breakdown."""


class Sums:
    """Sums over the tokens of a slice. Legend: U units of the bootstrap, M models, G groups of tokens."""

    def __init__(self, units: int, models: int) -> None:
        self.n = np.zeros(units)
        """``[U]``: tokens, or bytes of segments."""
        self.logprob = np.zeros((units, models))
        """``[U, M]``: sums of log p in nats."""
        self.ar_hits = 0
        """How many of the tokens are AR hits."""

    def add(self, groups: "_Groups", member: np.ndarray) -> None:
        """Add those of some groups (bool ``[G]``)."""
        rows = np.flatnonzero(member)
        unit = groups.unit[rows]
        self.n += np.bincount(unit, groups.n[rows], minlength=len(self.n))
        for m, logprob in enumerate(groups.logprob):
            self.logprob[:, m] += np.bincount(unit, logprob[rows], minlength=len(self.n))
        self.ar_hits += int(groups.n[rows[groups.member(0)[rows]]].sum())


class AllSums(NamedTuple):
    """The sums of one pass over the tokens."""

    whole: Sums
    slices: list[Sums]
    values: dict[str | None, Sums]
    """By value of the column asked for, as text; None: null."""


def sums(
    table: TokenTable,
    slices: Mapping[str, Condition | Mask],
    of_document: np.ndarray,
    units: int,
    *,
    by: str | None = None,
) -> AllSums:
    """Sums of all tokens, of each of ``slices`` (the AR hits first), and of each value of the column ``by``.

    ``of_document``: int32 ``[D]``, the unit of each document; the tokens of those with -1 are left out. A segment of
    several tokens is in a slice where one of them is, and has the value of its last. Raises `FailsOnToken`, naming
    slice and condition, for one that fails on a token, and `ArgapError` for a column of more than `MOST_BINS` values.
    """
    found = {name: looked_up(table, each) or each for name, each in slices.items()}
    conditions = {name: each for name, each in found.items() if isinstance(each, Condition)}
    named = {name for each in conditions.values() for name in each.columns} | {by}
    named |= {"segment_bytes"} if table.by_segment else set()
    calls = any(callable(each) for each in found.values())
    asked = {name for each in conditions.values() for name in each.models}
    words, masks = as_bits(found)
    reader = TokenReader(
        table,
        [UNIT, *(name for name in table.columns if name in named), *_logprobs(table)],
        masks=masks,
        models=[name for name in table.models if calls or name in asked],
        units=of_document,
    )
    models = len(table.models)
    query = bits_query(words, as_text(by, table) if by else None)
    sql_of = {name: each.sql for name, each in conditions.items()}

    def grouped(batches: Sequence[pa.RecordBatch], interrupt: Interrupt) -> list[_Groups]:
        evaluated = queried(batches, interrupt, query, sql_of) if query else None
        ends = [*accumulate(map(len, batches))]
        return [
            _grouped(table, batch, words, None if evaluated is None else evaluated.slice(end - len(batch), len(batch)))
            for batch, end in zip(batches, ends, strict=True)
        ]

    made = AllSums(Sums(units, models), [Sums(units, models) for _ in slices], {})
    for parts in each_portion(reader, grouped):
        groups = _Groups.joined(parts)
        made.whole.add(groups, np.ones(len(groups.n), dtype=bool))
        for k, each in enumerate(made.slices):
            each.add(groups, groups.member(k))
        for value in dict.fromkeys(groups.value.tolist()) if by else ():
            if value not in made.values and len(made.values) == MOST_BINS:
                raise ArgapError(f"`by` {by}: more than {MOST_BINS} values; slice by conditions")
            made.values.setdefault(value, Sums(units, models)).add(groups, groups.value == value)
    return made


def _logprobs(table: TokenTable) -> list[str]:
    return [f"{LOGPROB}{m}" for m in range(len(table.models))]


class _Groups(NamedTuple):
    """Sums of the tokens of each combination of unit, value and slices. Legend: G groups, W words, M models."""

    unit: np.ndarray
    """``[G]``."""
    value: np.ndarray
    """object ``[G]``: of the column asked for, as text."""
    words: np.ndarray
    """int64 ``[W, G]``: `BITS` slices in each."""
    n: np.ndarray
    """``[G]``: tokens, or bytes of segments."""
    logprob: np.ndarray
    """``[M, G]``."""

    def member(self, k: int) -> np.ndarray:
        """bool ``[G]``: whether they are in a slice."""
        return (self.words[k // BITS] >> (k % BITS) & 1).astype(bool)

    @classmethod
    def joined(cls, parts: Sequence["_Groups"]) -> "_Groups":
        """Groups of several batches."""
        return cls(*(np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)))


def _grouped(table: TokenTable, batch: pa.RecordBatch, words: Sequence["Word"], evaluated: pa.Table | None) -> _Groups:
    """The groups of a batch; ``evaluated``: the rows of `bits_query` for it."""
    unit = batch[UNIT].to_numpy()
    keys = [word.of(batch, evaluated) for word in words]
    logprob = [batch[name].fill_null(0).to_numpy() for name in _logprobs(table)]
    n, values = None, np.array([None])
    if evaluated is not None and VALUE in evaluated.column_names:
        encoded = evaluated[VALUE].combine_chunks().dictionary_encode(null_encoding="encode")
        values = np.array(encoded.dictionary.to_pylist(), dtype=object)
        keys.append(encoded.indices.to_numpy())
    if table.by_segment:
        size = batch["segment_bytes"].to_numpy(zero_copy_only=False)
        last, of_words = _segments(unit, size, keys[: len(words)])
        keys = [*of_words, *(key[last] for key in keys[len(words) :])]
        n, unit, logprob = size[last], unit[last], [each[last] for each in logprob]
    units, local = _numbered(unit)
    group, (of_local, *of_keys) = _combinations([local, *keys])
    of_unit = units[of_local]
    sums = [np.bincount(group, n, len(of_unit)), *(np.bincount(group, each, len(of_unit)) for each in logprob)]
    kept = np.flatnonzero((of_unit >= 0) & (sums[0] > 0))
    found = np.stack(of_keys)[:, kept] if of_keys else np.zeros((0, len(kept)), dtype=np.int64)
    value = values[found[len(words)]] if len(found) > len(words) else np.full(len(kept), None)
    return _Groups(of_unit[kept], value, found[: len(words)], sums[0][kept], np.stack(sums[1:])[:, kept])


def _segments(unit: np.ndarray, size: np.ndarray, words: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The row of each segment's last token, which has its bytes in ``size``, and of each word the bits of all its
    tokens."""
    scored = np.flatnonzero(unit >= 0)
    ends = np.flatnonzero(size[scored] > 0)
    if not len(ends):
        return ends, [word[:0] for word in words]
    first, within = np.append(0, ends[:-1] + 1), scored[: ends[-1] + 1]
    return scored[ends], [np.bitwise_or.reduceat(word[within], first) for word in words]


def _numbered(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The units of some rows, ascending, and which of them each row has, int32 ``[N]``. Rows of a unit are together."""
    starts = np.append(0, np.flatnonzero(unit[1:] != unit[:-1]) + 1)[: len(unit)]
    units, numbers = np.unique(unit[starts], return_inverse=True)
    return units, np.repeat(numbers.astype(np.int32), np.diff(starts, append=len(unit)))


def _combinations(keys: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Of rows with K keys of 32 bits: the combination that each row has, int64 ``[N]``, and its keys, K of int64
    ``[G]``.

    Few combinations are numbered whether or not a row has them, which spares a table of hashes. Very few come `LANES`
    times, for consecutive rows to be added to different sums: an addition would wait for the one before it.
    """
    lows = [int(key.min(initial=0)) for key in keys]
    spans = [int(key.max(initial=0)) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if (count := math.prod(spans)) <= DENSE:
        code = np.zeros(len(keys[0]), dtype=np.int32)
        for key, low, span in zip(keys, lows, spans, strict=True):
            code *= span
            code += key
            code -= low
        lanes = LANES if count * LANES <= DENSE else 1
        code = code * lanes + np.tile(np.arange(lanes, dtype=np.int32), -(-len(code) // lanes))[: len(code)]
        *of_each, _ = np.unravel_index(np.arange(count * lanes), (*spans, lanes))
        return code.astype(np.int64), [each + low for each, low in zip(of_each, lows, strict=True)]
    code = np.zeros(len(keys[0]), dtype=np.int64)
    of_each = []
    for key, low in zip(keys, lows, strict=True):
        encoded = pa.array((code << 32) + key - low).dictionary_encode()
        pairs, code = encoded.dictionary.to_numpy(), encoded.indices.to_numpy().astype(np.int64)
        of_each = [*(each[pairs >> 32] for each in of_each), (pairs & (2**32 - 1)) + low]
    return code, of_each


def each_portion(reader: TokenReader, of: Callable[[Sequence[pa.RecordBatch], Interrupt], Made]) -> Iterator[Made]:
    """What a function makes of each portion of the tokens: batches of whole windows, in order."""
    interrupt = current()

    def run(portion: list[Rows]) -> Made:
        batches: list[pa.RecordBatch] = []
        for rows in portion:
            interrupt.check()
            batches.append(reader.batch(rows))
        return of(batches, interrupt)

    return map_ahead(run, _portions(reader.rows(), interrupt), 1 if reader.calls else min(THREADS, available_cores()))


def query_portions(reader: TokenReader, query: str) -> Iterator[pa.Table]:
    """The result of a query of each portion of the tokens, in order."""
    return each_portion(reader, lambda batches, interrupt: queried(batches, interrupt, query, {}))


def queried(
    batches: Sequence[pa.RecordBatch], interrupt: Interrupt, query: str, conditions: Mapping[str, str]
) -> pa.Table:
    """The result of a query of some batches, in one thread. ``conditions``: SQL by slice, to name the one that fails on
    a token (`FailsOnToken`)."""
    with connect(threads=1) as connection:
        connection.register(TABLE, pa.RecordBatchReader.from_batches(batches[0].schema, batches))
        try:
            with interrupt.watching(connection):
                return connection.sql(query).to_arrow_table()
        except duckdb.Error as error:
            interrupt.check()
            raise _failure(batches, conditions, error) from None


def _portions(rows: Generator[Rows, None, None], interrupt: Interrupt) -> Iterator[list[Rows]]:
    """Consecutive rows, `ROWS` or more together. Raises `Interrupted` if that was asked for, with the files closed."""

    def checked() -> Iterator[Rows]:
        for each in rows:
            interrupt.check()
            yield each

    with closing(rows):
        yield from gathered(checked(), ROWS, lambda each: len(each.pos))


def _failure(batches: Sequence[pa.RecordBatch], conditions: Mapping[str, str], error: duckdb.Error) -> FailsOnToken:
    """The error that names the condition that fails on these tokens, and why."""
    with connect() as connection:
        for batch in batches:
            connection.register(TABLE, pa.Table.from_batches([batch]))
            for name, sql in conditions.items():
                try:
                    held = f'CASE WHEN "{UNIT}" >= 0 THEN (\n{sql}\n) END'
                    connection.execute(f"SELECT count(*) FROM {TABLE} WHERE {held}").fetchall()
                except duckdb.Error as own:
                    text = f"slice {name}: a condition fails on a token: {reason(own)} ({' '.join(sql.split())})"
                    return FailsOnToken(text)
    return FailsOnToken(f"a condition fails on a token: {reason(error)}")


def as_text(column: str, table: TokenTable) -> str:
    """SQL for a column's value as text; labels are joined by " + "."""
    of_labels = pa.types.is_list(table.schema().field(column).type)
    return f"array_to_string({quoted(column)}, ' + ')" if of_labels else f"{quoted(column)}::VARCHAR"
