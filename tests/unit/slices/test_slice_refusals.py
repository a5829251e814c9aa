"""Slices that are refused, each in one line, and queries that are stopped from another thread."""

import os
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import duckdb
import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace as replace_fields

import argap
from argap.errors import ArgapError, Interrupted
from argap.runtime.interrupt import Interrupt, interruptible, raising_interrupts
from argap.slices.conditions import TABLE, connect, shortened, streamed
from argap.slices.library import filled, read_slices
from argap.tokens.batches import TokenReader
from tests.conftest import copied_without_tokens


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: np.zeros(3, dtype=bool), r"slice bad: its function gave 3 values for \d+ tokens"),
        (lambda batch: batch["pos"], "slice bad: its function gave int32; expected a boolean"),
        (3, "slice condition 3: expected SQL or a function"),
    ],
)
def test_masks_that_are_refused(result, function, message):
    with pytest.raises(ArgapError, match=message):
        result.gap({"bad": function})


def test_conditions_without_names_are_refused(result):
    for given in ("repeated", ["repeated"]):
        with pytest.raises(ArgapError, match=r"^`slices` .*repeated.*: expected a name for each condition, as"):
            result.gap(given)


def test_what_a_function_raises_is_raised(result):
    with pytest.raises(ZeroDivisionError):
        result.gap({"bad": lambda batch: 1 / 0})


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("repeated AND", "does not parse"),
        ("'unfinished", "does not parse"),
        ("repeated; DROP TABLE tokens", "does not parse"),
        ("true), (false", "more than one expression"),
        ("true) FROM tokens WHERE (repeated", "does not parse"),
        ("true) FROM tokens; SELECT (true", "more than one expression"),
        ("true) AS a FROM tokens UNION SELECT (repeated", "more than one expression"),
        ("frequency > 3", 'Referenced column "frequency" not found; known columns are'),
        ("nll.nobody > 1", 'Could not find key "nobody"'),
        ('"log p of model 0" < 1', "not found"),
        ("train_count", "gives bigint; expected a boolean"),
        ("NULL", "expected a boolean"),
        ("piece > 3", "Cannot compare"),
        ("pos IN (SELECT 1)", "holds a subquery"),
        ("EXISTS (FROM read_csv('/etc/passwd'))", "holds a subquery"),
        ("(SELECT content LIKE '%root%' FROM read_text('/etc/passwd'))", "holds a subquery"),
        ("read_text('/etc/passwd')", "the function read_text; docs/slices.md lists"),
        ("count(*) > 3", "the function count_star"),
        ("row_number() OVER () < 3", "holds a window function"),
        ("COLUMNS(*)", "holds a star"),
        ("$1", "holds a parameter"),
        ("COPY tokens TO '/tmp/leak.csv'", "does not parse"),
        ("ATTACH '/tmp/leak.db'", "holds a cast to attach"),
        ("INSTALL httpfs", "does not parse"),
        ("LOAD httpfs", "does not parse"),
        ("piece = '\ud800'", "cannot be parsed"),
        ("SET threads = 1", "does not parse"),
        ("PRAGMA threads = 1", "does not parse"),
        ("", "is empty"),
        ("levenshtein(repeat(piece, 99999), piece) > 3", "the function levenshtein"),
        ("length(repeat('a', 1500000000)) > 3", "the function repeat"),
        ("system.main.repeat(piece, 3) = 'a'", "the function repeat"),
        ("piece.repeat(3) = 'a'", "the function repeat"),
        ("length(array_to_string(range(20000000), ',')) > 3", "the function range"),
        ("sleep_ms(100000) IS NULL", "the function sleep_ms"),
        ("len(replace(piece, 'a', 'aaaaaaaaaa')) > 3", "the function replace"),
        ("len(list_transform([1], lambda x: x)) > 3", "the function list_transform"),
        ("lambda x: x", "a lambda"),
        ("random() < 0.5", "the function random"),
        ("like_escape()", "a pattern that is no literal text"),
        ("NOT (NOT (regexp_extract('', '\x0e\x9dv\U00039dca\u00c2', '\u00ec')))", "codec can't decode"),
        ("NULL::INT[100000] IS NULL", "a cast to array"),
        ("piece COLLATE nocase = 'a'", "a collation"),
        ("#1", "a reference"),
        ("word ILIKE '%a%a%a%b'", "a pattern of more than 3 wildcards"),
        ("word GLOB '*a*a*a*b'", "a pattern of more than 3 wildcards"),
        ("word LIKE piece", "a pattern that is no literal text"),
        (f"len(piece{' || piece' * 20}) > 3", "20 joins of texts"),
    ],
)
def test_conditions_that_are_refused(result, where, why):
    for refused in (lambda: result.gap({"bad": where}), lambda: result.tokens(where)):
        with pytest.raises(ArgapError) as caught:
            refused()
        message = str(caught.value)
        assert message.startswith(f'condition "{shortened(where)}": ')
        assert why in message
        assert 'known columns are "window", pos, document, domain' in message
        assert "\n" not in message


def test_parentheses_that_are_not_closed_are_counted_before_they_are_parsed(result):
    """DuckDB takes minutes and gigabytes for some ten thousand of them."""
    with pytest.raises(ArgapError, match=r"opens 20,000 parentheses at once; expected at most 500; known columns"):
        result.gap({"open": "(" * 20_000})
    deep = "(" * 400 + "repeated" + ")" * 400 + f" AND piece <> '{'(' * 600}'"
    assert result.gap({"deep": deep})["n"].notna().all()


def test_a_long_condition_is_not_quoted_whole(result):
    for where, why in ((f"pos > 1{' AND pos > 1' * 10_000}", "has 120,007 characters"), ("1 + " * 5000 + "1", "depth")):
        with pytest.raises(ArgapError, match=rf'^condition ".{{200}}…": .*{why}') as caught:
            result.gap({"long": where})
        assert len(str(caught.value)) < 1000


def test_a_condition_that_fails_on_a_token_or_selects_none(result):
    failing = {"good": "repeated", "bad": "CAST(piece AS INT) > 3", "late": "pos > 3"}
    with pytest.raises(ArgapError, match=r"slice bad: a condition fails on a token: .*Could not convert.*") as caught:
        result.gap(failing)
    assert str(caught.value).endswith(" (CAST(piece AS INT) > 3)")
    with pytest.raises(ArgapError, match=r"a condition fails on a token: .* \(CAST\(piece AS INT\) > 3\)"):
        result.tokens(failing["bad"])
    with pytest.raises(ArgapError, match=r"slice nothing: selects no token \(train_count < 0\)"):
        result.gap({"nothing": "train_count < 0"})


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "COPY (SELECT 1) TO '{folder}/leak.csv'",
        "EXPORT DATABASE '{folder}/leak'",
        "ATTACH '{folder}/leak.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA threads = 1",
        "SELECT * FROM frame",
    ],
)
def test_the_connection_itself_is_closed(statement, tmp_path):
    import duckdb

    frame = pd.DataFrame({"a": [1]})  # noqa: F841  (a replacement scan would find it)
    with connect() as connection, pytest.raises(duckdb.Error):
        connection.execute(statement.format(folder=tmp_path)).fetchall()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_a_query_is_an_interrupt():
    """DuckDB raises a `RuntimeError` of its own for it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores the signal
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt), connect(threads=1) as connection:
            connection.execute("SELECT sum(sin(a.range * b.range)) FROM range(1000000) a, range(1000000) b").fetchall()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["../rare", "a/b", "C:\\rare", "rare.yaml", "", "all", "ar_hits"])
def test_names_that_are_refused(result, name):
    with pytest.raises(ArgapError, match="slice"):
        result.gap({name: "repeated"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slices:\n- {name: a, where: repeated, color: red}", "unknown key color"),
        ("# to be written", "expected KEY: VALUE lines, found nothing"),
        ("slices:\n- {name: a}", "where: missing"),
        ("slices:\n- {name: a, where: repeated}\n- {name: a, where: repeated}", "the name is the name of two slices"),
        ("slices:\n- {name: ../a, where: repeated}", "not a path"),
        ("slices:\n- {name: a, where: repeated AND}", "does not parse"),
        ("rows: []", "expected the one key slices"),
        ("slices: [repeated]", "expected name and where, found str"),
    ],
)
def test_files_that_are_refused(tmp_path, text, why):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ArgapError, match=why) as caught:
        read_slices(tmp_path / "s.yaml")
    assert str(caught.value).startswith(str(tmp_path / "s.yaml"))


def test_without_the_tokens_one_line_says_so(token_result, tmp_path):
    copied_without_tokens(token_result, tmp_path)
    with pytest.raises(ArgapError, match=r"the tokens of this result are not here; expected the run of ref in .*ref"):
        argap.open_result(tmp_path).gap({"rare": "repeated"})


def test_a_threshold_needs_training_counts_and_is_none_below_0(result):
    with pytest.raises(ArgapError, match=r"^`threshold` -1: expected a whole number of occurrences, or scaled$"):
        result.gap({}, threshold=-1)
    uncounted = replace(result, record=replace_fields(result.record, index=None, threshold=None))
    with pytest.raises(ArgapError, match=r"^`threshold` 5: the result has no training counts; add them with `argap la"):
        uncounted.gap({}, threshold=5)


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


def test_nothing_is_filled_in_inside_quotes() -> None:
    """`argap slice --by` prints the values of a column as conditions, and they may be any text."""
    where = """pos < {seq_len} AND "a {seq_len}" = '{{seq_len}, it''s {reference}' AND nll.{reference} > 1"""
    expected = """pos < 64 AND "a {seq_len}" = '{{seq_len}, it''s {reference}' AND nll.ref > 1"""
    assert filled(where, ["ref", "m"], SimpleNamespace(seq_len=64)) == expected  # pyright: ignore[reportArgumentType]
