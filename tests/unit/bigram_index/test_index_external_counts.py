"""Proxy indexes made from tables of counts and ARPA models."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.bigram_index.merge import merge_indexes
from argap.bigram_index.sources import external_counts
from argap.bigram_index.sources.external_counts import index_from_arpa, index_from_counts
from argap.bigram_index.store import open_index
from argap.errors import ArgapError, FormatError
from tests.builders.index import contents
from tests.conftest import index_of, word_tokenizer


@pytest.fixture
def tokenizer():
    return word_tokenizer(["a", "b", "c"], unknown="c")


TABLE = pd.DataFrame({"count": [5, 1, 2**40, 7], "second": [1, 0, 2, 1], "first": [0, 2, 1, 0], "note": list("wxyz")})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_repeated_rows_are_added_up(suffix, tokenizer, tmp_path):
    path = tmp_path / f"counts.{suffix}"
    TABLE.to_csv(path, index=False) if suffix == "csv" else TABLE.to_parquet(path)
    index = index_from_counts(path, tmp_path / "index", tokenizer)
    assert index.count([0, 1, 2, 0], [1, 2, 0, 0]).tolist() == [12, 2**40, 1, 0]
    assert (index.documents, index.tokens, index.bigrams, index.distinct) == (0, 13 + 2**40, 13 + 2**40, 3)
    assert index.manifest.empty_documents == 0
    with pytest.raises(ArgapError, match="an index is already there"):
        index_from_counts(path, tmp_path / "index", tokenizer)
    assert index.proxy
    assert json.loads((index.folder / "index.json").read_text())["origin"] == "counts"
    assert sorted(p.name for p in index.folder.iterdir()) == ["index.json", "part-00000.parquet"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.rename(columns={"first": "frist"}), r"no column 'first'; its columns are count, second, frist"),
        (TABLE.assign(second=[1, 0, 3, 1]), "token 3 is outside the vocabulary of 3"),
        (TABLE.assign(first=[0, -1, 1, 0]), "token -1 is outside"),
        (TABLE.assign(count=[5, 0, 1, 7]), "a count of 0, expected at least 1"),
        (TABLE.assign(count="many"), "not readable as CSV"),
        (TABLE.assign(second=True), "second is bool; expected whole numbers"),
        (TABLE.assign(count="2020-01-01 00:00:07"), r"count is timestamp\[s\]; expected whole numbers"),
        (TABLE.assign(count=2**61), "its counts add up to 2⁶³ or more"),
        (TABLE.iloc[:0], "contains no bigram"),
        (TABLE.assign(second=pd.array([1, None, 2, 1], "Int64")), "second: a row without a value"),
    ],
)
def test_bad_tables_are_refused(table, message, tokenizer, tmp_path):
    table.to_csv(tmp_path / "counts.csv", index=False)
    with pytest.raises(ArgapError, match=rf"counts\.csv: .*{message}"):
        index_from_counts(tmp_path / "counts.csv", tmp_path / "index", tokenizer)
    assert not (tmp_path / "index").exists()


def test_a_column_twice_is_refused(tokenizer, tmp_path):
    columns = [pa.array([1])] * 4
    table = pa.Table.from_arrays(columns, names=["first", "second", "count", "second"])
    pq.write_table(table, tmp_path / "counts.parquet")
    with pytest.raises(FormatError, match="two columns second"):
        index_from_counts(tmp_path / "counts.parquet", tmp_path / "index", tokenizer)


def test_a_table_of_other_bytes_is_refused(tokenizer, tmp_path):
    (tmp_path / "counts.csv").write_bytes(b"fi\xb1rst,second,count\n0,1,2\n")
    with pytest.raises(ArgapError, match=r"counts\.csv: not readable as CSV"):
        index_from_counts(tmp_path / "counts.csv", tmp_path / "index", tokenizer)


ARPA = """\\data\\
ngram 1=5
ngram 2=4
ngram 3=1

\\1-grams:
-99\t<s>\t-0.3
-1.0\t</s>
-0.30103\t{a}\t-0.2
-0.60206\t{b}\t-0.1
-5.0\t{c}

\\2-grams:
-0.1\t<s> {a}\t0
-0.30103\t{a} {b}\t-0.5
-0.4\t{b} </s>
-1.0\t{b} {a}
-4.0\t{c} {a}

\\3-grams:
-0.2\t{a} {b} {a}

\\end\\
"""


@pytest.mark.parametrize(("words", "vocabulary"), [("abc", "abc"), ("012", "abc"), ("10c", "10c")])
def test_arpa_probabilities_become_counts(words, vocabulary, tmp_path):
    # P(a) = 1/2, P(b | a) = 1/2; P(b) = 1/4, P(a | b) = 1/10. Of 1,030 tokens: ab a little less than 257.5, ba 25.75,
    # ca at least 1.
    (tmp_path / "lm.arpa").write_text(ARPA.format(**dict(zip("abc", words, strict=True))))
    tokenizer = word_tokenizer(list(vocabulary), unknown="c")
    index = index_from_arpa(tmp_path / "lm.arpa", tmp_path / "index", tokenizer, tokens=1030)
    assert index.count([0, 1, 2, 0], [1, 0, 0, 2]).tolist() == [257, 26, 1, 0]
    assert index.distinct == 3
    assert index.manifest.origin == "arpa"


def test_arpa_is_read_in_pieces(tokenizer, tmp_path, monkeypatch):
    (tmp_path / "lm.arpa").write_text(ARPA.format(a="a", b="b", c="c"))
    whole = index_from_arpa(tmp_path / "lm.arpa", tmp_path / "whole", tokenizer, tokens=1000)
    monkeypatch.setattr(external_counts, "BATCH", 1)
    cut = index_from_arpa(tmp_path / "lm.arpa", tmp_path / "cut", tokenizer, tokens=1000)
    assert contents(cut.folder) == contents(whole.folder)


def test_bad_arpa_is_refused(tokenizer, tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_text(ARPA.format(a="a", b="bee", c="c"))
    with pytest.raises(FormatError, match=r"lm\.arpa: 2 bigrams with words outside the vocabulary"):
        index_from_arpa(path, tmp_path / "index", tokenizer, tokens=1000)
    path.write_text(ARPA.format(a="a", b="b", c="c").replace("-1.0\tb a", "minus one\tb a"))
    with pytest.raises(FormatError, match=r"lm\.arpa, line 17: "):
        index_from_arpa(path, tmp_path / "index", tokenizer, tokens=1000)
    for logprob in ("99", "999"):
        path.write_text(ARPA.format(a="a", b="b", c="c").replace("-1.0\tb a", f"{logprob}\tb a"))
        with pytest.raises(FormatError, match=r"lm\.arpa, line 17: not a line of an ARPA file \("):
            index_from_arpa(path, tmp_path / "index", tokenizer, tokens=1000)
    path.write_text(ARPA.format(a="0", b="1", c=str(2**63)))
    with pytest.raises(FormatError, match=rf"lm\.arpa, line 14: .*\(token {2**63} is not a token id\)"):
        index_from_arpa(path, tmp_path / "index", tokenizer, tokens=1000)
    path.write_text("a" * (2**20 + 1))
    with pytest.raises(FormatError, match=r"lm\.arpa: a line of more than 1,048,576 bytes"):
        index_from_arpa(path, tmp_path / "index", tokenizer, tokens=1000)
    path.write_text("a novel\n")
    with pytest.raises(ArgapError, match=r"lm\.arpa: contains no bigram"):
        index_from_arpa(path, tmp_path / "index", tokenizer, tokens=1000)


def test_a_merge_with_a_proxy_is_a_proxy(tokenizer, tmp_path):
    TABLE.to_csv(tmp_path / "counts.csv", index=False)
    proxy = index_from_counts(tmp_path / "counts.csv", tmp_path / "proxy", tokenizer)
    counted = index_of([np.array([0, 1])], tmp_path / "counted", tokenizer)
    assert not counted.proxy
    merged = merge_indexes([proxy.folder, counted.folder], tmp_path / "merged")
    assert merged.proxy
    assert open_index(merged.folder).manifest.origin == "counted+counts"
