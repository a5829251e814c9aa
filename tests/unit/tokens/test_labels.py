"""Labels: the 12-token example with a training text, counts at the threshold, and the files."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.corpus import open_corpus
from argap.errors import FormatError, MismatchError
from argap.evaluation.windows import EvaluationSet, build_evaluation_set
from argap.records import LeftOut
from argap.records.columns import COPIED
from argap.suite.collect import keep_others, labels_of
from argap.tokens.labels import label, label_portions, read_labels, with_counts, write_labels
from tests.conftest import index_of

H, M, X, Y, Z, A = 10, 11, 12, 13, 14, 15
TRAINING = [np.array([H, M]), np.array([H, M, X])]


@pytest.fixture
def example(tmp_path, tokenizer):
    """One window, h m x h m y h m z a a a, whose repeated bigrams end at 4 and 7 (h m) and 11 (a a).

    Training text: (h m) occurs twice inside documents; (m h) stands across a border of two documents and
    does not count; (a a) never occurs.
    """
    index = index_of(TRAINING, tmp_path / "index", tokenizer)
    tokens = np.array([H, M, X, H, M, Y, H, M, Z, A, A, A], dtype=np.int32)
    data = EvaluationSet(
        tokens=tokens,
        offsets=np.array([0, 12]),
        document_ends=np.array([5, 12]),
        domains=["prose", "code"],
        sources=["p", "c"],
        seq_len=12,
        packing="packed",
        eos=0,
        tokenizer="t",
        tokenizer_fingerprint=tokenizer.fingerprint,
    )
    return data, index


def test_labels_of_portions_are_those_of_all(tokenizer, tmp_path):
    texts = ["a b a b a c", "", "one two one two", "x", "q r s q r s q r"]
    path = tmp_path / "text.jsonl"
    path.write_text(
        "".join(json.dumps({"text": text or " ", "domain": f"d{k % 2}"}) + "\n" for k, text in enumerate(texts))
    )
    for packing in ("packed", "document"):
        data = build_evaluation_set(open_corpus(str(path)), tokenizer, seq_len=5, packing=packing)
        whole = label(data)
        for size in (1, 3):
            starts = range(0, data.windows, size)
            parts = list(label_portions(data, None, [data.all[k : k + size] for k in starts]))
            for name in ("window", "position", "repeated", "distance", "occurrences", "domain", *COPIED):
                joined = np.concatenate([getattr(part, name) for part in parts])
                assert np.array_equal(joined, getattr(whole, name)), name
            assert all(np.array_equal(part.document_of_window, whole.document_of_window) for part in parts)
        for window in data.all:
            rows = data.rows(range(window, window + 1))
            documents, tokens = np.unique(data.document[rows], return_counts=True)
            assert data.document_of_window[window] == documents[tokens.argmax()]
            assert (data.window[rows] == window).all()
            assert data.position[rows].tolist() == list(range(rows.stop - rows.start))
        lengths = np.diff(data.document_ends, prepend=0)
        assert np.array_equal(data.document, np.repeat(np.arange(len(lengths)), lengths))


def test_train_counts_match_a_worked_example(example):
    labels = label(*example)
    #                                     h  m  x  h  m  y  h  m  z  a  a  a
    assert labels.train_count.tolist() == [0, 2, 1, 0, 2, 0, 0, 2, 0, 0, 0, 0]


def test_train_counts_are_exposures_rounded_half_to_even(example, tmp_path, tokenizer):
    data, _ = example
    labels = label(data, index_of(TRAINING, tmp_path / "read again", tokenizer, passes=2.5))
    # (h m) 2 × 2.5 = 5; (m x) 1 × 2.5 = 2.5, to the even 2
    assert labels.train_count.tolist() == [0, 5, 2, 0, 5, 0, 0, 5, 0, 0, 0, 0]
    assert labels.train_count.dtype == np.int64
    assert labels.record.index.passes == 2.5
    assert labels.record.index.exposed_tokens == 12.5


def test_labels_without_an_index_call_every_repeated_bigram_a_hit(example, tmp_path, tokenizer):
    labels = label(example[0])
    assert np.flatnonzero(labels.ar_hit(None)).tolist() == np.flatnonzero(labels.ar_hit(0)).tolist() == [4, 7, 11]
    write_labels(labels, tokenizer, tmp_path / "labels")
    column = pq.read_table(tmp_path / "labels" / "labels.parquet")["train_count"]
    assert (column.type, column.null_count) == (pa.int64(), 12)
    again = read_labels(tmp_path / "labels")
    assert (again.train_count, again.record.index) == (None, None)
    counted = with_counts(again, example[0].tokens, example[1])
    assert counted.train_count.tolist() == label(*example).train_count.tolist()
    assert counted.record == label(*example).record


def test_a_count_of_exactly_the_threshold_is_a_hit(example):
    labels = label(*example)
    assert np.flatnonzero(labels.ar_hit(2)).tolist() == [4, 7, 11]
    assert np.flatnonzero(labels.ar_hit(1)).tolist() == [11]
    assert np.flatnonzero(labels.ar_hit(0)).tolist() == [11]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_domains_are_read_as_other_writers_have_them(example, tmp_path, tokenizer, kind):
    write_labels(label(*example), tokenizer, tmp_path / "labels")
    path = tmp_path / "labels" / "labels.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("domain"), "domain", table["domain"].cast(kind)), path)
    (tmp_path / "labels" / "checksums.json").unlink()
    again = read_labels(tmp_path / "labels")
    assert [again.domains[d] for d in again.domain] == ["prose"] * 5 + ["code"] * 7


def test_domains_are_each_tokens_own_and_the_window_has_one_document(example):
    labels = label(*example)
    assert [labels.domains[d] for d in labels.domain] == ["prose"] * 5 + ["code"] * 7
    assert labels.document_of_window.tolist() == [1]


def test_labels_of_windows_that_stay_are_those_labelled_alone():
    def of(windows):
        tokens = np.array([1, 2, 1, 2, 3, 3, 3, 3, 1, 3, 1, 3], dtype=np.int32).reshape(3, 4)[windows].ravel()
        ends = np.arange(4, len(tokens) + 1, 4)
        names = ["t"] * len(ends)
        return EvaluationSet(tokens, np.append(0, ends), ends, names, names, 4, "document", 0, "t", "f")

    whole, alone = of([0, 1, 2]), of([0, 2])
    labels, expected = label(whole), label(alone)
    left_out = LeftOut(where={}, documents=(1,), tokens=4, scored=3, fingerprint="")
    kept = keep_others(whole.record, whole.tokens, labels.window, labels.document_of_window, left_out)
    found = labels_of(labels, kept)
    for name in ("position", "repeated", "distance", "occurrences", "opportunity", "match_length", "induction"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
    assert found.window.tolist() == [0] * 4 + [2] * 4


def test_labels_of_segments_by_hand(example):
    labels = label(*example)
    #                             h  m  x  h  m  y  h  m  z  a   a  a
    # count                          2  1     2        2
    # repeated                                *        *            *
    segment_bytes = np.array([-1, 0, 3, 0, 4, 0, 5, 0, 0, 2, -1, 1], dtype=np.int32)
    labels = replace(labels, segment_bytes=segment_bytes)
    assert np.flatnonzero(~labels.scored).tolist() == [0, 10]
    assert labels.weight.tolist() == segment_bytes.tolist()
    # Of m x the bigram that training saw less, of h m and m z a the repeated one, of y h the first of equals.
    assert labels.shown.tolist() == [2, 4, 5, 7, 11]
    assert replace(labels, train_count=None).shown.tolist() == [1, 4, 5, 7, 11]
    logprob = -np.arange(12, dtype=np.float32)  # of which only those of the ends count
    expected = [np.nan, -2, -2, -4, -4, -6, -6, -9, -9, -9, np.nan, -11]
    np.testing.assert_array_equal(labels.over_segments(logprob), expected)


def test_labels_round_trip(example, tokenizer, tmp_path):
    labels = label(*example)
    write_labels(labels, tokenizer, tmp_path / "labels")
    again = read_labels(tmp_path / "labels")
    for name, value in vars(labels).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(again, name), value, err_msg=name, strict=True)
        else:
            assert getattr(again, name) == value
    schema = pq.read_schema(tmp_path / "labels" / "labels.parquet")
    assert [field.name for field in schema if field.nullable] == ["induction"]
    record = (tmp_path / "labels" / "labels.json").read_text()
    (tmp_path / "labels" / "labels.json").write_text('{"format": 1, "index": {}}')
    with pytest.raises(FormatError, match=r"labels\.json: Object missing required field `folder` - at.*; repeat its"):
        read_labels(tmp_path / "labels")
    (tmp_path / "labels" / "labels.json").write_text(record)
    (tmp_path / "labels" / "labels.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"labels\.parquet: damaged"):
        read_labels(tmp_path / "labels")


def test_an_index_of_another_tokenizer_is_refused(example, tmp_path, tokenizer):
    data, _ = example
    other = index_of(TRAINING, tmp_path / "other", tokenizer, tokenizer="gpt2", tokenizer_fingerprint="0" * 64)
    with pytest.raises(MismatchError, match=r"counted with the tokenizer gpt2 \(000000000000\)"):
        label(data, other)
