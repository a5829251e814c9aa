"""Merging shards gives the index of the whole corpus, byte for byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argap.bigram_index.merge import merge_indexes
from argap.errors import ArgapError, FormatError, MismatchError
from tests.builders import index as indexes
from tests.builders.index import contents
from tests.conftest import flip_bit

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
