"""Slices as bits of an integer for each token: those that it is in.

Arrow compares columns with constants, ids are looked up in the vocabulary, and DuckDB evaluates every other condition.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from argap.records.columns import MASK, UNIT
from argap.slices.arrow_conditions import Evaluated
from argap.slices.conditions import TABLE, Condition, connect
from argap.tokens.batches import Mask, OfVocabulary
from argap.tokens.table import TokenTable

BITS = 30
"""Slices in one integer."""
VALUE = f"{MASK}value"
"""Column of the values to sum by."""


class Word(NamedTuple):
    """`BITS` slices as the bits of an integer."""

    sql: str | None
    """An integer with the bits of those that DuckDB evaluates; its column in the result of `bits_query`."""
    column: str
    columns: list[str]
    """Columns of the batch with bits of further ones."""
    plain: dict[int, Evaluated]
    """By bit."""

    def of(self, batch: pa.RecordBatch, evaluated: pa.Table | None) -> np.ndarray:
        """int32 ``[N]``."""
        word = np.zeros(len(batch), dtype=np.int32)
        for bit, holds in self.plain.items():
            word |= np.left_shift(_bits(holds(batch)), bit, dtype=np.int32)
        for name in self.columns:
            word |= batch[name].to_numpy()
        if self.sql is not None and evaluated is not None:
            word |= evaluated[self.column].to_numpy()
        return word


def _bits(holds: pa.Array) -> np.ndarray:
    """uint8 ``[N]``: 1 where a boolean is true, neither false nor null. NumPy unpacks bits faster than Arrow does."""
    values = holds.fill_null(False)
    packed = np.frombuffer(values.buffers()[1], dtype=np.uint8)
    return np.unpackbits(packed, count=values.offset + len(values), bitorder="little")[values.offset :]


def as_bits(slices: Mapping[str, Condition | Mask | OfVocabulary]) -> tuple[list[Word], dict[str, Mask | OfVocabulary]]:
    """The slices as bits, and the masks that these need."""
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
            name = f"{start}: {'previous' if previous else 'token'}"  # no slice is named so
            masks[name] = OfVocabulary(values, previous)
            columns.append(MASK + name)
        words.append(Word(" + ".join(terms) or None, f"{MASK}{start}", columns, plain))
    return words, masks


def bits_query(words: Sequence[Word], value: str | None) -> str | None:
    """What DuckDB evaluates of each token, in order: 0 and null of those that are not scored. None: nothing."""
    made = [f'CASE WHEN "{UNIT}" >= 0 THEN {word.sql} ELSE 0 END AS "{word.column}"' for word in words if word.sql]
    if value is not None:
        made.append(f'CASE WHEN "{UNIT}" >= 0 THEN {value} END AS "{VALUE}"')
    return f"SELECT {', '.join(made)} FROM {TABLE}" if made else None


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
