"""Counts of single tokens, made in the same pass: a worked example, and equality with a counter."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argap.bigram_index.counting import count_numba, count_numpy
from argap.bigram_index.counting.count import BigramCounter
from argap.bigram_index.merge import merge_indexes
from argap.bigram_index.store import open_index, write_index
from argap.errors import ArgapError, FormatError
from tests.conftest import flip_bit


@pytest.mark.parametrize("count_tokens", [count_numba.count_tokens, count_numpy.count_tokens])
def test_token_counts_match_a_worked_example(count_tokens):
    # vocabulary 3, boundary 3; the first piece ends inside a document that goes on in the second.
    last, count, documents = np.full(3, -1), np.zeros(3, np.int64), np.zeros(3, np.int64)
    assert count_tokens(np.array([0, 0, 1, 3, 0]), 0, last, count, documents) == 1
    assert count_tokens(np.array([0, 2, 3, 3, 2]), 1, last, count, documents) == 3
    # documents 001 | 002 | (empty) | 2
    assert count.tolist() == [4, 1, 2]
    assert documents.tolist() == [2, 1, 2]


@settings(max_examples=40)
@given(documents=st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=8), chunk=st.integers(1, 12))
def test_counts_equal_a_counter(documents, chunk, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("stats") / "runs"
    counter = BigramCounter(5, chunk=chunk, scratch=scratch, stats=True)
    for document in documents:
        counter.add(np.array(document, dtype=np.int64))
    list(counter.rows())
    counter.close()
    assert counter.stats is not None
    stats = counter.stats.result()
    tokens = Counter(token for document in documents for token in document)
    having = Counter(token for document in documents for token in set(document))
    assert stats.count.tolist() == [tokens[i] for i in range(5)]
    assert stats.documents.tolist() == [having[i] for i in range(5)]


def write(folder, documents, stats=True):
    folder.mkdir()
    counter = BigramCounter(5, chunk=7, scratch=folder / "runs", stats=stats)
    for document in documents:
        counter.add(document)
    write_index(
        folder, counter.rows(), tokenizer="t", tokenizer_fingerprint="ab" * 32, vocab_size=5,
        documents=counter.documents, empty_documents=0, tokens=counter.tokens, sources=[folder.name],
        stats=counter.stats.result if counter.stats else None,
    )  # fmt: skip
    counter.close()
    return open_index(folder)


DOCUMENTS = [np.array(d) for d in ([0, 1, 0, 1, 4], [2], [0, 0, 0, 0, 0, 0, 0, 0], [4, 3, 2, 1, 0])]


def test_stats_are_written_read_and_merged(tmp_path):
    whole = write(tmp_path / "a", DOCUMENTS)
    table = pd.read_parquet(whole.folder / "stats.parquet")
    assert table.columns.tolist() == ["token", "count", "documents"]
    assert table["count"].tolist() == whole.stats.count.tolist() == [11, 3, 2, 1, 2]
    assert table["documents"].tolist() == whole.stats.documents.tolist() == [3, 2, 2, 1, 2]
    shares = [write(tmp_path / name, DOCUMENTS[i::2]).folder for i, name in enumerate(("a#0", "a#1"))]
    merged = merge_indexes(shares, tmp_path / "merged")
    assert (merged.folder / "stats.parquet").read_bytes() == (whole.folder / "stats.parquet").read_bytes()
    # Occurrences are [2, 2, 0, 0, 1] + [8, 0, 0, 0, 0] and [0, 0, 1, 0, 0] + [1, 1, 1, 1, 1].
    weighted = merge_indexes(shares, tmp_path / "weighted", weights=[2, 0.5]).stats
    assert weighted.count.tolist() == [20, 4, 1, 0, 2]  # 20.5, 4.5, 1, 0.5 and 2.5: halves to even
    assert weighted.documents.tolist() == [3, 2, 2, 1, 2]


def test_index_without_stats_says_so(tmp_path):
    bare = write(tmp_path / "bare", DOCUMENTS, stats=False)
    with pytest.raises(ArgapError, match="build it again with `stats=True`"):
        _ = bare.stats
    full = write(tmp_path / "full", DOCUMENTS)
    merged = merge_indexes([bare.folder, full.folder], tmp_path / "merged")
    assert not merged.manifest.stats
    assert "stats" not in (merged.folder / "index.json").read_text()


def test_damaged_stats_are_detected(tmp_path):
    index = write(tmp_path / "index", DOCUMENTS)
    path = index.folder / "stats.parquet"
    flip_bit(path, 40)
    for look in (index.verify, lambda: index.stats):
        with pytest.raises(FormatError, match=r"stats\.parquet: damaged"):
            look()
