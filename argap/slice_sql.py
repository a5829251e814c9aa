"""Conditions on tokens as DuckDB SQL: checked, then evaluated for all slices and models in one pass.

A condition is one boolean expression over the columns of `argap.tokens`. It cannot reach anything else: subqueries,
aggregates and window functions are refused, and the connection neither reads files, loads extensions nor changes
settings.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from argap.errors import ArgapError, Interrupted
from argap.tokens import COLUMNS, LOGPROB, MASK, Mask, TokenTable, schema_of

LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
TABLE = "tokens"
BITS = 62
"""Conditions that one integer column says of a token which hold."""
REFUSED = {"SUBQUERY": "a subquery", "WINDOW": "a window function", "STAR": "a star", "PARAMETER": "a parameter"}


class Interrupt:
    """Stops, from any thread, the queries that run inside `interruptible`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: duckdb.DuckDBPyConnection | None = None
        self.asked = False

    def set(self) -> None:
        """The running query and those that follow raise `Interrupted`."""
        with self._lock:
            self.asked = True
            if self._running is not None:
                self._running.interrupt()

    def check(self) -> None:
        """Raise `Interrupted` if it was asked for."""
        if self.asked:
            raise Interrupted("the query was interrupted")

    @contextmanager
    def watching(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Inside, `set` interrupts ``connection``."""
        with self._lock:
            self._running = connection
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._running = None


_interrupt: ContextVar[Interrupt | None] = ContextVar("argap_interrupt", default=None)


@contextmanager
def interruptible(interrupt: Interrupt) -> Iterator[None]:
    """Queries over tokens inside the block, in this thread, stop when ``interrupt`` is set."""
    token = _interrupt.set(interrupt)
    try:
        yield
    finally:
        _interrupt.reset(token)


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory, closed to everything but the tables registered with it."""
    connection = duckdb.connect(config=LOCKED)
    connection.execute("SET lock_configuration = true")
    return connection


@dataclass(frozen=True)
class Condition:
    """A condition that `check_condition` accepted."""

    sql: str
    columns: tuple[str, ...]
    """Those of `COLUMNS` that it names."""


def check_condition(where: str, models: Sequence[str]) -> Condition:
    """Parse a condition over the tokens of ``models``.

    Raises `ArgapError`, one line with the condition and the known columns, unless it is one boolean expression over
    them, without subqueries, aggregates, window functions or table functions.
    """
    with connect() as connection:
        expression = _parse(connection, where, models)
        parts = list(_objects(expression))
        for part in parts:
            if what := REFUSED.get(part.get("class", "")):
                raise _refusal(where, f"holds {what}; expected an expression over the columns of one token", models)
        named = {name.lower() for part in parts for name in part.get("column_names", ())}
        columns = tuple(name for name in COLUMNS if name in named)
        connection.register(TABLE, schema_of(models).empty_table())
        try:
            connection.execute(f"EXPLAIN SELECT 1 FROM {TABLE} WHERE (\n{where}\n)").fetchall()
            described = connection.execute(f"DESCRIBE SELECT (\n{where}\n) FROM {TABLE}").fetchall()
        except duckdb.Error as error:
            raise _refusal(where, reason(error), models) from None
    if (given := described[0][1]) != "BOOLEAN":
        raise _refusal(where, f"gives {given.lower()}; expected a boolean", models)
    return Condition(where, columns)


def check_syntax(where: str) -> None:
    """Refuse a condition that is not one expression, whatever the models and columns."""
    with connect() as connection:
        _parse(connection, re.sub(r"\{(reference|seq_len)\}", "x", where), ["reference"])


def _parse(connection: duckdb.DuckDBPyConnection, where: str, models: Sequence[str]) -> dict[str, Any]:
    """The syntax tree of a condition, refused where it is more than one expression."""

    def tree(expression: str) -> dict[str, Any]:
        query = f"SELECT (\n{expression}\n) FROM {TABLE}"
        ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
        return json.loads(text)

    parsed, plain = tree(where), tree("true")
    if not where.strip():
        raise _refusal(where, "is empty", models)
    if parsed["error"]:
        raise _refusal(where, f"does not parse ({' '.join(parsed['error_message'].split())})", models)
    nodes = [statement["node"] for statement in (*parsed["statements"], *plain["statements"])]
    selected, *_ = [node.pop("select_list", []) for node in nodes]
    if len(nodes) != 2 or len(selected) != 1 or _bare(nodes[0]) != _bare(nodes[1]):
        raise _refusal(where, "is more than one expression", models)
    return selected[0]


def _bare(tree: Any) -> Any:
    """A syntax tree without the positions in the text."""
    if isinstance(tree, dict):
        return {key: _bare(value) for key, value in tree.items() if not key.startswith("query_location")}
    return [_bare(value) for value in tree] if isinstance(tree, list) else tree


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a syntax tree."""
    if isinstance(tree, dict):
        yield tree
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _objects(value)


def reason(error: duckdb.Error) -> str:
    """The first line of DuckDB's message, without its class."""
    return str(error).splitlines()[0].partition(" Error: ")[2] or str(error).splitlines()[0]


def _refusal(where: str, why: str, models: Sequence[str]) -> ArgapError:
    fields = ", ".join(f"nll.{quoted(model)}" for model in models[:2])
    known = ", ".join(COLUMNS)
    return ArgapError(f'condition "{" ".join(where.split())}": {why}; known columns are {known} ({fields}, …)')


def quoted(name: str) -> str:
    """A name as SQL spells it."""
    plain = re.fullmatch("[a-z_][a-z0-9_]*", name) and name != "window"  # a keyword
    return name if plain else '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Sums:
    """Of each combination of document and slices that tokens fall into. Legend: G groups, S slices, M models."""

    document: np.ndarray
    """``[G]``."""
    member: np.ndarray
    """bool ``[G, S]``."""
    n: np.ndarray
    """``[G]``: tokens."""
    logprob: np.ndarray
    """float64 ``[G, M]``: sums of log p in nats."""

    def among(self, groups: np.ndarray) -> "Sums":
        """Only some of the groups (bool ``[G]``)."""
        return Sums(self.document[groups], self.member[groups], self.n[groups], self.logprob[groups])


def sums(table: TokenTable, slices: Mapping[str, Condition | Mask]) -> Sums:
    """What every slice needs, in one pass over the tokens. Raises `ArgapError` for one that fails on a token."""
    masks = {name: each for name, each in slices.items() if not isinstance(each, Condition)}
    conditions = [each.sql if isinstance(each, Condition) else quoted(MASK + name) for name, each in slices.items()]
    named = {name for each in slices.values() if isinstance(each, Condition) for name in each.columns}
    logprobs = [f"{LOGPROB}{m}" for m in range(len(table.models))]
    columns = ["document", *(name for name in COLUMNS if name in named - {"document"}), *logprobs]
    words = [
        " + ".join(
            f"CASE WHEN (\n{sql}\n) THEN {1 << k}::BIGINT ELSE 0 END" for k, sql in enumerate(conditions[i : i + BITS])
        )
        for i in range(0, len(conditions), BITS)
    ]
    inner = ", ".join(
        ["document", *(f'"{name}"' for name in logprobs), *(f"{w} AS member{k}" for k, w in enumerate(words))]
    )
    keys = ", ".join(["document", *(f"member{k}" for k in range(len(words)))])
    totals = ", ".join(f'sum("{name}"::DOUBLE)' for name in logprobs)
    query = f"SELECT {keys}, count(*) AS n, {totals} FROM (SELECT {inner} FROM {TABLE}) GROUP BY {keys} ORDER BY {keys}"
    with streamed(table, columns, masks) as connection:
        got = list(connection.execute(query).fetchnumpy().values())
    held = [np.asarray(got[1 + k // BITS], dtype=np.int64) >> (k % BITS) & 1 for k in range(len(conditions))]
    member = np.stack(held, axis=1).astype(bool) if held else np.zeros((len(got[0]), 0), dtype=bool)
    n, *logprob = (np.asarray(column) for column in got[1 + len(words) :])
    return Sums(np.asarray(got[0]), member, n, np.stack(logprob, axis=1))


@contextmanager
def streamed(
    table: TokenTable, columns: Sequence[str], masks: Mapping[str, Mask], models: Sequence[str] | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the tokens as the table `TABLE`, to be read once. What reading or a function raises, the block
    raises; DuckDB's own errors become an `ArgapError`."""
    failed: list[Exception] = []
    interrupt = _interrupt.get() or Interrupt()  # read here: DuckDB pulls the batches in threads of its own

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in table.batches(columns, masks=masks, models=models):
                interrupt.check()
                yield batch
        except Exception as error:
            failed.append(error)
            raise

    of_masks = pa.schema([(MASK + name, pa.bool_()) for name in masks])
    schema = schema_of(table.models if models is None else models, columns)
    schema = pa.schema([*schema, *of_masks])
    with connect() as connection:
        connection.register(TABLE, pa.RecordBatchReader.from_batches(schema, batches()))
        try:
            with interrupt.watching(connection):
                yield connection
        except duckdb.Error as error:
            interrupt.check()
            if failed:
                raise failed[0] from None
            raise ArgapError(f"a condition fails on a token: {reason(error)}") from None
