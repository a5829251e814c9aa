"""Conditions on tokens as DuckDB SQL: checked, then evaluated for all slices and models in one pass.

A condition is one boolean expression over the columns of `argap.tokens`. It cannot reach anything else: subqueries,
aggregates and window functions are refused, and the connection neither reads files, loads extensions nor changes
settings.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from argap.errors import ArgapError
from argap.interrupt import current
from argap.token_columns import LOGPROB, MASK, SEGMENTED, UNIT, schema_of
from argap.tokens import Mask, OfVocabulary, TokenTable

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


def connect() -> duckdb.DuckDBPyConnection:
    """A database in memory, closed to everything but the tables registered with this connection."""
    return _database(os.getpid()).cursor()


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config=LOCKED)
    connection.execute("SET lock_configuration = true")
    return connection


@dataclass(frozen=True)
class Condition:
    """A condition that `check_condition` accepted."""

    sql: str
    columns: tuple[str, ...]
    """Those that it names."""


def check_condition(where: str, schema: pa.Schema) -> Condition:
    """Parse a condition over tokens with the columns of ``schema`` (`argap.token_columns.schema_of`).

    Raises `ArgapError`, one line with the condition and the known columns, unless it is one boolean expression over
    them, without subqueries, aggregates, window functions or table functions.
    """
    with connect() as connection:
        expression = _parse(connection, where, schema)
        parts = list(_objects(expression))
        for part in parts:
            if what := REFUSED.get(part.get("class", "")):
                raise _refusal(where, f"holds {what}; expected an expression over the columns of one token", schema)
        named = {name.lower() for part in parts for name in part.get("column_names", ())}
        columns = tuple(name for name in schema.names if name.lower() in named)
        connection.register(TABLE, schema.empty_table())
        try:
            connection.execute(f"EXPLAIN SELECT 1 FROM {TABLE} WHERE (\n{where}\n)").fetchall()
            described = connection.execute(f"DESCRIBE SELECT (\n{where}\n) FROM {TABLE}").fetchall()
        except duckdb.Error as error:
            raise _refusal(where, reason(error), schema) from None
    if (given := described[0][1]) != "BOOLEAN":
        raise _refusal(where, f"gives {given.lower()}; expected a boolean", schema)
    return Condition(where, columns)


def check_syntax(where: str) -> None:
    """Refuse a condition that is not one expression, whatever the models and columns."""
    with connect() as connection:
        _parse(connection, re.sub(r"\{(reference|seq_len)\}", "x", where), schema_of(["reference"]))


def _parse(connection: duckdb.DuckDBPyConnection, where: str, schema: pa.Schema) -> dict[str, Any]:
    """The syntax tree of a condition, refused where it is more than one expression."""

    def tree(expression: str) -> dict[str, Any]:
        query = f"SELECT (\n{expression}\n) FROM {TABLE}"
        ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
        return json.loads(text)

    parsed, plain = tree(where), tree("true")
    if not where.strip():
        raise _refusal(where, "is empty", schema)
    if parsed["error"]:
        raise _refusal(where, f"does not parse ({' '.join(parsed['error_message'].split())})", schema)
    nodes = [statement["node"] for statement in (*parsed["statements"], *plain["statements"])]
    selected, *_ = [node.pop("select_list", []) for node in nodes]
    if len(nodes) != 2 or len(selected) != 1 or _bare(nodes[0]) != _bare(nodes[1]):
        raise _refusal(where, "is more than one expression", schema)
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


def _refusal(where: str, why: str, schema: pa.Schema) -> ArgapError:
    models = [field.name for field in schema.field("nll").type]
    fields = ", ".join(f"nll.{quoted(model)}" for model in models[:2])
    known = ", ".join(schema.names)
    return ArgapError(f'condition "{" ".join(where.split())}": {why}; known columns are {known} ({fields}, …)')


def quoted(name: str) -> str:
    """A name as SQL spells it."""
    plain = re.fullmatch("[a-z_][a-z0-9_]*", name) and name not in _keywords()
    return name if plain else '"' + name.replace('"', '""') + '"'


@cache
def _keywords() -> frozenset[str]:
    """Words that DuckDB takes as a name in quotation marks only."""
    with connect() as connection:
        query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
        return frozenset(name for (name,) in connection.execute(query).fetchall())


class FailsOnToken(ArgapError):
    """A condition that DuckDB refuses for the value of some token."""


@dataclass(frozen=True)
class Sums:
    """Of each combination of unit, slices and value that tokens fall into. Legend: G groups, S slices, M models."""

    unit: np.ndarray
    """``[G]``: of the bootstrap; a document or a group of them."""
    member: np.ndarray
    """bool ``[G, S]``."""
    n: np.ndarray
    """``[G]``: tokens, or bytes of segments."""
    logprob: np.ndarray
    """float64 ``[G, M]``: sums of log p in nats."""
    value: np.ndarray
    """``[G]``: of the column asked for, as text; None where it is null, and without one."""


def sums(
    table: TokenTable, slices: Mapping[str, Condition | Mask], units: np.ndarray, *, by: str | None = None
) -> Sums:
    """What every slice needs, in one pass over the tokens; ``by``: a column whose values are groups, too.

    ``units``: int32 ``[D]``, the unit of each document; the tokens of those with -1 are left out. A segment of several
    tokens is in a slice where one of them is, and has the value of its last. Raises `FailsOnToken`, naming slice and
    condition, for one that fails on a token.
    """
    found = {name: looked_up(table, each) or each for name, each in slices.items()}
    masks = {name: each for name, each in found.items() if not isinstance(each, Condition)}
    conditions = {
        name: each.sql if isinstance(each, Condition) else quoted(MASK + name) for name, each in found.items()
    }
    named = {name for each in found.values() if isinstance(each, Condition) for name in each.columns} | {by}
    logprobs = [f"{LOGPROB}{m}" for m in range(len(table.models))]
    named |= set(SEGMENTED if table.by_segment else ())
    columns = [name for name in table.columns if name in named]
    query = _query(list(conditions.values()), logprobs, as_text(by, table) if by else "NULL", table.by_segment)
    try:
        with streamed(table, [UNIT, *columns, *logprobs], masks, units=units) as connection:
            unit, value, *got = connection.execute(query).fetchnumpy().values()
    except FailsOnToken:
        _name_culprit(table, columns, masks, conditions)
        raise
    words = got[: -1 - len(logprobs)]
    held = [np.asarray(words[k // BITS], dtype=np.int64) >> (k % BITS) & 1 for k in range(len(conditions))]
    member = np.stack(held, axis=1).astype(bool) if held else np.zeros((len(unit), 0), dtype=bool)
    n, *logprob = (np.asarray(column) for column in got[len(words) :])
    text: Any = np.ma.asarray(value)
    text = np.where(np.ma.getmaskarray(text), None, text.data.astype(object))
    return Sums(np.asarray(unit), member, n, np.stack(logprob, axis=1), text)


def _query(conditions: Sequence[str], logprobs: Sequence[str], value: str, by_segment: bool) -> str:
    """Sums by unit, value and the words of bits that say which conditions hold; ``by_segment``: of segments."""
    words = [
        " + ".join(
            f"CASE WHEN (\n{sql}\n) THEN {1 << k}::BIGINT ELSE 0 END" for k, sql in enumerate(conditions[i : i + BITS])
        )
        for i in range(0, len(conditions), BITS)
    ]
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


def _name_culprit(
    table: TokenTable,
    columns: Sequence[str],
    masks: Mapping[str, Mask | OfVocabulary],
    conditions: Mapping[str, str],
) -> None:
    """Raise `FailsOnToken` for the first condition that fails, in the first portion of the tokens where one does."""
    with connect() as connection:
        for batch in table.batches(columns, masks=masks):
            connection.register(TABLE, pa.Table.from_batches([batch]))
            for name, sql in conditions.items():
                try:
                    connection.execute(f"SELECT count(*) FROM {TABLE} WHERE (\n{sql}\n)").fetchall()
                except duckdb.Error as error:
                    raise FailsOnToken(
                        f"slice {name}: a condition fails on a token: {reason(error)} ({' '.join(sql.split())})"
                    ) from None


@contextmanager
def streamed(
    table: TokenTable,
    columns: Sequence[str],
    masks: Mapping[str, Mask | OfVocabulary],
    models: Sequence[str] | None = None,
    units: np.ndarray | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the tokens as the table `TABLE`, to be read once. What reading or a function raises, the block
    raises; DuckDB's own errors become `FailsOnToken`."""
    failed: list[Exception] = []
    interrupt = current()  # read here: DuckDB pulls the batches in threads of its own

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in table.batches(columns, masks=masks, models=models, units=units):
                interrupt.check()
                yield batch
        except Exception as error:
            failed.append(error)
            raise

    of_masks = pa.schema([(MASK + name, pa.bool_()) for name in masks])
    schema = pa.schema([*table.schema(columns, models), *of_masks])
    with connect() as connection:
        connection.register(TABLE, pa.RecordBatchReader.from_batches(schema, batches()))
        try:
            with interrupt.watching(connection):
                yield connection
        except duckdb.Error as error:
            interrupt.check()
            if failed:
                raise failed[0] from None
            raise FailsOnToken(f"a condition fails on a token: {reason(error)}") from None
