"""Queries are stopped from another thread, inside DuckDB and between batches."""

import threading

import duckdb
import pytest

from argap.errors import Interrupted
from argap.runtime.interrupt import Interrupt, interruptible, raising_interrupts
from argap.slices.conditions import TABLE, connect, streamed
from argap.tokens.batches import TokenReader


def test_a_running_query_is_stopped():
    interrupt, over = Interrupt(), threading.Event()

    def stop() -> None:
        while not over.wait(0.05):  # DuckDB forgets an interrupt that comes before the query has begun
            interrupt.set()

    stopper = threading.Thread(target=stop)
    with duckdb.connect() as connection, interrupt.watching(connection):
        stopper.start()
        with pytest.raises(duckdb.InterruptException):
            connection.execute("SELECT sum(sqrt(i)) FROM range(1000000000000) t(i)").fetchall()
        over.set()
        stopper.join()
    with pytest.raises(Interrupted):
        interrupt.check()


class Pressed:
    """Rows that Ctrl-C interrupts as DuckDB asks for them."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_while_duckdb_reads_rows_is_no_error_of_the_query(result, monkeypatch):
    with connect() as connection, pytest.raises(KeyboardInterrupt), raising_interrupts():
        connection.register(TABLE, Pressed())
    monkeypatch.setattr(TokenReader, "batch", lambda self, rows: Pressed().__arrow_c_stream__())
    with pytest.raises(KeyboardInterrupt), streamed(result.token_table, ["pos"], {}) as connection:
        connection.execute(f"SELECT max(pos) FROM {TABLE}")


def test_no_further_batch_is_read(result, monkeypatch):
    interrupt, read = Interrupt(), []
    batch = TokenReader.batch

    def counted(self, rows):
        read.append(len(rows.pos))
        interrupt.set()
        return batch(self, rows)

    monkeypatch.setattr(TokenReader, "batch", counted)
    with pytest.raises(Interrupted), interruptible(interrupt):
        result.gap({"starts": "word_start"})
    assert len(read) == 1
    with pytest.raises(Interrupted), interruptible(interrupt):
        result.gap({"starts": "word_start"})
    assert len(result.gap({"starts": "word_start"})) == 9  # nobody waits for another Interrupt
