"""Repeated bigrams: a worked example, and a loop over all pairs as the oracle."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from argap.evaluation.windows import EvaluationSet
from argap.tokens import repeats
from argap.tokens.repeats import find_repeats


def windows(*rows: list[int], eos: int | None = None) -> EvaluationSet:
    return EvaluationSet(
        tokens=np.concatenate([np.array(row, dtype=np.int32) for row in rows]),
        offsets=np.cumsum([0, *map(len, rows)]),
        document_ends=np.array([sum(map(len, rows))]),
        domains=["d"],
        sources=["s"],
        seq_len=max(map(len, rows)),
        packing="document" if eos is None else "packed",
        eos=eos,
        tokenizer="t",
        tokenizer_fingerprint="f",
    )


def test_repeats_match_the_twelve_token_example():
    # "Hakuna Matata" twice more after its first time, and an overlap at the end:
    #   position   0 1 2 3 4 5 6 7 8 9 10 11
    #   token      h m x h m y h m z a  a  a
    # (h m) ends at 1, 4, 7: repeated at 4 (3 back) and 7 (3 back, two earlier ends).
    # (a a) ends at 10, 11: repeated at 11, 1 back. (m x), (m y), (m z) differ; (x h), (y h) too.
    h, m, x, y, z, a = range(6)
    found = find_repeats(windows([h, m, x, h, m, y, h, m, z, a, a, a]))
    assert np.flatnonzero(found.repeated).tolist() == [4, 7, 11]
    assert found.distance.tolist() == [0, 0, 0, 0, 3, 0, 0, 3, 0, 0, 0, 1]
    assert found.occurrences.tolist() == [0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1]


def test_a_repetition_in_another_window_does_not_count():
    assert not find_repeats(windows([1, 2, 3], [1, 2, 3])).repeated.any()
    # Nor does a bigram that spans the border: the last token of one window and the first of the next.
    assert not find_repeats(windows([1, 2], [1, 3, 2, 1])).repeated.any()


def test_a_bigram_with_eos_is_never_repeated():
    found = find_repeats(windows([5, 0, 5, 0, 5, 6, 5, 6], eos=0))
    assert np.flatnonzero(found.repeated).tolist() == [7]


def brute_force(data: EvaluationSet):
    n = len(data.tokens)
    repeated, distance, occurrences = np.zeros(n, bool), np.zeros(n, int), np.zeros(n, int)
    for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        x = data.tokens[start:end].tolist()
        for i in range(1, len(x)):
            earlier = [j for j in range(1, i) if (x[j - 1], x[j]) == (x[i - 1], x[i])]
            if earlier and data.eos not in (x[i - 1], x[i]):
                repeated[start + i] = True
                distance[start + i] = i - max(earlier)
                occurrences[start + i] = len(earlier)
    return repeated, distance, occurrences


@settings(max_examples=100)
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=5),
    eos=st.sampled_from([None, 0]),
)
def test_agrees_with_a_loop_over_all_pairs(rows, eos):
    data = windows(*rows, eos=eos)
    for found, expected in zip(find_repeats(data), brute_force(data), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_repeats_do_not_depend_on_the_block_size(monkeypatch):
    rows = [np.random.default_rng(i).integers(0, 4, size=30).tolist() for i in range(7)]
    whole = find_repeats(windows(*rows))
    monkeypatch.setattr(repeats, "WINDOWS_AT_ONCE", 2)
    for a, b in zip(whole, find_repeats(windows(*rows)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_vocabularies_do_not_overflow():
    high = 2**22
    row = [high - 1, high - 2, 5, high - 1, high - 2]
    found = find_repeats(windows(*([row] * 2048)))
    assert found.repeated.sum() == 2048
