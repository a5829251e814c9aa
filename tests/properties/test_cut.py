"""Segments against their definition: by hand, and by brute force with random tokenizers of several kinds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argap.errors import ArgapError, MismatchError
from argap.evaluation.segments import (
    Segments,
    TokenizedDocument,
    cut_windows,
    find_segments,
    tokenized,
    up_to_common_end,
)
from argap.records import EvaluationSpec
from argap.text.tokenizer import Tokenizer
from argap.tokens.aligned import open_segmented_text
from tests.builders.tokenizers import FAMILIES, TEXTS, WORDS, byte_fallback, byte_level, characters, word_piece


def brute_force(raw: bytes, document: list[TokenizedDocument], logprobs: list[np.ndarray]) -> list[tuple]:
    """(first byte, end, known, sum of each tokenization) of every segment, from the definition, byte by byte."""
    segments, start, taken = [], 0, [0] * len(document)
    for byte in range(1, len(raw) + 1):
        if all(byte in each.ends.tolist() for each in document):
            stops = [each.ends.tolist().index(byte) + 1 for each in document]
            sums = [float(lp[a:b].astype(np.float64).sum()) for lp, a, b in zip(logprobs, taken, stops, strict=True)]
            unknown = any(d.unknown[a:b].any() for d, a, b in zip(document, taken, stops, strict=True))
            segments.append((start, byte, not unknown, sums))
            start, taken = byte, stops
    return segments


def documents_of(texts: list[str], tokenizers: list[Tokenizer]) -> list[tuple[TokenizedDocument, ...]]:
    names = [f"document {k}" for k in range(len(texts))]
    return list(zip(*(tokenized(texts, each, names) for each in tokenizers), strict=True))


def test_segments_by_hand():
    # "héllo": bytes h | C3 A9 | l l o. One tokenizer cuts inside é.
    a = TokenizedDocument(np.arange(4), np.array([1, 2, 3, 6]), np.zeros(4, bool))
    b = TokenizedDocument(np.arange(3), np.array([1, 4, 6]), np.zeros(3, bool))
    segments = find_segments([(a, b)], separated=False)
    assert segments.bytes.tolist() == [1, 5]
    assert [each.tolist() for each in segments.tokens] == [[0, 1, 4], [0, 1, 3]]
    sums = segments.sums(np.array([-1.0, -2.0, -4.0, -8.0]), 0), segments.sums(np.array([-1.0, -3.0, -5.0]), 1)
    assert [each.tolist() for each in sums] == [[-1, -14], [-1, -8]]
    # A token without bytes is in the segment of the token behind it.
    c = TokenizedDocument(np.arange(3), np.array([1, 1, 6]), np.zeros(3, bool))
    assert find_segments([(b, c)], separated=False).tokens[1].tolist() == [0, 1, 3]
    # The first segment of a window has no score.
    assert np.isnan(segments.in_windows(np.array([0, 2])).sums(np.array([np.nan, -2.0, -4.0, -8.0]), 0)[0])
    assert segments.scored.tolist() == [True, True]  # those given stay as they are
    first = segments.first(1)
    assert [each.tolist() for each in (first.bytes, *first.tokens, first.document, first.scored)] == [
        [1], [0, 1], [0, 1], [0], [True],
    ]  # fmt: skip
    # Without a token in one of the tokenizations all is behind the last common end.
    none = TokenizedDocument(*(np.empty(0, of) for of in (np.int32, np.int64, bool)))
    behind = find_segments([(b, none)], separated=False)
    assert (behind.bytes.tolist(), behind.scored.tolist()) == ([6], [False])
    assert [each.tolist() for each in behind.tokens] == [[0, 3], [0, 0]]


def test_ends_by_hand():
    """``é`` is two tokens of byte-level BPE, each with one byte; the space that Llama puts in front has none."""
    (white,) = tokenized(["a\n "], byte_level(0, 0), ["x"])
    assert white.ends.tolist() == [1, 2, 3]
    (bytes_,) = tokenized(["é a"], byte_level(0, 0), ["x"])
    assert bytes_.ends.tolist() == [1, 2, 3, 4]
    (llama,) = tokenized(["a ☃"], byte_fallback(0, 0), ["x"])
    assert llama.ends.tolist() == [0, 1, 2, 3, 4, 5]  # ▁ a ▁ E2 98 83
    (words,) = tokenized(["the  Cat ☃ "], word_piece(0, 20), ["x"])
    assert words.ends[-1] == len("the  Cat ☃".encode())
    assert words.unknown[-1]


@settings(max_examples=60)
@given(
    kinds=st.lists(st.tuples(st.sampled_from(FAMILIES), st.integers(0, 5), st.integers(0, 40)), min_size=2, max_size=3),
    texts=st.lists(st.sampled_from([*TEXTS, *WORDS]), min_size=1, max_size=3),
    odd=st.text(max_size=12),
)
def test_segments_are_finest_cover_every_byte_once_and_add_up(kinds, texts, odd):
    texts = [*texts, odd.replace("\r", "") + " the end"]
    tokenizers = [family(seed, entries) for family, seed, entries in kinds]
    documents = documents_of(texts, tokenizers)
    generator = np.random.default_rng(0)
    logprobs = [
        [-generator.random(len(tokens.ids)).astype(np.float32) for tokens in of_one]
        for of_one in zip(*documents, strict=True)
    ]
    segments = find_segments(documents, separated=False)
    together = [np.concatenate(each) if each else np.empty(0) for each in logprobs]
    sums = [segments.sums(each, k) for k, each in enumerate(together)]
    at = 0
    for d, (text, document) in enumerate(zip(texts, documents, strict=True)):
        raw = text.encode()
        expected = brute_force(raw, list(document), [each[d] for each in logprobs])
        covered = bytearray(len(raw))
        for start, end, known, of_each in expected:
            assert segments.bytes[at] == end - start
            assert segments.scored[at] == known
            if known:
                np.testing.assert_allclose([each[at] for each in sums], of_each, rtol=0, atol=1e-12)
            for byte in range(start, end):
                covered[byte] += 1
            at += 1
        assert all(count == 1 for count in covered[: expected[-1][1] if expected else 0])
        if at < len(segments) and segments.document[at] == d:  # text behind the last common end
            assert not segments.scored[at]
            at += 1
    assert at == len(segments)
    for k, each in enumerate(segments.tokens):  # every token is in exactly one segment
        assert each[0] == 0
        assert each[-1] == sum(len(document[k].ids) for document in documents)
        assert np.all(np.diff(each) >= 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_tokenizers_have_their_tokens_as_segments(family):
    tokenizer = family(0, 30)
    texts = [text.strip() for text in TEXTS]
    documents = documents_of(texts, [tokenizer, tokenizer])
    segments = find_segments(documents, separated=False)
    tokens = np.concatenate([np.diff(document[0].ends, prepend=0) for document in documents])
    # A token without bytes (a space before the text) is in the segment of the token behind it.
    assert segments.bytes.tolist() == tokens[tokens > 0].tolist()
    logprob = -np.random.default_rng(0).random(len(tokens)).astype(np.float32)
    sums = segments.sums(logprob, 0)
    alone = segments.scored & (np.diff(segments.tokens[0]) == 1)
    assert alone.sum() > len(tokens) / 4
    own = logprob.astype(np.float64)[segments.tokens[0][1:][alone] - 1]
    np.testing.assert_allclose(sums[alone], own, rtol=1e-12)
    if tokens.all():
        offsets = cut_windows(segments, [7, 7], within_documents=False, names=texts)
        assert offsets.tolist() == [*range(0, len(tokens), 7), len(tokens)]


def test_every_window_has_the_same_bytes_and_fits_every_model():
    tokenizers = [byte_level(0, 40), characters(0, 0)]
    documents = [up_to_common_end(document) for document in documents_of(WORDS, tokenizers)]
    segments = find_segments(documents, separated=False)
    offsets = cut_windows(segments, [12, 20], within_documents=True, names=WORDS)
    for a, b in itertools.pairwise(offsets):
        assert len(set(segments.document[a:b])) == 1
        for tokens, limit in zip(segments.tokens, (12, 20), strict=True):
            assert 0 < tokens[b] - tokens[a] <= limit
        more = b < len(segments) and segments.document[b] == segments.document[a]  # one more would not fit
        assert not more or any(
            tokens[b + 1] - tokens[a] > limit for tokens, limit in zip(segments.tokens, (12, 20), strict=True)
        )


def test_text_beyond_the_limit_and_behind_the_last_common_end_is_left_out(tmp_path):
    """One tokenizer has a token for each byte, the other one for each word and none for white space."""
    (tmp_path / "a.txt").write_text("hello world")
    (tmp_path / "b.txt").write_text("the cat" + 50 * " ")
    tokenizers = [byte_level(0, 0), word_piece(0, 100)]
    for limit, offsets in ((None, [0, 11, 18]), (14, [0, 11, 14]), (13, [0, 11])):
        spec = EvaluationSpec(data=(str(tmp_path),), packing="document", limit_tokens=limit)
        text = open_segmented_text(spec, tokenizers, [12, 12])
        assert text.sets[0].offsets.tolist() == offsets
        assert len(text.sets[0].tokens) == offsets[-1]
    # The 50 tokens behind "the cat" do not count towards the limit: "a dog" is read, too.
    (tmp_path / "c.txt").write_text("a dog")
    for limit, offsets in ((30, [0, 11, 18, 23]), (22, [0, 11, 18, 19])):
        spec = EvaluationSpec(data=(str(tmp_path),), packing="document", limit_tokens=limit)
        assert open_segmented_text(spec, tokenizers, [12, 12]).sets[0].offsets.tolist() == offsets
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ArgapError, match=r"empty\.txt: nothing to score there; expected a document of at least two"):
        open_segmented_text(EvaluationSpec(data=(str(tmp_path / "empty.txt"),)), tokenizers, [12, 12])


def test_a_segment_longer_than_a_window_is_refused_with_its_bytes():
    segments = Segments(
        np.array([3, 50]), (np.array([0, 1, 9]), np.array([0, 1, 2])), np.zeros(2, int), np.ones(2, bool)
    )
    with pytest.raises(MismatchError, match="book: the tokenizers have no common token end in bytes 3 to 53"):
        cut_windows(segments, [4, 4], within_documents=False, names=["book"])


@settings(max_examples=40)
@given(text=st.text(min_size=1, max_size=30), entries=st.integers(0, 40))
def test_ends_of_byte_level_tokens_are_those_of_their_bytes(text, entries):
    for seed in (0, 1):  # without and with a space before the text
        tokenizer = byte_level(seed, entries)
        (document,) = tokenized([text], tokenizer, ["x"])
        ends = np.cumsum([len(tokenizer.piece_bytes[token]) for token in document.ids.tolist()])
        assert ends[-1] - len(text.encode()) in (0, seed)
        assert document.ends.tolist() == np.maximum(ends - (ends[-1] - len(text.encode())), 0).tolist()


def test_offsets_out_of_order_are_refused_with_their_span(monkeypatch):
    tokenizer = byte_level(0, 0)
    spans = np.array([[0, 1], [2, 3], [1, 2]])
    monkeypatch.setattr(tokenizer, "encode_batch_spans", lambda texts: [(np.arange(3, dtype=np.int32), spans)])
    with pytest.raises(MismatchError, match=r"page 7: .* at characters 1 to 2 \('b'\)"):
        tokenized(["abc"], tokenizer, ["page 7"])
