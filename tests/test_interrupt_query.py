"""Queries are stopped from another thread, inside DuckDB and between batches."""

import threading

import duckdb
import pytest

from argap.errors import Interrupted
from argap.interrupt import Interrupt, interruptible
from argap.result import open_result
from argap.token_batches import TokenReader


def test_a_running_query_is_stopped():
    interrupt = Interrupt()
    with duckdb.connect() as connection:
        threading.Timer(0.1, interrupt.set).start()
        with pytest.raises(duckdb.InterruptException), interrupt.watching(connection):
            connection.execute("SELECT sum(sqrt(i)) FROM range(1000000000000) t(i)").fetchall()
    with pytest.raises(Interrupted):
        interrupt.check()


def test_no_further_batch_is_read(token_result, monkeypatch):
    interrupt, read = Interrupt(), []
    batch = TokenReader.batch

    def counted(self, rows):
        read.append(len(rows.pos))
        interrupt.set()
        return batch(self, rows)

    monkeypatch.setattr(TokenReader, "batch", counted)
    result = open_result(token_result)
    with pytest.raises(Interrupted), interruptible(interrupt):
        result.gap({"starts": "word_start"})
    assert len(read) == 1
    with pytest.raises(Interrupted), interruptible(interrupt):
        result.gap({"starts": "word_start"})
    assert len(result.gap({"starts": "word_start"})) == 9  # nobody waits for another Interrupt
