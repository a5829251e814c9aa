"""Counting a query's n-grams in a corpus: a worked example, and equality with a counter."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argap.bigram_index import ngrams
from argap.bigram_index.ngrams import NgramCounter
from argap.errors import ArgapError, FormatError


def test_ngrams_match_a_worked_example():
    counter = NgramCounter([np.array([1, 2, 3]), np.array([2, 2])], vocab_size=4, longest=3)
    counter.add([np.array([1, 2, 3, 1, 2]), np.array([3, 2, 2, 2]), np.array([1])])
    grams, counts = counter.result(2)
    assert grams.tolist() == [[1, 2], [2, 2], [2, 3]]  # not (3, 1): the query does not have it
    assert counts.tolist() == [2, 2, 1]
    grams, counts = counter.result(3)
    assert grams.tolist() == [[1, 2, 3]]
    assert counts.tolist() == [1]
    counter.add([np.array([1, 2, 3])])
    assert counter.result(3)[1].tolist() == [2]
    assert NgramCounter([np.array([1, 2, 3])], vocab_size=4, longest=2).result(2)[0].tolist() == [[1, 2], [2, 3]]


DOCUMENTS = st.lists(st.lists(st.integers(0, 2), max_size=10), min_size=1, max_size=5)


@settings(max_examples=60)
@given(query=DOCUMENTS, corpus=DOCUMENTS, piece=st.integers(1, 20))
def test_ngrams_equal_a_counter(query, corpus, piece):
    def grams(documents, n):
        return Counter(tuple(d[i : i + n]) for d in documents for i in range(len(d) - n + 1))

    if not grams(query, 2):
        query = [[0, 1], *query]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngrams, "PIECE", piece)
        counter = NgramCounter([np.array(d, dtype=np.int32) for d in query], vocab_size=3)
        counter.add([np.array(d, dtype=np.int32) for d in corpus])
    for n in range(2, 6):
        found, counts = counter.result(n)
        expected = grams(corpus, n)
        wanted = sorted(grams(query, n))
        assert [tuple(g) for g in found.tolist()] == wanted
        assert counts.tolist() == [expected[g] for g in wanted]


def test_invalid_options_are_refused():
    for longest in (1, 6):
        with pytest.raises(ArgapError, match="expected 2 to 5"):
            NgramCounter([np.array([1, 2])], vocab_size=4, longest=longest)
    with pytest.raises(ArgapError, match="no bigram"):
        NgramCounter([np.array([1]), np.array([2])], vocab_size=4)
    counter = NgramCounter([np.array([0, 1])], vocab_size=4)
    for document in ([0, 4], [-1, 0]):
        with pytest.raises(FormatError, match="outside the vocabulary of 4"):
            counter.add([np.array(document)])
