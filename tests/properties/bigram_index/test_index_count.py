"""Counts equal `collections.Counter` for any division into chunks and runs, and so do merged shards, byte for byte."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argap.bigram_index.counting import engines
from argap.bigram_index.counting.count import BigramCounter, chunk_tokens, merge_runs, token_type
from argap.bigram_index.merge import merge_indexes
from argap.errors import ArgapError, FormatError, MismatchError
from tests.builders import index as indexes
from tests.builders.index import contents
from tests.conftest import flip_bit


@pytest.fixture(params=["numba", "numpy"])
def engine(request, monkeypatch):
    """Use one engine for inputs of any size."""
    monkeypatch.setattr(engines, "SMALL", -1 if request.param == "numba" else 2**60)


def oracle(documents):
    return Counter(p for d in documents for p in pairwise(np.asarray(d).tolist()))


def counted(counter):
    """The counter's rows as a dict; checks that they are sorted, unique and nonzero."""
    pairs, counts = [], []
    for start, indptr, second, count in counter.rows():
        for row in range(len(indptr) - 1):
            here = slice(indptr[row], indptr[row + 1])
            pairs += [(start + row, int(s)) for s in second[here]]
            counts += count[here].tolist()
    counter.close()
    assert pairs == sorted(set(pairs))
    assert all(n > 0 for n in counts)
    return dict(zip(pairs, counts, strict=True))


ZIPF = np.random.default_rng(0).zipf(1.3, 300).clip(max=400) - 1
STREAMS = {
    "one token": ([[7]], 10),
    "two documents of one token": ([[1], [2]], 3),
    "one repeated token": ([[5] * 200], 6),
    "a a a": ([[1, 1, 1]], 2),
    "all bigrams distinct": ([np.arange(60), np.arange(60)[::-1]], 60),
    "empty documents between": ([[], [1, 2], [], [], [2, 1], []], 3),
    "last id of uint16": ([[65535, 0, 65535, 65535], [65535], [0, 65535]], 65536),
    "boundary would be 65535": ([[65534, 0, 65534], [65534, 65534]], 65535),
    "beyond uint16": ([[65536, 70000, 65536, 70000], [4, 65540]], 70001),
    "zipf": (np.split(ZIPF, [1, 2, 50, 51, 200]), 400),
}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
@pytest.mark.parametrize("name", STREAMS)
def test_counts_equal_a_counter(name, chunk, tmp_path):
    documents, vocab_size = STREAMS[name]
    if chunk < 7 and vocab_size > 10_000:
        pytest.skip("one run per token, each with a row pointer for the whole vocabulary")
    documents = [np.asarray(d, dtype=np.int64) for d in documents]
    counter = BigramCounter(vocab_size, chunk=chunk, scratch=tmp_path / "runs")
    for document in documents:
        counter.add(document)
    assert counted(counter) == oracle(documents)
    assert counter.documents == sum(len(d) > 0 for d in documents)
    assert counter.empty_documents == sum(len(d) == 0 for d in documents)
    assert counter.tokens == sum(len(d) for d in documents)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("eos", [0, 3, None])
@pytest.mark.parametrize("chunk", [3, 10_000])
def test_stream_equals_its_documents(eos, chunk, tmp_path, monkeypatch):
    # By hand, eos = 0: | 1 2 | (empty) | 1 1 1 | 2 |; bigrams (1,2), (1,1) twice; tokens 6, documents 3.
    tokens = np.array([0, 1, 2, 0, 0, 1, 1, 1, 0, 2, 0], dtype=np.uint16)
    monkeypatch.setattr("argap.bigram_index.counting.count.SCAN", 2)  # documents continue from block to block
    counter = BigramCounter(4, chunk=chunk, scratch=tmp_path / "runs")
    counter.add_stream(tokens, eos)
    if eos == 0:
        assert counted(counter) == {(1, 1): 2, (1, 2): 1}
        assert (counter.documents, counter.tokens) == (3, 6)
    else:  # no 3 in it: one document
        assert counted(counter) == oracle([tokens])
        assert (counter.documents, counter.tokens) == (1, 11)


def test_documents_do_not_join_across_add_and_stream(tmp_path):
    counter = BigramCounter(5, chunk=100, scratch=tmp_path / "runs")
    counter.add(np.array([1, 2]))
    counter.add_stream(np.array([3, 0, 4]), 0)
    counter.add(np.array([1, 2]))
    assert counted(counter) == {(1, 2): 2}


@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_id_outside_the_vocabulary_is_refused(bad, tmp_path):
    counter = BigramCounter(10, chunk=100, scratch=tmp_path / "runs")
    with pytest.raises(FormatError, match=f"token {bad} is outside the vocabulary of 10"):
        counter.add(np.array([1, bad, 2]))
    with pytest.raises(FormatError, match=f"token {bad} "):
        counter.add_stream(np.array([1, bad, 2]), 0)


@settings(max_examples=50)
@given(
    documents=st.lists(st.lists(st.integers(0, 5), max_size=12), max_size=8),
    chunk=st.integers(1, 20),
    entries=st.integers(1, 30),
)
def test_counts_do_not_depend_on_chunks_and_merge_ranges(documents, chunk, entries, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("counter") / "runs"
    counter = BigramCounter(6, chunk=chunk, scratch=scratch)
    for document in documents:
        counter.add(np.array(document, dtype=np.int32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("argap.bigram_index.counting.count.merge_runs", lambda runs: merge_runs(runs, entries))
        assert counted(counter) == oracle(documents)


def test_token_type_leaves_room_for_the_boundary():
    assert token_type(65535) == np.uint16  # ids 0..65534, boundary 65535
    assert token_type(65536) == np.uint32


def test_too_little_memory_is_refused():
    assert chunk_tokens(None, 50_000) > chunk_tokens(None, 100_000) > 10**6
    assert chunk_tokens(10**15, 50_000) < 2**32  # positions in a chunk are 32 bits wide
    least = 400 * 10**6 + (12 + 3 * 2) * 2**20
    assert chunk_tokens(least, 50_000) == 2**20
    with pytest.raises(ArgapError, match="419 MB is too little, expected at least 419 MB"):
        chunk_tokens(least - 1, 50_000)


RNG = np.random.default_rng(2)
DOCUMENTS = [RNG.zipf(1.2, n).clip(max=70_000) - 1 for n in (1, 900, 2, 3000, 0, 40, 1, 0, 0)]


def build(out, documents, sources, **changes):
    return indexes.build(out, documents, sources=sources, **{"vocab_size": 70_000} | changes)


def test_merge_equals_counting_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("argap.bigram_index.parquet_parts.GROUP_ROWS", 64)  # rows cross groups, groups cross parts
    monkeypatch.setattr("argap.bigram_index.parquet_parts.PART_ROWS", 256)
    monkeypatch.setattr("argap.bigram_index.counting.count.MERGE_ENTRIES", 50)
    whole = build(tmp_path / "whole", DOCUMENTS, ["b", "a", "c"])
    shards = [build(tmp_path / name, DOCUMENTS[i::3], [name]).folder for i, name in enumerate(["a", "b", "c"])]
    merged = merge_indexes(shards, tmp_path / "merged")
    assert len(merged.manifest.parts) > 3
    assert contents(merged.folder) == contents(whole.folder)


def test_merging_one_index_copies_it(tmp_path):
    one = build(tmp_path / "one", DOCUMENTS, ["a"])
    assert contents(merge_indexes([one.folder], tmp_path / "copy").folder) == contents(one.folder)


@settings(max_examples=15)
@given(
    shards=st.lists(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=3),
        min_size=3,
        max_size=3,
    )
)
def test_merge_is_associative_and_commutative(shards, tmp_path_factory):
    root = tmp_path_factory.mktemp("merge")
    a, b, c = (
        build(root / name, documents, [name], vocab_size=4).folder
        for name, documents in zip("abc", shards, strict=True)
    )
    left = merge_indexes([merge_indexes([a, b], root / "ab").folder, c], root / "ab+c")
    right = merge_indexes([c, merge_indexes([b, a], root / "ba").folder], root / "c+ba")
    once = build(root / "once", [d for s in shards for d in s], ["a", "b", "c"], vocab_size=4)
    assert contents(left.folder) == contents(right.folder) == contents(once.folder)


def test_one_tokenizer_by_two_paths_has_one_name(tmp_path):
    folders = [build(tmp_path / name, DOCUMENTS, [name], tokenizer=name).folder for name in "ab"]
    for n, order in enumerate((folders, folders[::-1])):
        assert merge_indexes(order, tmp_path / f"merged {n}").tokenizer == "a"


def test_other_tokenizers_are_refused_by_name(tmp_path):
    a = build(tmp_path / "a", DOCUMENTS, ["a"], tokenizer="gpt2").folder
    b = build(tmp_path / "b", DOCUMENTS, ["b"], tokenizer="pythia", tokenizer_fingerprint="cd" * 32).folder
    with pytest.raises(MismatchError, match=r"gpt2.*pythia"):
        merge_indexes([a, b], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_damaged_shard_is_named_and_leaves_no_files(tmp_path):
    a = build(tmp_path / "a", DOCUMENTS, ["a"]).folder
    b = build(tmp_path / "b", DOCUMENTS, ["b"]).folder
    part = b / "part-00000.parquet"
    flip_bit(part, 200)
    with pytest.raises(FormatError, match=r"b/part-00000\.parquet: damaged"):
        merge_indexes([a, b], tmp_path / "c")
    with pytest.raises(ArgapError, match="no index to merge"):
        merge_indexes([], tmp_path / "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
