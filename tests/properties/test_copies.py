"""Repeated bigrams and labels of copies: worked examples, and the definitions, word by word, as the oracle."""

import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from argap.evaluation.windows import EvaluationSet
from argap.tokens import copies, labels
from argap.tokens.copies import Copies, by_suffix_array, find_copies
from argap.tokens.labels import find_repeats


def found_in(*rows: list[int], eos: int | None = None) -> Copies:
    return find_copies(np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]), eos)


def by_definition(row: list[int], eos: int | None) -> Copies:
    """Each definition of its own, in O(T⁴). Every EOS is a token that equals no other."""
    x = [-1 - i if token == eos else token for i, token in enumerate(row)]
    opportunity, match_length, induction = [], [], []
    for i in range(len(x)):
        opportunity.append(any(x[j - 1] == x[i - 1] for j in range(1, i)))
        lengths = [n for n in range(1, i) for j in range(n, i) if x[j - n : j + 1] == x[i - n : i + 1]]
        match_length.append(max(lengths, default=0))
        # A suffix of n tokens that ends at j - 1: the token after it is x_j, before i.
        ends = [(n, j) for n in range(1, i) for j in range(n, i) if x[j - n : j] == x[i - n : i]]
        induction.append(bool(ends) and x[max(ends)[1]] == x[i])  # the longest, of these the latest
    return Copies(np.array(opportunity), np.array(match_length), np.array(induction))


def by_all_pairs(row: list[int], eos: int | None) -> Copies:
    """In O(T²): of each pair j < i, how many last tokens x_0 … x_j and x_0 … x_i share."""
    x = np.array([-1 - i if token == eos else token for i, token in enumerate(row)])
    columns = Copies(np.zeros(len(x), bool), np.zeros(len(x), np.int32), np.zeros(len(x), bool))
    shared = np.zeros(0, int)  # [i - 1], of the pairs (j, i - 1)
    for i in range(1, len(x)):
        if shared.max(initial=0):
            latest = np.flatnonzero(shared == shared.max())[-1]
            columns.opportunity[i], columns.induction[i] = True, x[latest + 1] == x[i]
        shared = np.where(x[:i] == x[i], np.append(0, shared) + 1, 0)
        columns.match_length[i] = max(shared.max() - 1, 0)
    return columns


def by_suffix_array_alone(row: list[int], eos: int | None) -> Copies:
    n = len(row)
    columns = Copies(np.zeros(n, bool), np.zeros(n, np.int32), np.zeros(n, bool))
    by_suffix_array(np.array(row, dtype=np.int32), -1 if eos is None else eos, *columns)
    return columns


def assert_same(found: Copies, expected: Copies) -> None:
    for name, column, wanted in zip(Copies._fields, found, expected, strict=True):
        np.testing.assert_array_equal(column, wanted, err_msg=name)


def test_copies_match_the_twelve_token_example():
    #   position   0 1 2 3 4 5 6 7 8 9 10 11
    #   token      a b c a b d a b c a b  d
    # Opportunities: the token before occurred before from position 4 on, except at 6, after the first d.
    # Match lengths:   4: "a" b, 1.  7: "a" b, 1; "d a" b is new.  8: "a b" c, 2.  9: "a b c" a, 3.  10: "a b c a" b, 4.
    #                  5: (b d) is new.  11: "a b" d ends at 5, 2; "c a b" d also at 5, 3; "b c a b" d, 4; "a b c a b" d
    #                  is x_0 … x_5, 5.
    # Induction, the token after the latest occurrence of the longest suffix that occurred:
    #   4 "a" → b, right.  5 "a" "b": "a b" at 1 → c, wrong.  7 "a", latest at 3 → b, right.  8 "a b", latest at 4 → d,
    #   wrong, though "a b" c occurred.  9 "a b c" → a, right.  10 "a b c a" → b.  11 "a b c a b" → d, right.
    a, b, c, d = range(4)
    found = found_in([a, b, c, a, b, d, a, b, c, a, b, d])
    assert np.flatnonzero(found.opportunity).tolist() == [4, 5, 7, 8, 9, 10, 11]
    assert found.match_length.tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4, 5]
    assert np.flatnonzero(found.induction).tolist() == [4, 7, 9, 10, 11]


def test_occurrences_may_overlap():
    # In a a a a the suffix "a a" of position 3 ends at 1 as well as at 2: "a a" before 3 occurred at 0 and 1.
    found = found_in([5, 5, 5, 5])
    assert found.opportunity.tolist() == [False, False, True, True]
    assert found.match_length.tolist() == [0, 0, 1, 2]
    assert found.induction.tolist() == [False, False, True, True]


def test_of_equally_long_suffixes_the_latest_is_copied():
    # "a" is followed by b, then by c; a copier of the latest says c.
    assert found_in([0, 1, 0, 2, 0, 2]).induction.tolist() == [False, False, False, False, False, True]
    assert found_in([0, 1, 0, 2, 0, 1]).induction.tolist() == [False] * 6


def test_a_longer_suffix_goes_before_a_later_one():
    # "b a" → c, though the latest "a" → d.
    found = found_in([1, 0, 2, 3, 0, 4, 1, 0, 2])
    assert found.induction[8]
    assert found.match_length[8] == 2


def test_an_eos_equals_no_token():
    #   position   0 1 2 3 4 5 6 7 8
    #   token      a b . a b . a b a      (. is EOS)
    # No match reaches over an EOS: at 4 and 7 "a" b, 1 and not more. An EOS target after a known "b" (5) is an
    # opportunity that misses, although an EOS stood there, too. After an EOS (3, 6) there is none.
    # At 8 the latest "a b" was followed by an EOS: an opportunity, whose copy is wrong.
    found = found_in([1, 2, 0, 1, 2, 0, 1, 2, 1], eos=0)
    assert np.flatnonzero(found.opportunity).tolist() == [4, 5, 7, 8]
    assert found.match_length.tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert np.flatnonzero(found.induction).tolist() == [4, 7]
    # Nor where the latest copy, "a" c, is wrong and an older one is looked for: at 8 "a" b, and no ". a" b.
    assert found_in([0, 1, 2, 0, 1, 3, 0, 1, 2], eos=0).match_length.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1]


rows_of_few = st.integers(1, 4).flatmap(lambda high: st.lists(st.integers(0, high), min_size=1, max_size=40))


@settings(max_examples=80, deadline=None)
@given(row=rows_of_few, eos=st.sampled_from([None, 0]))
@example(row=[0, 1] * 15 + [1] + [0, 1] * 15, eos=None)
def test_both_methods_agree_with_the_definitions(row, eos):
    expected = by_definition(row, eos)
    assert_same(found_in(row, eos=eos), expected)
    assert_same(by_suffix_array_alone(row, eos), expected)
    assert_same(by_all_pairs(row, eos), expected)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(rows_of_few, min_size=1, max_size=5), eos=st.sampled_from([None, 0]))
def test_the_labels_keep_their_invariants(rows, eos):
    found, repeated = found_in(*rows, eos=eos), find_repeats(windows(*rows, eos=eos)).repeated
    assert np.array_equal(found.match_length > 0, repeated)
    assert not (repeated & ~found.opportunity).any()
    assert not (found.induction & ~repeated).any()
    # One window at a time gives the same.
    alone = [np.concatenate(columns) for columns in zip(*(found_in(row, eos=eos) for row in rows), strict=True)]
    assert_same(found, Copies(*alone))


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 3000])
@pytest.mark.parametrize("tokens", ["one token", "bits", "Fibonacci word", "de Bruijn", "errors", "new ids"])
def test_both_methods_agree_on_hard_texts(tokens, length):
    row = HARD[tokens][:length].tolist()
    expected = by_suffix_array_alone(row, None)
    assert_same(found_in(row), expected)
    # Between windows of other lengths nothing is carried over.
    first, _, last = [1, 0, 1], row, [0, 1, 0, 1]
    several = found_in(first, row, last)
    assert_same(Copies(*(column[3:-4] for column in several)), expected)
    assert_same(Copies(*(column[-4:] for column in several)), found_in(last))


def hard_texts() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shorter, word = [0], [0, 1]
    while len(word) < 3000:
        shorter, word = word, word + shorter
    errors = np.tile(np.arange(50), 60)
    errors[random.integers(0, 3000, 60)] = 50
    return {
        "one token": np.zeros(3000, int),
        "bits": random.integers(0, 2, 3000),
        "Fibonacci word": np.array(word),
        "de Bruijn": np.array(de_bruijn(11) + de_bruijn(9) + de_bruijn(9)),
        "errors": errors,
        "new ids": np.arange(3000),
    }


def de_bruijn(order: int) -> list[int]:
    """Every word of ``order`` bits once, by the greedy rule: append a 1 unless the word occurred."""
    bits, seen = [0] * order, {(0,) * order}
    while True:
        for bit in (1, 0):
            word = (*bits[len(bits) - order + 1 :], bit)
            if word not in seen:
                seen.add(word)
                bits.append(bit)
                break
        else:
            return bits


HARD = hard_texts()


def test_a_window_of_many_comparisons_goes_to_the_suffix_array(monkeypatch):
    calls = []

    def counted(x, *rest):
        calls.append(len(x))
        return by_suffix_array(x, *rest)

    monkeypatch.setattr(copies, "by_suffix_array", counted)
    found_in([0, 1, 0, 1], HARD["bits"].tolist(), [2, 2, 2])
    assert calls == [3000]


def test_any_integers_are_ids():
    row = np.array([7, 8, 7, 8, 9, 7, 8, 9], dtype=np.int64)
    expected = found_in(row.tolist(), eos=9)
    for tokens, eos in ((row - 8, 1), (row + 2**40, 2**40 + 9), (row.astype(np.uint16), 9)):
        assert_same(find_copies(tokens, np.array([0, 8]), eos), expected)
    tokens = row + 2**22
    tokens.setflags(write=False)
    assert_same(find_copies(tokens, np.array([0, 8]), 9), found_in(row.tolist()))  # an EOS that is not in the text


def test_no_tokens_and_empty_windows():
    assert [len(column) for column in find_copies(np.empty(0, np.int32), np.array([0]))] == [0, 0, 0]
    assert_same(
        find_copies(np.array([3, 3, 3]), np.array([0, 0, 3, 3])), find_copies(np.array([3, 3, 3]), np.array([0, 3]))
    )


def test_a_real_text_agrees_with_all_pairs(tokenizer):
    (ids,) = tokenizer.encode([Path(textwrap.__file__).read_text()])
    row = np.append(ids, [0, *ids[:500]]).tolist()
    found = found_in(row, eos=0)
    assert_same(found, by_all_pairs(row, 0))
    assert_same(by_suffix_array_alone(row, 0), found)
    assert found.match_length.max() == 499  # of the last token, before which the text's 499 first tokens stand


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
    monkeypatch.setattr(labels, "WINDOWS_AT_ONCE", 2)
    for a, b in zip(whole, find_repeats(windows(*rows)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_vocabularies_do_not_overflow():
    high = 2**22
    row = [high - 1, high - 2, 5, high - 1, high - 2]
    found = find_repeats(windows(*([row] * 2048)))
    assert found.repeated.sum() == 2048
