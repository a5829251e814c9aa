"""Conditions that Arrow evaluates give what DuckDB gives, with nulls, NaN and infinities."""

import math

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argap.records.columns import schema_of
from argap.slices.conditions import check_condition

KEPT = {"stars": pa.float64(), "year": pa.int32()}
SCHEMA = schema_of(["ref", "an other"], KEPT, ["pos", "domain", "repeated", "induction", "train_count", *KEPT, "nll"])
NLL = [0.5, 5.0, math.nan, math.inf, 7.25, 5.0000005, 0.0, 4.0]
COLUMNS = {
    "pos": [1, 2, 3, 4, 5, 6, 7, 8],
    "domain": ["code", "web", None, "code", "Code", "", "web", "code"],
    "repeated": [True, False, True, False, True, True, False, True],
    "induction": [None, False, True, None, True, None, None, False],
    "train_count": [None, 0, 1, 9, 10, 2**40, None, 3],
    "stars": [None, 1.0, -1.0, math.nan, 5.0, 5.5, -math.inf, 0.0],
    "year": [1999, None, 2000, 2001, -5, 0, 1, 2],
    "nll": [{"ref": each, "an other": -each} for each in NLL],
}
BATCH = pa.RecordBatch.from_pydict({n: pa.array(v, SCHEMA.field(n).type) for n, v in COLUMNS.items()}, SCHEMA)
ATOMS = [
    "repeated",
    "induction",
    "NOT induction",
    "pos > 3",
    "pos <> -2",
    "train_count <= 9",
    "train_count >= 10",
    "train_count = 1",
    "train_count <> 1",
    "train_count BETWEEN 1 AND 9",
    "train_count NOT BETWEEN 1 AND 9",
    "stars BETWEEN 0 AND 5",
    "stars NOT BETWEEN 0 AND 5",
    "domain = 'code'",
    "domain <> 'code'",
    "domain = 'nowhere'",
    "stars > 1",
    "stars < 5",
    "stars <> 5",
    "stars >= 0",
    "year = 2000",
    "nll.ref > 5",
    "nll.ref <= 5",
    'nll."an other" >= -5',
]


def by_duckdb(where: str) -> list[bool | None]:
    with duckdb.connect() as connection:
        connection.register("tokens", pa.Table.from_batches([BATCH]))
        return [row for (row,) in connection.execute(f"SELECT ({where}) FROM tokens").fetchall()]


@settings(max_examples=30)
@given(parts=st.lists(st.tuples(st.booleans(), st.sampled_from(ATOMS), st.sampled_from(["AND", "OR"])), min_size=1))
def test_arrow_gives_what_duckdb_gives(parts):
    terms = [f"{'NOT ' * negated}({atom}) {join}" for negated, atom, join in parts]
    where = " ".join(terms).removesuffix("AND").removesuffix("OR")
    plain = check_condition(where, SCHEMA).plain
    assert plain is not None
    assert plain(BATCH).to_pylist() == by_duckdb(where)
    assert plain(BATCH.slice(3, 4)).to_pylist() == by_duckdb(where)[3:7]


@pytest.mark.parametrize("atom", ATOMS)
def test_each_comparison(atom):
    plain = check_condition(atom, SCHEMA).plain
    assert plain is not None
    assert plain(BATCH).to_pylist() == by_duckdb(atom)


def test_a_text_that_a_dictionary_has_twice():
    indices = pa.array([0, 1, 2, None, 3], pa.int32())
    source = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b", "a", None]))
    plain = check_condition("source = 'a'", schema_of(["ref"], {}, ["source", "nll"])).plain
    assert plain is not None
    assert plain(pa.RecordBatch.from_pydict({"source": source})).to_pylist() == [True, False, True, None, None]


@pytest.mark.parametrize(
    "where",
    [
        "pos + 1 > 3",
        "repeated AND pos % 2 = 1",
        "pos < train_count",
        "pos BETWEEN 3 AND year",
        "3 < pos",
        "nll.ref > 5.5",
        "nll.ref > 16777217",
        "pos > 99999999999",
        "domain > 'code'",
        "domain = 3::VARCHAR",
        "train_count = '3'",
        "train_count = NULL",
        "pos IN (1, 2)",
        "repeated = true",
        "NOT (repeated AND hash(pos) % 2 = 0)",
        "NLL.ref > 5 OR stars IS NULL",
    ],
)
def test_other_conditions_are_left_to_duckdb(where):
    assert check_condition(where, SCHEMA).plain is None
