"""Conditions on tokens as DuckDB SQL.

A condition is one boolean expression over the columns of `argap.tokens.table`. It cannot reach anything else:
subqueries, aggregates, window functions and functions without a bound are refused (`argap.slices.allowed`), and the
connection neither reads files, loads extensions nor
changes settings.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import accumulate
from typing import Any

import duckdb
import pyarrow as pa

from argap.errors import ArgapError, first_line
from argap.files.atomic import parse_json
from argap.records import COPY, HIT, INDUCTION, MISS, NEW_KEY, NO_PREDICTION, RIGHT, WRONG
from argap.records.columns import BY_MODEL, COPIED, OPTION_OF, OPTIONAL, schema_of
from argap.runtime.interrupt import current, raising_interrupts
from argap.slices.allowed import DEEPEST, LONGEST, Node, refused_part
from argap.slices.arrow_conditions import Evaluated, plain_condition
from argap.tokens.batches import Mask, OfVocabulary, TokenReader
from argap.tokens.table import TokenTable

LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "50%",
}
TABLE = "tokens"
FAILURES = (duckdb.Error, UnicodeDecodeError)
"""What DuckDB raises: its messages may be cut within a character."""
QUOTED = 200
"""Most characters of a condition, or of what DuckDB says of it, in a message."""
HEAD = "SELECT (\n"
"""What stands before a condition when it is parsed."""


@contextmanager
def connect(threads: int | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Connect to an in-memory database that can read only the tables registered with this connection.

    ``threads``: per query; None: one per core.
    """
    with raising_interrupts(), _database(os.getpid(), threads).cursor() as connection:
        yield connection


@cache
def _database(process: int, threads: int | None) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config=LOCKED | ({} if threads is None else {"threads": threads}))
    connection.execute("SET lock_configuration = true")
    return connection


@dataclass(frozen=True)
class Condition:
    """A condition that `check_condition` accepted."""

    sql: str
    columns: tuple[str, ...]
    """Columns that it names."""
    models: tuple[str, ...] = ()
    """Models whose fields of `argap.records.columns.BY_MODEL` it names."""
    plain: Evaluated | None = None
    """The same condition as a function of a batch with `columns`; None if it needs DuckDB."""


def check_condition(where: str, schema: pa.Schema) -> Condition:
    """Parse a condition over tokens with the columns of ``schema`` (`argap.records.columns.schema_of`).

    Raises `ArgapError`, one line with the condition and the known columns, unless it is one boolean expression over
    them, without subqueries, aggregates, window functions or table functions.
    """
    models = [field.name for field in schema.field("nll").type]
    with connect() as connection:
        expression = _parse(connection, where, schema)
        if named := _with_fields(where, expression, schema):
            where, expression = named, _parse(connection, named, schema)
        parts = list(_objects(expression))
        paths = [[name.lower() for name in part["column_names"]] for part in parts if "column_names" in part]
        columns = tuple(name for name in schema.names if any(name.lower() in path for path in paths))
        connection.register(TABLE, schema.empty_table())
        try:
            connection.execute(f"EXPLAIN SELECT 1 FROM {TABLE} WHERE (\n{where}\n)").fetchall()
            described = connection.execute(f"DESCRIBE SELECT (\n{where}\n) FROM {TABLE}").fetchall()
        except FAILURES as error:
            why = reason(error) + _meant(error, (*schema.names, *models))
            for name, option in OPTION_OF.items():
                having = schema.field(name).type.num_fields if name in schema.names else 0
                if having < len(models) and any(name in path for path in paths):
                    flag = option.replace("_", "-")
                    why += f"; `argap score --{flag}` keeps {name}, where models share a tokenizer"
            if any(name in path for path in paths for name in {*COPIED}.difference(schema.names)):
                why += "; its labels are of an earlier argap, `argap label RESULT` adds the column"
            raise _refusal(where, why, schema) from None
    if (given := described[0][1]) != "BOOLEAN":
        raise _refusal(where, f"gives {given.lower()}; expected a boolean", schema)
    return Condition(where, columns, tuple(_models(paths, models)), plain_condition(expression, schema))


def _models(paths: Sequence[Sequence[str]], models: Sequence[str]) -> Iterator[str]:
    """Yield the models whose field of one of `BY_MODEL` is named; all if a whole struct is named."""
    of_models = [path for path in paths if not set(BY_MODEL).isdisjoint(path)]
    whole = any(path[-1] in BY_MODEL for path in of_models)
    for model in models:
        if whole or any(path[-1] == model.lower() for path in of_models):
            yield model


def _with_fields(where: str, expression: Node, schema: pa.Schema) -> str | None:
    """Write a column of `OPTIONAL` that a single model has with its field, ``kl`` as ``kl.model``; None if none occurs.

    Only one model is compared where a quantisation is, and its KL needs no name.
    """
    fields = {name: schema.field(name).type for name in OPTIONAL if name in schema.names}
    single = {name: quoted(of.field(0).name) for name, of in fields.items() if of.num_fields == 1}
    found = [
        (part["query_location"] - len(HEAD), part["column_names"][0].lower())
        for part in _objects(expression)
        if len(part.get("column_names", ())) == 1 and part["column_names"][0].lower() in single
    ]
    text = where.encode()
    for at, name in sorted(found, reverse=True):
        at += text[at : at + 1] == b'"'
        end = at + len(name)
        end += text[end : end + 1] == b'"'
        text = text[:end] + f".{single[name]}".encode() + text[end:]
    return text.decode() if found else None


def check_syntax(where: str) -> None:
    """Raise `ArgapError` unless a condition is a single expression; models and columns are not checked."""
    with connect() as connection:
        _parse(connection, re.sub(r"\{(reference|seq_len)\}", "x", where), schema_of(["reference"]))


def _parse(connection: duckdb.DuckDBPyConnection, where: str, schema: pa.Schema) -> Node:
    """Parse a condition into its syntax tree.

    Raises `ArgapError` unless it is a single expression of parts that `argap.slices.allowed` lists.
    """
    if len(where) > LONGEST:
        raise _refusal(where, f"has {len(where):,} characters; expected at most {LONGEST:,}", schema)
    if (depth := _depth(where)) > DEEPEST:
        raise _refusal(where, f"opens {depth:,} parentheses at once; expected at most {DEEPEST}", schema)

    def tree(expression: str) -> Node:
        query = f"{HEAD}{expression}\n) FROM {TABLE}"
        try:
            ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
            return parse_json(text)
        except (*FAILURES, ValueError) as error:
            raise _refusal(where, f"cannot be parsed ({first_line(error)})", schema) from None

    parsed, plain = tree(where), tree("true")
    if not where.strip():
        raise _refusal(where, "is empty", schema)
    if parsed["error"]:
        raise _refusal(where, f"does not parse ({_syntax_error(where, parsed)})", schema)
    nodes = [statement["node"] for statement in (*parsed["statements"], *plain["statements"])]
    selected, *_ = [node.pop("select_list", []) for node in nodes]
    if len(nodes) != 2 or len(selected) != 1 or _bare(nodes[0]) != _bare(nodes[1]):
        raise _refusal(where, "is more than one expression", schema)
    if what := refused_part(list(_objects(selected[0]))):  # before DuckDB plans it, which runs parts without columns
        raise _refusal(where, f"holds {what}", schema)
    return selected[0]


def _depth(where: str) -> int:
    """Return how many parentheses are open at once, at most, outside of quotes."""
    marks = re.findall("[()]", re.sub("'[^']*'|\"[^\"]*\"", "", where))
    return max(accumulate(1 if mark == "(" else -1 for mark in marks), default=0)


def _syntax_error(where: str, parsed: Mapping[str, Any]) -> str:
    """Return DuckDB's message about a condition, without the query that it was parsed in."""
    if int(parsed.get("position", 0)) >= len(f"SELECT (\n{where}".encode()):
        return "a ) too many" if where.count(")") > where.count("(") else "it ends too early"
    return " ".join(parsed["error_message"].split())


def _bare(tree: Any) -> Any:
    """Strip source positions from a syntax tree."""
    if isinstance(tree, dict):
        return {key: _bare(value) for key, value in tree.items() if not key.startswith("query_location")}
    return [_bare(value) for value in tree] if isinstance(tree, list) else tree


def _objects(tree: Any) -> Iterator[Node]:
    """Yield every object of a syntax tree, without recursion, as trees may be deep."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def reason(error: Exception) -> str:
    """Return the first line of DuckDB's message, without its error class."""
    line = first_line(error).removesuffix("!").removesuffix(" in FROM clause")  # a condition has no FROM clause
    return shortened(line.partition(" Error: ")[2] or line)


def shortened(text: str) -> str:
    """Return text on one line, cut where it is longer than a message should be."""
    line = " ".join(text[: 4 * QUOTED].split())
    return line if len(text) <= QUOTED else f"{line[:QUOTED]}…"


def _meant(error: Exception, known: Sequence[str]) -> str:
    """Suggest the known column or model, or DuckDB's function, that is closest to the unknown name in an error."""
    unknown = re.search(r'(?:column|table|key|named) "([^"]+)"', first_line(error))
    close = get_close_matches(unknown[1], known, 1) if unknown else re.findall(r'Did you mean "([^"]+)"', str(error))
    return f" (did you mean {quoted(close[0])}?)" if close else ""


def _refusal(where: str, why: str, schema: pa.Schema) -> ArgapError:
    models = [field.name for field in schema.field("nll").type]
    fields = ", ".join(f"nll.{quoted(model)}" for model in models[:2])
    known = ", ".join(map(quoted, schema.names))
    return ArgapError(f'condition "{shortened(where)}": {why}; known columns are {known} ({fields}, …)')


def quoted(name: str) -> str:
    """Return a name as an SQL identifier, quoted if necessary."""
    plain = re.fullmatch("[a-z_][a-z0-9_]*", name) and name not in _keywords()
    return name if plain else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


COPIED_AS = {
    COPY: {
        NEW_KEY: "NOT opportunity",
        MISS: "opportunity AND NOT repeated",
        f"{HIT}1": "match_length = 1",
        f"{HIT}2": "match_length = 2",
        f"{HIT}3–4": "match_length BETWEEN 3 AND 4",
        f"{HIT}5+": "match_length >= 5",
    },
    INDUCTION: {RIGHT: "induction", WRONG: "NOT induction", NO_PREDICTION: "NOT opportunity"},
}
"""The SQL condition for each bin of the partitions by `argap.tokens.copies`."""


def hits_of(threshold: int | None) -> str:
    """Return the SQL condition for AR hits; without training counts, every repeated bigram."""
    return "repeated" if threshold is None else f"repeated AND train_count <= {threshold}"


@cache
def _keywords() -> frozenset[str]:
    """Return the words that DuckDB accepts as names only when quoted."""
    with connect() as connection:
        query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
        return frozenset(name for (name,) in connection.execute(query).fetchall())


class FailsOnToken(ArgapError):
    """DuckDB cannot evaluate a condition on the value of some token."""


@contextmanager
def streamed(
    table: TokenTable,
    columns: Sequence[str],
    masks: Mapping[str, Mask | OfVocabulary],
    models: Sequence[str] | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection that streams the tokens, in order, as the table `TABLE`.

    The table can be read once, and the query may stop early. Errors from reading or from a mask propagate from the
    block; DuckDB's own become `FailsOnToken`.
    """
    failed: list[BaseException] = []
    interrupt = current()  # read here: DuckDB pulls batches in its own threads
    reader = TokenReader(table, columns, masks=masks, models=models)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for rows in reader.rows():
                interrupt.check()
                yield reader.batch(rows)
        except (Exception, KeyboardInterrupt) as error:
            failed.append(error)
            raise

    with connect() as connection:
        connection.register(TABLE, pa.RecordBatchReader.from_batches(reader.schema, batches()))
        try:
            with interrupt.watching(connection):
                yield connection
        except FAILURES as error:
            interrupt.check()
            if failed:
                raise failed[0] from None
            raise FailsOnToken(f"a condition fails on a token: {reason(error)}") from None
