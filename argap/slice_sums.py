"""Sums over the tokens by unit of the bootstrap, of all slices and models in one pass.

Portions of the tokens are read ahead, and several are queried at once, each by one thread.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from argap.ahead import available_cores, map_ahead
from argap.errors import ArgapError
from argap.interrupt import Interrupt, current
from argap.lockstep import Rows
from argap.slice_sql import TABLE, Condition, FailsOnToken, connect, quoted, reason
from argap.token_batches import Mask, OfVocabulary, TokenReader
from argap.token_columns import LOGPROB, MASK, SEGMENTED, UNIT
from argap.tokens import TokenTable

BITS = 30
"""Conditions in one integer column, a bit for each that holds."""
ROWS = 2**19
"""Least number of tokens that one query takes, so that planning it costs little beside running it."""
THREADS = 8
"""At most, so that few portions are in memory."""
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
        self.ar_hits += int(groups.n[rows[groups.member[0][rows]]].sum())


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
    named |= set(SEGMENTED if table.by_segment else ())
    calls = any(callable(each) for each in found.values())
    asked = {name for each in conditions.values() for name in each.models}
    logprobs = [f"{LOGPROB}{m}" for m in range(len(table.models))]
    words, masks = _words(found)
    reader = TokenReader(
        table,
        [UNIT, *(name for name in table.columns if name in named), *logprobs],
        masks=masks,
        models=[name for name in table.models if calls or name in asked],
        units=of_document,
    )
    query = _query(words, logprobs, as_text(by, table) if by else "NULL", table.by_segment)
    models = len(table.models)
    made = AllSums(Sums(units, models), [Sums(units, models) for _ in slices], {})
    for portion in each_portion(reader, query, {name: each.sql for name, each in conditions.items()}):
        groups = _Groups.of(portion, len(slices), models)
        made.whole.add(groups, np.ones(len(groups.n), dtype=bool))
        for each, member in zip(made.slices, groups.member, strict=True):
            each.add(groups, member)
        for value in dict.fromkeys(groups.value.tolist()) if by else ():
            if value not in made.values and len(made.values) == MOST_BINS:
                raise ArgapError(f"`by` {by}: more than {MOST_BINS} values; slice by conditions")
            made.values.setdefault(value, Sums(units, models)).add(groups, groups.value == value)
    return made


class _Groups(NamedTuple):
    """Of each combination of unit, slices and value that tokens fall into. Legend: G groups, S slices."""

    unit: np.ndarray
    """``[G]``."""
    value: np.ndarray
    """object ``[G]``."""
    member: list[np.ndarray]
    """S of bool ``[G]``."""
    n: np.ndarray
    """``[G]``."""
    logprob: list[np.ndarray]
    """M of float64 ``[G]``."""

    @classmethod
    def of(cls, result: pa.Table, slices: int, models: int) -> "_Groups":
        """The result of `_query`."""
        unit, value, *words = result.columns[: -1 - models]
        n, *logprob = (column.to_numpy() for column in result.columns[-1 - models :])
        bits = [word.to_numpy() for word in words]
        member = [(bits[k // BITS] >> (k % BITS) & 1).astype(bool) for k in range(slices)]
        return cls(unit.to_numpy(), np.array(value.to_pylist(), dtype=object), member, n, logprob)


def each_portion(reader: TokenReader, query: str, conditions: Mapping[str, str]) -> Iterator[pa.Table]:
    """The result of a query for each portion of the tokens: whole windows, in order.

    ``conditions``: SQL by slice, to name the one that fails on a token.
    """
    interrupt = current()

    def run(portion: list[Rows]) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        for rows in portion:
            interrupt.check()
            batches.append(reader.batch(rows))
        with connect(threads=1) as connection:
            connection.register(TABLE, pa.RecordBatchReader.from_batches(reader.schema, batches))
            try:
                with interrupt.watching(connection):
                    return connection.sql(query).to_arrow_table()
            except duckdb.Error as error:
                interrupt.check()
                raise _failure(batches, conditions, error) from None

    return map_ahead(run, _portions(reader.rows(), interrupt), 1 if reader.calls else min(THREADS, available_cores()))


def _portions(rows: Generator[Rows, None, None], interrupt: Interrupt) -> Iterator[list[Rows]]:
    """Consecutive rows, `ROWS` or more together. Raises `Interrupted` if that was asked for, with the files closed."""
    portion: list[Rows] = []
    count = 0
    with closing(rows):
        for each in rows:
            interrupt.check()
            portion.append(each)
            count += len(each.pos)
            if count >= ROWS:
                yield portion
                portion, count = [], 0
    if portion:
        yield portion


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


def _words(slices: Mapping[str, Condition | Mask | OfVocabulary]) -> tuple[list[str], dict[str, Mask | OfVocabulary]]:
    """SQL for integers whose bits say which slices a token is in, `BITS` slices each; and the masks that it needs."""
    words: list[str] = []
    masks: dict[str, Mask | OfVocabulary] = {}
    named = list(slices.items())
    for start in range(0, len(named), BITS):
        terms, of_vocabulary = ["0"], {}
        for bit, (name, each) in enumerate(named[start : start + BITS]):
            if isinstance(each, OfVocabulary):
                bits = each.values.astype(np.int32) << bit
                of_vocabulary[each.previous] = bits | of_vocabulary.get(each.previous, 0)
                continue
            if not isinstance(each, Condition):
                masks[name] = each
            sql = each.sql if isinstance(each, Condition) else quoted(MASK + name)
            terms.append(f"CASE WHEN (\n{sql}\n) THEN {1 << bit}::INTEGER ELSE 0 END")
        for previous, bits in of_vocabulary.items():
            name = f"{start}: {'previous' if previous else 'token'}"  # no slice is named so
            masks[name] = OfVocabulary(bits, previous)
            terms.append(quoted(MASK + name))
        words.append(" + ".join(terms))
    return words, masks


def _query(words: Sequence[str], logprobs: Sequence[str], value: str, by_segment: bool) -> str:
    """Sums by unit, value and ``words``; ``by_segment``: of segments."""
    made = {f'"{MASK}{k}"': word for k, word in enumerate(words)}
    inner = ", ".join(
        [
            f'"{UNIT}"',
            f'{value} AS "{MASK}value"',
            *(f'"{name}"' for name in logprobs),
            *(f"{word} AS {name}" for name, word in made.items()),
        ]
    )
    rows, n = f'SELECT {inner} FROM {TABLE} WHERE "{UNIT}" >= 0', "count(*)"
    if by_segment:
        ends = ", ".join(
            [
                f'any_value("{UNIT}") AS "{UNIT}"',
                f'max(CASE WHEN segment_bytes > 0 THEN "{MASK}value" END) AS "{MASK}value"',
                *(f'max("{name}") AS "{name}"' for name in logprobs),  # one of its tokens has it
                *(f"bit_or({name}) AS {name}" for name in made),
                "max(segment_bytes) AS segment_bytes",
            ]
        )
        tokens = f'SELECT {inner}, segment, segment_bytes FROM {TABLE} WHERE "{UNIT}" >= 0'
        rows, n = f"SELECT {ends} FROM ({tokens}) GROUP BY segment", "sum(segment_bytes)::BIGINT"
    keys = ", ".join([f'"{UNIT}"', f'"{MASK}value"', *made])
    totals = ", ".join(f'sum("{name}"::DOUBLE)' for name in logprobs)
    return f"SELECT {keys}, {n} AS n, {totals} FROM ({rows}) GROUP BY {keys} ORDER BY {keys}"


def looked_up(table: TokenTable, condition: Condition | Mask) -> OfVocabulary | None:
    """A condition on what one token is, or the one before it, evaluated for each entry of the vocabulary.

    None for other conditions, for those that are not the same whenever they are evaluated, and for those that fail on
    an entry, which need not be in the text.
    """
    if not isinstance(condition, Condition) or not condition.columns:
        return None
    previous = condition.columns == ("previous",)
    volatile = set(re.findall(r"\w+", condition.sql.lower())) & _volatile()
    if volatile or not (previous or {"token", "piece"}.issuperset(condition.columns)):
        return None
    token = pa.array(np.arange(len(table.pieces)), pa.int32())
    piece = pa.DictionaryArray.from_arrays(token, table.pieces)
    with connect() as connection:
        connection.register(TABLE, pa.table({"token": token, "piece": piece, "previous": piece}))
        query = f"SELECT coalesce((\n{condition.sql}\n), false) AS holds FROM {TABLE}"
        try:
            return OfVocabulary(np.asarray(connection.execute(query).fetchnumpy()["holds"]), previous)
        except duckdb.Error:
            return None


@cache
def _volatile() -> frozenset[str]:
    """Functions whose value changes from call to call."""
    with connect() as connection:
        query = "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE stability = 'VOLATILE'"
        return frozenset(name for (name,) in connection.execute(query).fetchall())


def as_text(column: str, table: TokenTable) -> str:
    """SQL for a column's value as text; labels are joined by " + "."""
    of_labels = pa.types.is_list(table.schema().field(column).type)
    return f"array_to_string({quoted(column)}, ' + ')" if of_labels else f"{quoted(column)}::VARCHAR"
