"""Exposures: corpora read several times, and merges weighted by the number of passes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argap.bigram_index.merge import merge_indexes, weighted_sum
from argap.bigram_index.store import open_index
from argap.errors import ArgapError
from tests.builders.index import build, contents


@pytest.fixture
def two(tmp_path):
    """``web`` has (1,2) five times and (2,1) four times; ``books`` has (1,2) once, (2,3) three times, (3,2) twice."""
    web = build(tmp_path / "web", [[1, 2] * 5], sources=["web"])
    books = build(tmp_path / "books", [[1, 2, 3, 2, 3, 2, 3]], sources=["books"])
    return web.folder, books.folder


def counts(index):
    pairs = {(1, 2), (2, 1), (2, 3), (3, 2)}
    return {pair: int(index.count(*pair)) for pair in pairs if index.count(*pair)}


def test_exposures_are_counts_times_passes(tmp_path):
    index = build(tmp_path / "index", [[1, 2, 1, 2]], passes=3.5)
    assert index.passes == 3.5
    assert index.count([1, 2, 4], [2, 1, 4]).tolist() == [2, 1, 0]
    exposures = index.exposures([1, 2, 4], [2, 1, 4])
    assert exposures.dtype == np.float64
    assert exposures.tolist() == [7.0, 3.5, 0.0]
    assert index.exposed_tokens == 14.0


def test_a_single_pass_is_not_recorded(tmp_path):
    once, thrice = (build(tmp_path / str(n), [[1, 2]], passes=n) for n in (1, 3))
    assert "passes" not in (once.folder / "index.json").read_text()
    assert open_index(once.folder).passes == 1.0
    assert json.loads((thrice.folder / "index.json").read_text())["passes"] == 3.0


@pytest.mark.parametrize("passes", [0, -1, float("inf"), float("nan")])
def test_bad_passes_are_refused(passes, tmp_path):
    with pytest.raises(ArgapError, match=r"`passes` .*: expected a finite number above 0"):
        build(tmp_path / "index", [[1, 2]], passes=passes)
    assert list(tmp_path.iterdir()) == []


def test_weighted_merge_matches_a_worked_example(two, tmp_path):
    merged = merge_indexes(two, tmp_path / "merged", weights=[11, 3.7])
    # (1,2): 55 + 3.7 = 58.7; (2,1): 44; (2,3): 11.1; (3,2): 7.4.
    assert counts(merged) == {(1, 2): 59, (2, 1): 44, (2, 3): 11, (3, 2): 7}
    assert merged.exposures(1, 2) == 59
    assert merged.passes == 1
    assert merged.tokens == 136  # 11 * 10 + 3.7 * 7 = 135.9
    assert (merged.documents, merged.bigrams, merged.sources) == (2, 121, ["books", "web"])
    assert json.loads((merged.folder / "index.json").read_text())["weights"] == [
        {"weight": 3.7, "sources": ["books"]},
        {"weight": 11.0, "sources": ["web"]},
    ]


def test_halves_round_to_even_and_zeros_are_dropped(two, tmp_path):
    merged = merge_indexes(two, tmp_path / "merged", weights=[0.5, 0.25])
    # (1,2): 2.5 + 0.25 = 2.75; (2,1): 2; (2,3): 0.75; (3,2): 0.5 rounds to 0.
    assert counts(merged) == {(1, 2): 3, (2, 1): 2, (2, 3): 1}
    assert merged.distinct == 3
    half = merge_indexes([two[0]], tmp_path / "half", weights=[0.5])
    assert counts(half) == {(1, 2): 2, (2, 1): 2}  # 2.5 and 2


def test_weighted_merge_does_not_depend_on_the_order(two, tmp_path, monkeypatch):
    monkeypatch.setattr("argap.bigram_index.counting.count.MERGE_ENTRIES", 2)  # several ranges of rows
    one = merge_indexes(two, tmp_path / "one", weights=[11, 3.7])
    other = merge_indexes(two[::-1], tmp_path / "other", weights=[3.7, 11])
    assert contents(one.folder) == contents(other.folder)


def test_unequal_passes_become_weights(tmp_path):
    folders = [build(tmp_path / name, [[1, 2]], sources=[name], passes=n).folder for name, n in (("a", 2), ("b", 5))]
    merged = merge_indexes(folders, tmp_path / "merged")
    assert (counts(merged), merged.passes) == ({(1, 2): 7}, 1)
    assert [(w.weight, w.sources) for w in merged.manifest.weights] == [(2, ("a",)), (5, ("b",))]
    with pytest.raises(ArgapError, match=r"a: already records 2 passes.*leave `weights` out"):
        merge_indexes(folders, tmp_path / "again", weights=[2, 5])


def test_equal_passes_are_kept(tmp_path):
    folders = [build(tmp_path / name, [[1, 2]], sources=[name], passes=3).folder for name in "ab"]
    merged = merge_indexes(folders, tmp_path / "merged")
    assert (counts(merged), merged.passes, merged.manifest.weights) == ({(1, 2): 2}, 3, ())


def test_weights_of_weighted_indexes_multiply(two, tmp_path):
    merged = merge_indexes(two, tmp_path / "merged", weights=[10, 2])
    twice = merge_indexes([merged.folder, two[0]], tmp_path / "twice", weights=[2, 1])
    assert counts(twice) == {(1, 2): 2 * 52 + 5, (2, 1): 84, (2, 3): 12, (3, 2): 8}
    assert [(w.weight, w.sources) for w in twice.manifest.weights] == [(1, ("web",)), (4, ("books",)), (20, ("web",))]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], "1 `weights` for 2 indexes"),
        ([1, 0], "`weights` 0: expected a finite number"),
        ([1, 1e300], r"`weights`: a count of \S+e\+30\d exposures; expected less than 2⁶³"),
    ],
)
def test_bad_weights_are_refused(weights, message, two, tmp_path):
    with pytest.raises(ArgapError, match=message):
        merge_indexes(two, tmp_path / "merged", weights=weights)
    assert not (tmp_path / "merged").exists()


@settings(max_examples=15)
@given(
    shards=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=20), min_size=2, max_size=3),
    weights=st.lists(st.sampled_from([0.25, 0.5, 1.0, 3.5, 11.0]), min_size=3, max_size=3),  # exact in binary
    entries=st.integers(1, 20),
)
def test_weighted_merge_equals_the_dense_sum(shards, weights, entries, tmp_path_factory):
    root, weights = tmp_path_factory.mktemp("weighted"), weights[: len(shards)]
    indexes = [build(root / str(n), [shard], vocab_size=4) for n, shard in enumerate(shards)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("argap.bigram_index.counting.count.MERGE_ENTRIES", entries)
        merged = merge_indexes([index.folder for index in indexes], root / "merged", weights=weights)
    grid = np.meshgrid(np.arange(4), np.arange(4))
    expected = np.rint(sum(weight * index.count(*grid) for weight, index in zip(weights, indexes, strict=True)))
    assert merged.count(*grid).tolist() == expected.tolist()


def test_weighted_sum_by_hand():
    # 2 * [1, 2] + 0.5 * [3, 1] = [3.5, 4.5], both halves to even.
    assert weighted_sum([np.array([1, 2]), np.array([3, 1])], [2, 0.5]).tolist() == [4, 4]
    assert weighted_sum([np.array([2**61])], [3.5]).tolist() == [7 * 2**60]
    with pytest.raises(ArgapError, match=r"a count of 9.22e\+18 exposures"):
        weighted_sum([np.array([1, 2**61])], [4.0])
