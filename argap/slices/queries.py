"""Query the tokens in portions.

Portions are read ahead, and several are processed at once, one thread each.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

import duckdb
import pyarrow as pa

from argap.records.columns import UNIT
from argap.runtime.interrupt import Interrupt, current
from argap.runtime.threads import available_cores, gathered, map_ahead
from argap.slices.conditions import TABLE, FailsOnToken, connect, quoted, reason
from argap.tokens.batches import TokenReader
from argap.tokens.portions import THREADS
from argap.tokens.rows import Rows
from argap.tokens.table import TokenTable

Made = TypeVar("Made")
ROWS = 2**19
"""Minimum number of tokens per query, so that planning costs little compared with running."""


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
        except duckdb.Error as error:
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


def _failure(batches: Sequence[pa.RecordBatch], conditions: Mapping[str, str], error: duckdb.Error) -> FailsOnToken:
    """Find the condition that fails on these tokens and return the error that names it."""
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
    """Return SQL for a column's value as text; labels are joined by " + "."""
    of_labels = pa.types.is_list(table.schema().field(column).type)
    return f"array_to_string({quoted(column)}, ' + ')" if of_labels else f"{quoted(column)}::VARCHAR"
