"""Query the tokens in portions, with slices as the bits of integers.

Portions are read ahead, and several are processed at once, one thread each.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from argap.records.columns import MASK, UNIT
from argap.runtime.interrupt import Interrupt, current
from argap.runtime.threads import available_cores, gathered, map_ahead
from argap.slices.arrow_conditions import Evaluated
from argap.slices.conditions import FAILURES, TABLE, Condition, FailsOnToken, connect, quoted, reason, shortened
from argap.tokens.batches import Mask, OfVocabulary, TokenReader
from argap.tokens.portions import THREADS
from argap.tokens.rows import Rows
from argap.tokens.table import TokenTable

Made = TypeVar("Made")
ROWS = 2**19
"""Minimum number of tokens per query, so that planning costs little compared with running."""
BITS = 30
"""Slices per integer."""
VALUE = f"{MASK}value"
"""Name of the column to sum by."""


def each_portion(reader: TokenReader, of: Callable[[Sequence[pa.RecordBatch], Interrupt], Made]) -> Iterator[Made]:
    """Apply a function to each portion of the tokens (batches of whole windows) and yield its results in order."""
    interrupt = current()

    def run(portion: list[Rows]) -> Made:
        batches: list[pa.RecordBatch] = []
        for rows in portion:
            interrupt.check()
            batches.append(reader.batch(rows))
        return of(batches, interrupt)

    return map_ahead(run, _portions(reader.rows(), interrupt), 1 if reader.calls else min(THREADS, available_cores()))


def query_portions(reader: TokenReader, query: str) -> Iterator[pa.Table]:
    """Yield the result of a query on each portion of the tokens, in order."""
    return each_portion(reader, lambda batches, interrupt: queried(batches, interrupt, query, {}))


def queried(
    batches: Sequence[pa.RecordBatch], interrupt: Interrupt, query: str, conditions: Mapping[str, str]
) -> pa.Table:
    """Run a query on some batches in one thread.

    ``conditions``: SQL by slice. Raises `FailsOnToken`, naming the condition that fails on a token.
    """
    with connect(threads=1) as connection:
        connection.register(TABLE, pa.RecordBatchReader.from_batches(batches[0].schema, batches))
        try:
            with interrupt.watching(connection):
                return connection.sql(query).to_arrow_table()
        except FAILURES as error:
            interrupt.check()
            raise _failure(batches, conditions, error) from None


def _portions(rows: Generator[Rows, None, None], interrupt: Interrupt) -> Iterator[list[Rows]]:
    """Yield consecutive rows in groups of at least `ROWS`. If interrupted, close the files and raise `Interrupted`."""

    def checked() -> Iterator[Rows]:
        for each in rows:
            interrupt.check()
            yield each

    with closing(rows):
        yield from gathered(checked(), ROWS, lambda each: len(each.pos))


def _failure(batches: Sequence[pa.RecordBatch], conditions: Mapping[str, str], error: Exception) -> FailsOnToken:
    """Find the condition that fails on these tokens and return the error that names it."""
    with connect() as connection:
        for batch in batches:
            connection.register(TABLE, pa.Table.from_batches([batch]))
            for name, sql in conditions.items():
                try:
                    held = f'CASE WHEN "{UNIT}" >= 0 THEN (\n{sql}\n) END'
                    connection.execute(f"SELECT count(*) FROM {TABLE} WHERE {held}").fetchall()
                except FAILURES as own:
                    text = f"slice {name}: a condition fails on a token: {reason(own)} ({shortened(sql)})"
                    return FailsOnToken(text)
    return FailsOnToken(f"a condition fails on a token: {reason(error)}")


def as_text(column: str, table: TokenTable) -> str:
    """Return SQL for a column's value as text; labels are joined by " + ", and -0.0 is 0.0, which it equals."""
    of_type, name = table.schema().field(column).type, quoted(column)
    if pa.types.is_list(of_type):
        return f"array_to_string({name}, ' + ')"
    if pa.types.is_floating(of_type):
        return f"(CASE WHEN {name} = 0 THEN abs({name}) ELSE {name} END)::VARCHAR"
    return f"{name}::VARCHAR"


class Word(NamedTuple):
    """`BITS` slices as the bits of an integer."""

    sql: str | None
    """SQL for the bits that DuckDB evaluates; None if no condition needs DuckDB."""
    column: str
    """Name of that integer in the result of `bits_query`."""
    columns: list[str]
    """Batch columns that hold the bits looked up by id."""
    plain: dict[int, Evaluated]
    """Conditions that Arrow evaluates, by bit."""

    def of(self, batch: pa.RecordBatch, evaluated: pa.Table | None) -> np.ndarray:
        """Return the integer of each token, int32 ``[N]``; ``evaluated``: the rows of `bits_query` for the batch."""
        word = np.zeros(len(batch), dtype=np.int32)
        for bit, holds in self.plain.items():
            word |= np.left_shift(_bits(holds(batch)), bit, dtype=np.int32)
        for name in self.columns:
            word |= batch[name].to_numpy()
        if self.sql is not None and evaluated is not None:
            word |= evaluated[self.column].to_numpy()
        return word


def _bits(holds: pa.Array) -> np.ndarray:
    """Return uint8 ``[N]``: 1 for true, 0 for false and null. NumPy unpacks bits faster than Arrow."""
    values = holds.fill_null(False)
    packed = np.frombuffer(values.buffers()[1], dtype=np.uint8)
    return np.unpackbits(packed, count=values.offset + len(values), bitorder="little")[values.offset :]


def as_bits(slices: Mapping[str, Condition | Mask | OfVocabulary]) -> tuple[list[Word], dict[str, Mask | OfVocabulary]]:
    """Assign a bit to each slice, and return the words and the masks they need."""
    words: list[Word] = []
    masks: dict[str, Mask | OfVocabulary] = {}
    named = list(slices.items())
    for start in range(0, len(named), BITS):
        terms: list[str] = []
        of_vocabulary: dict[bool, np.ndarray] = {}
        plain: dict[int, Evaluated] = {}
        for bit, (name, each) in enumerate(named[start : start + BITS]):
            if isinstance(each, OfVocabulary):
                bits = each.values.astype(np.int32) << bit
                of_vocabulary[each.previous] = bits | of_vocabulary.get(each.previous, 0)
            elif not isinstance(each, Condition):
                masks[name] = each
                plain[bit] = itemgetter(MASK + name)
            elif each.plain is not None:
                plain[bit] = each.plain
            else:
                terms.append(f"CASE WHEN (\n{each.sql}\n) THEN {1 << bit}::INTEGER ELSE 0 END")
        columns: list[str] = []
        for previous, values in of_vocabulary.items():
            name = f"{start}: {'previous' if previous else 'token'}"  # cannot clash: slice names have no colon
            masks[name] = OfVocabulary(values, previous)
            columns.append(MASK + name)
        words.append(Word(" + ".join(terms) or None, f"{MASK}{start}", columns, plain))
    return words, masks


def bits_query(words: Sequence[Word], value: str | None) -> str | None:
    """Return SQL for one integer per word and token, in order; unscored tokens get 0, or NULL for ``value``.

    None if no condition needs DuckDB.
    """
    made = [f'CASE WHEN "{UNIT}" >= 0 THEN {word.sql} ELSE 0 END AS "{word.column}"' for word in words if word.sql]
    if value is not None:
        made.append(f'CASE WHEN "{UNIT}" >= 0 THEN {value} END AS "{VALUE}"')
    return f"SELECT {', '.join(made)} FROM {TABLE}" if made else None


def looked_up(table: TokenTable, condition: Condition | Mask) -> OfVocabulary | None:
    """Evaluate a condition on the token alone, or on the previous token alone, for every entry of the vocabulary.

    None for other conditions, and for those that fail on an entry, as that entry may not occur in the text.
    """
    if not isinstance(condition, Condition) or not condition.columns:
        return None
    previous = condition.columns == ("previous",)
    if not (previous or {"token", "piece"}.issuperset(condition.columns)):
        return None
    token = pa.array(np.arange(len(table.pieces)), pa.int32())
    piece = pa.DictionaryArray.from_arrays(token, table.pieces)
    with connect() as connection:
        connection.register(TABLE, pa.table({"token": token, "piece": piece, "previous": piece}))
        query = f"SELECT coalesce((\n{condition.sql}\n), false) AS holds FROM {TABLE}"
        try:
            return OfVocabulary(np.asarray(connection.execute(query).fetchnumpy()["holds"]), previous)
        except FAILURES:
            return None
